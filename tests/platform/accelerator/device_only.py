"""Tests for machines that have a device: the whole kit, every type of activations, captured steps, memory that others
use, collectives, and a benchmark whose figures stay in `device_bench.REPORTS`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from device_bench import bench_offline, random_model

from headrace.conformance import KitTarget, run
from headrace.conformance.tiny import Answer, Serving, TinyModel, requests
from headrace.errors import OutOfMemory, PlatformError
from headrace.platforms.accelerator.device import AcceleratorDevice
from headrace.platforms.accelerator.platform import AcceleratorPlatform
from headrace.platforms.interface import BusySeconds, TimesLaunches
from headrace.types import Bucket, KVLayout, LayerKV

_RANKS = Path(__file__).with_name("rank_main.py")


class DeviceOnly:
    """Subclass it with a `platform`, its mark and its probe's reason."""

    platform: Callable[[], AcceleratorPlatform]

    @pytest.fixture
    def opened(self) -> Any:
        made: list[AcceleratorDevice] = []

        def open_(**options: Any) -> AcceleratorDevice:
            device = self.platform().open(0, options)
            assert isinstance(device, AcceleratorDevice)
            made.append(device)
            return device

        yield open_
        for device in made:
            device.close()

    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_the_kit_is_green(self, dtype: str) -> None:
        """Operators in every type either way; `dtype` is that of the kit's model."""
        report = run(KitTarget(self.platform(), options={"dtype": dtype}))
        assert report.ok, report.table()

    def test_bfloat16_is_near_float32_and_the_same_in_any_batch(self, opened: Any) -> None:
        """The kit's model in the kit's place: eight bits of significand move its logprobs by more than the kit
        allows."""
        device, exact = opened(dtype="bfloat16"), opened(dtype="float32")
        _need(device, "bfloat16")
        found = Serving(device, TinyModel(device)).run(requests(9))
        wanted = Serving(exact, TinyModel(exact, device.capabilities())).run(requests(9))
        agreed = [_agreeing(found[name], answer) for name, answer in wanted.items()]
        assert sum(whole for whole, _ in agreed) >= 5
        assert max(apart for _, apart in agreed) < 0.25
        for request in requests(9)[:3]:
            alone = Serving(device, TinyModel(device), budget=9, seqs=3).run([request])
            assert alone[request.id] == found[request.id]

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    def test_a_short_benchmark(self, opened: Any, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        _need(opened(), dtype)
        found = bench_offline(self.platform().name, dtype, random_model(tmp_path / "model", monkeypatch))
        assert found["facts"]["platform"] == self.platform().name
        assert all(run["summary"]["output_tokens"] > 0 for run in found["runs"])

    def test_devices_are_listed_as_torch_numbers_them(self, opened: Any) -> None:
        found, module = self.platform().devices(), opened().runtime.module
        assert len(found) == module.device_count()
        assert all(device.memory_bytes >= 0 for device in found)

    def test_every_operator_is_the_devices_own(self, opened: Any) -> None:
        assert opened().op_reasons() == {}

    def test_captured_steps_answer_as_eager_ones_do(self, opened: Any) -> None:
        answers = []
        for tokens in (0, 512):
            device = opened(dtype="float32", graph_tokens=tokens)
            answers.append(Serving(device, TinyModel(device)).run(requests(9, 1.0)))
        assert answers[0] == answers[1]

    def test_many_copies_in_flight_stay_separate(self, opened: Any) -> None:
        device = opened()
        step = device.compile(lambda kv, i: (kv, {"y": i["x"] + 1}), Bucket(8, 8, 8, 8))
        pending = []
        for turn in range(64):
            _, outputs = step(None, {"x": device.put(np.full(1 << 14, turn, np.int32))})
            pending.append(device.get(outputs["y"]))
        for turn, waiting in enumerate(pending):
            found = waiting.result()
            assert (found.min(), found.max()) == (turn + 1, turn + 1)

    @pytest.mark.parametrize("tokens", [0, 512], ids=["eager", "captured"])
    def test_launches_have_their_own_times(self, opened: Any, tokens: int) -> None:
        """Products, one and sixteen a launch, that wait for each other in the device's queue: the times follow the
        work, and are no longer than events around all of them say. Time without work does not count."""
        device = opened(dtype="float32", graph_tokens=tokens)
        times, counter = device.extension(TimesLaunches), device.extension(BusySeconds)
        assert times is not None
        assert counter is not None
        inputs = {"x": device.put(np.full((1024, 1024), 1 / 1024, np.float32))}
        one, many = (device.compile(_products(count), Bucket(8, 8, 8, 8)) for count in (1, 16))
        for executable in (one, many) * 2:  # what is made on first use
            device.get(executable(None, inputs)[1]["y"]).result()
        around = [device.runtime.module.Event(enable_timing=True) for _ in range(2)]
        around[0].record(device.compute)
        marks = [times.mark()]
        for turn in range(40):
            _, outputs = (one, many)[turn % 2](None, inputs)
            marks.append(times.mark())
        around[1].record(device.compute)
        assert abs(float(device.get(outputs["y"]).result()[0, 0]) - 1 / 1024) < 1e-5
        ends = [times.busy_until(mark) for mark in marks]
        assert None not in ends
        taken = np.diff(ends)
        assert taken.min() > 0
        assert 3 < median(taken[1::2]) / median(taken[::2]) < 60
        around[1].synchronize()
        assert taken.sum() <= around[0].elapsed_time(around[1]) / 1e3 + 1e-5
        before, waited = counter.busy_seconds(), 0.0
        for _ in range(3):
            start = time.perf_counter()
            device.get(many(None, inputs)[1]["y"]).result()
            waited += time.perf_counter() - start
            time.sleep(0.05)
        assert 0 < counter.busy_seconds() - before <= 1.01 * waited

    def test_memory_that_others_use_is_not_free(self, opened: Any) -> None:
        device, other = opened(), opened()
        before, total = device.memory()
        layout = KVLayout((LayerKV(8, 128),) * 8, 16, "float16")
        kv = other.alloc_kv(layout, (256 << 20) // layout.bytes_per_block)
        assert before - device.memory()[0] >= 250 << 20
        del kv
        with pytest.raises(OutOfMemory, match=str(total)):
            device.alloc_kv(layout, 2 * total // layout.bytes_per_block)

    def test_collectives_of_two_devices(self, opened: Any, tmp_path: Path) -> None:
        device = opened()
        if device.runtime.module.device_count() < 2:
            pytest.skip("one device")
        with pytest.raises(PlatformError):
            device.communicator([0, 1])
        name, meeting = self.platform().name, f"file://{tmp_path}/meeting"
        ranks = [
            subprocess.Popen([sys.executable, str(_RANKS), name, str(rank), meeting], stdout=subprocess.PIPE, text=True)
            for rank in range(2)
        ]
        said = [rank.communicate(timeout=180)[0].splitlines()[-1] for rank in ranks]
        assert said == ["ok", "ok"]


def _products(count: int) -> Callable[..., Any]:
    def step(kv: Any, inputs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        y = inputs["x"]
        for _ in range(count):
            y = y @ inputs["x"]
        return kv, {"y": y}

    return step


def _need(device: AcceleratorDevice, dtype: str) -> None:
    if dtype not in device.capabilities().dtypes:
        pytest.skip(f"the chip has no {dtype}")


def _agreeing(found: Answer, wanted: Answer) -> tuple[bool, float]:
    """Whether all tokens agree, and how far logprobs are apart up to the first that does not."""
    pairs = list(zip(*found, *wanted, strict=True))
    same = next((i for i, (token, _, other, _) in enumerate(pairs) if token != other), len(pairs))
    return same == len(pairs), max((abs(one - two) for _, one, _, two in pairs[:same]), default=0.0)
