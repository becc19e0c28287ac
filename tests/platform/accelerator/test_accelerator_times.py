"""The times of launches, by events of the device: exact to the launch, without waiting and outside of captures."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fake_accelerator as fake
import numpy as np
import pytest
import torch
from fake_machines import VENDORS, Vendor

from headrace.conformance.tiny import Serving, TinyModel, requests
from headrace.engine.core_loop import EngineCore
from headrace.engine.runner import Runner
from headrace.engine.stats import SpeculationTotals
from headrace.errors import DeviceLost, PlatformError
from headrace.platforms.accelerator.device import AcceleratorDevice
from headrace.platforms.accelerator.event_timing import EventTiming
from headrace.platforms.interface import BusySeconds, TimesLaunches
from headrace.types import Bucket, KVLayout, LayerKV, StepPlan

CUDA = VENDORS[0]
BUCKET = Bucket(8, 8, 8, 8)


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    made = []

    def open_(vendor: Vendor = CUDA, **options: Any) -> Any:
        platform, module = vendor.open(tmp_path)
        device = platform.open(0, options)
        made.append((device, module))
        module.event_time = 0.0
        return device, module

    yield open_
    for device, module in made:
        module.failure = None
        device.close()


class Steps:
    """Steps of one executable, each of which takes so many milliseconds."""

    def __init__(self, device: AcceleratorDevice, module: fake.FakeModule, milliseconds: float) -> None:
        def step(kv: Any, inputs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
            module.work(milliseconds)
            return kv, {"y": inputs["x"] + 1}

        self._device, self._executable = device, device.compile(step, BUCKET)

    def launch(self) -> Any:
        _, outputs = self._executable(None, {"x": self._device.put(np.arange(2))})
        return self._device.get(outputs["y"])


def times_of(device: AcceleratorDevice) -> EventTiming:
    found = device.extension(TimesLaunches)
    assert isinstance(found, EventTiming)
    assert device.extension(BusySeconds) is found
    return found


@pytest.mark.parametrize("tokens", [0, 512], ids=["eager", "captured"])
@pytest.mark.parametrize("vendor", VENDORS, ids=lambda v: v.name)
def test_every_launch_has_its_own_time(vendor: Vendor, tokens: int, opened: Any) -> None:
    """The first launch of a captured step runs operator by operator; its capture takes no time of the device."""
    device, module = opened(vendor, graph_tokens=tokens)
    times = times_of(device)
    assert (times.mark(), times.busy_until(0), times.busy_seconds()) == (0, 0.0, 0.0)
    short, long = Steps(device, module, 2.0), Steps(device, module, 7.0)
    marks = []
    for steps in (short, long, short, short, long):
        steps.launch()
        marks.append(times.mark())
    ends = [times.busy_until(mark) for mark in marks]
    assert ends == pytest.approx([0.002, 0.009, 0.011, 0.013, 0.020])
    assert times.busy_seconds() == ends[-1]
    assert sum(graph.replays for graph in module.graphs) == (3 if tokens else 0)


def test_time_in_which_there_is_nothing_to_do_does_not_count(opened: Any) -> None:
    device, module = opened()
    times, steps = times_of(device), Steps(device, module, 4.0)
    for _ in range(3):
        steps.launch()
        module.now += 100_000.0
    assert times.busy_seconds() == pytest.approx(0.012)


def test_copies_of_blocks_are_work(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    device, module = opened()
    times, kv = times_of(device), device.alloc_kv(KVLayout((LayerKV(1, 16),), 16, "float32"), 3)
    put = device.copies.put
    monkeypatch.setattr(device.copies, "put", lambda array: module.work(1.5) or put(array))
    device.copy_blocks(kv, [0], [1])
    assert (times.mark(), times.busy_until(1)) == (1, pytest.approx(0.0015))
    device.copy_blocks(kv, [], [])
    assert times.mark() == 1


def test_what_is_not_done_is_not_known_and_nothing_waits(opened: Any) -> None:
    device, module = opened()
    times, steps = times_of(device), Steps(device, module, 3.0)
    module.slow = True
    results = [steps.launch() for _ in range(3)]
    assert [times.busy_until(mark) for mark in range(5)] == [0.0, None, None, None, None]
    assert not any(result.done() for result in results), "nothing has waited"
    results[1].result()
    assert [times.busy_until(mark) for mark in range(5)] == [0.0, 0.003, 0.006, None, None]
    assert times.busy_seconds() == 0.006
    results[2].result()
    assert times.busy_until(3) == pytest.approx(0.009)
    assert times.busy_until(4) is None, "there is no such launch yet"


def test_what_was_too_long_ago_is_forgotten(opened: Any) -> None:
    device, module = opened(graph_tokens=0)
    times = times_of(device)
    for _ in range(1100):
        times.timed(lambda: module.work(1.0))
    assert times.busy_until(1100) == pytest.approx(1.1)
    assert times.busy_until(77) == pytest.approx(0.077)
    assert times.busy_until(76) is None


def test_no_event_is_made_for_a_step(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are as many as launches have been in flight at once."""
    device, module = opened()
    steps, make, made = Steps(device, module, 1.0), module.Event, []

    def count(enable_timing: bool = False) -> fake.Event:
        if enable_timing:
            made.append(1)
        return make(enable_timing)

    monkeypatch.setattr(module, "Event", count)
    module.slow = True
    pending = [steps.launch() for _ in range(2)]
    for _ in range(20):
        pending.append(steps.launch())
        pending.pop(0).result()
    assert len(made) <= 2 * 3


def test_microseconds_are_kept_however_long_the_device_works(opened: Any) -> None:
    """The runtime's float32 milliseconds: a difference of two times since an hour ago would be 0.0 or 0.25 ms."""
    device, module = opened(graph_tokens=0)
    times = times_of(device)
    times.timed(lambda: module.work(3_600_000.0))
    for _ in range(10):
        times.timed(lambda: module.work(0.0625))
        module.now += 3_600_000.0
    assert times.busy_until(11) - times.busy_until(10) == pytest.approx(0.0000625, abs=1e-9)


def test_a_launch_that_fails_is_no_launch(opened: Any) -> None:
    device, module = opened(graph_tokens=0)
    times = times_of(device)

    def broken(kv: Any, inputs: Any) -> Any:
        module.work(9.0)
        raise ValueError("a shape that does not fit")

    with pytest.raises(PlatformError, match="a shape that does not fit"):
        device.compile(broken, BUCKET)(None, {})
    assert times.mark() == 0
    Steps(device, module, 2.0).launch()
    assert times.busy_until(1) == pytest.approx(0.002)


def test_a_capture_that_fails_leaves_the_times_right(opened: Any) -> None:
    device, module = opened()
    times = times_of(device)

    def reads(kv: Any, inputs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        module.work(2.0)
        return kv, {"y": inputs["x"][: int(inputs["x"].sum())]}

    executable = device.compile(reads, BUCKET)
    for _ in range(3):
        executable(None, {"x": device.put(np.arange(2))})
    assert [times.busy_until(mark) for mark in (1, 2, 3)] == pytest.approx([0.002, 0.004, 0.006])


def test_a_lost_device_has_no_times_and_the_next_launch_raises_the_loss(opened: Any) -> None:
    device, module = opened()
    times, steps = times_of(device), Steps(device, module, 2.0)
    steps.launch()
    known = times.busy_until(1)
    steps.launch()
    module.failure = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert times.busy_until(2) is None
    assert times.busy_seconds() == known
    with pytest.raises(DeviceLost, match="illegal memory access"):
        steps.launch()


class Learner:
    """What `engine.drafting.Drafting` is told of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def settle(self, plan: StepPlan, emitted: int, seconds: float) -> None:
        self.seconds.append(seconds)

    def waited(self, seconds: float) -> None:
        pass

    def totals(self) -> SpeculationTotals:
        return SpeculationTotals()


class Learning(Serving):
    """Serving whose loop learns the times of steps, as a started engine does."""

    def __init__(self, device: AcceleratorDevice, learner: Learner) -> None:
        super().__init__(device, TinyModel(device))
        times, size = times_of(device), device.capabilities().block_sizes[0]
        self._core = EngineCore(
            self.scheduler, self.runner, 8, size, busy_seconds=times.busy_seconds, drafting=learner, times=times
        )

    def watch(self, runner: Runner) -> Runner:
        self.runner = runner
        return runner


def test_the_engine_learns_the_devices_own_time_of_each_step(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps are in flight, and the host takes as long as it likes."""
    device, module = opened()
    replay = fake.Graph.replay
    monkeypatch.setattr(fake.Graph, "replay", lambda graph: (module.work(3.0), replay(graph)))
    learner = Learner()
    serving = Learning(device, learner)
    for _ in range(2):
        learner.seconds.clear()
        module.now += 1000.0
        serving.run(requests(3))
    assert len(learner.seconds) >= 8
    assert learner.seconds == pytest.approx([0.003] * len(learner.seconds))


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda v: v.name)
def test_where_events_hold_no_times_there_are_none_and_the_log_says_so(
    vendor: Vendor, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in builds of torch for XPU with an older SYCL compiler."""

    def refuse(self: fake.Event, end_event: fake.Event) -> float:
        raise NotImplementedError("elapsed_time needs a newer compiler\nsome advice")

    monkeypatch.setattr(fake.Event, "elapsed_time", refuse)
    platform, module = vendor.open(tmp_path)
    with caplog.at_level(logging.WARNING):
        device = platform.open(0, {"graph_tokens": 0})
    assert [record.message for record in caplog.records] == [
        "cpu:0: times of steps are estimated: its events hold no times here: elapsed_time needs a newer compiler"
    ]
    assert device.extension(TimesLaunches) is None
    assert device.extension(BusySeconds) is None
    assert isinstance(device, AcceleratorDevice)
    assert Steps(device, module, 1.0).launch().result().tolist() == [1, 2]
    device.close()


def test_the_fakes_events_are_as_strict_as_torchs() -> None:
    """The fake itself: torch's own errors, and those of CUDA for captures."""
    module = fake.FakeModule(fake.H200)
    stream, plain = module.Stream(), module.Event()
    begin, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    assert begin.query(), "never recorded"
    with pytest.raises(ValueError, match="must be recorded"):
        begin.elapsed_time(end)
    plain.record(stream)
    begin.record(stream)
    with pytest.raises(ValueError, match="enable_timing=True"):
        begin.elapsed_time(plain)
    module.slow = True
    module.work(2.0)
    end.record(stream)
    assert not end.query()
    with pytest.raises(RuntimeError, match="must be completed"):
        begin.elapsed_time(end)
    plain.record(stream)
    plain.synchronize()
    assert end.query(), "it stands before the one that was waited for"
    assert begin.elapsed_time(end) == 2.0 + module.event_time
    with module.graph(fake.Graph(module), ("pool",), stream):
        with pytest.raises(RuntimeError, match="when stream is capturing"):
            begin.query()
        end.record(stream)
    with pytest.raises(RuntimeError, match="last recorded in a capturing stream"):
        begin.elapsed_time(end)
    end.record(stream)
    end.synchronize()
    assert begin.elapsed_time(end) > 2.0


def test_work_of_a_capture_takes_its_time_when_it_is_replayed() -> None:
    """The fake itself."""
    module = fake.FakeModule(fake.H200)
    stream, graph, x = module.Stream(), module.CUDAGraph(), torch.zeros(1)
    with module.graph(graph, ("pool",), stream):
        x.add_(1)
        module.work(5.0)
    assert (module.now, float(x)) == (0.0, 0.0)
    graph.replay()
    graph.replay()
    assert (module.now, float(x)) == (10.0, 2.0)
