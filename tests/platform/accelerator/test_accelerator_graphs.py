"""Captured steps: run once a call, recorded after the first, given up with a reason."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fake_accelerator as fake
import numpy as np
import pytest
import torch
from fake_machines import VENDORS

from headrace.errors import DeviceLost
from headrace.platforms.accelerator.device import AcceleratorDevice
from headrace.types import Bucket, KVLayout, LayerKV

CUDA, _, XPU = VENDORS
BUCKET = Bucket(8, 8, 8, 8)
Tensors = Mapping[str, Any]
Open = Callable[..., tuple[AcceleratorDevice, fake.FakeModule]]


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    made = []

    def open_(vendor: Any = CUDA, options: Mapping[str, Any] | None = None, **more: Any) -> Any:
        platform, module = vendor.open(tmp_path, **more)
        made.append((platform.open(0, options or {}), module))
        return made[-1]

    yield open_
    for device, module in made:
        module.failure = None
        device.close()


def put(device: AcceleratorDevice, *values: float) -> Any:
    return device.put(np.array(values, np.float32))


def counting(kv: Any, inputs: Tensors) -> tuple[Any, Tensors]:
    """Counts its runs in the history and in the cache."""
    inputs["history"].add_(1)
    kv.keys[0][0].add_(inputs["x"].sum())
    return kv, {"y": inputs["x"] * 2, "history": inputs["history"]}


def test_every_call_runs_the_step_once(opened: Open) -> None:
    device, module = opened()
    kv = device.alloc_kv(KVLayout((LayerKV(1, 16),), 16, "float32"), 2)
    history, executable = put(device, 0), device.compile(counting, BUCKET)
    for turn in range(1, 5):
        kv, outputs = executable(kv, {"x": put(device, turn), "history": history})
        assert outputs["history"] is history
        assert device.get(outputs["y"]).result().tolist() == [2 * turn]
        assert device.get(history).result().tolist() == [turn]
    assert float(kv.keys[0][0].mean()) == 1 + 2 + 3 + 4
    assert [graph.replays for graph in module.graphs] == [3]


def test_inputs_that_stayed_are_not_copied_again(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    device, _ = opened()
    executable = device.compile(lambda kv, i: (kv, {"y": i["a"] + i["b"]}), BUCKET)
    a, copied = put(device, 1), []
    copy = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda to, of: copied.append(len(to)) or copy(to, of))
    for turn in range(4):
        _, outputs = executable(None, {"a": a, "b": put(device, turn)})
    assert device.get(outputs["y"]).result().tolist() == [4]
    assert copied == [2, 1, 1]


def test_each_shape_is_captured_up_to_a_number(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    device, module = opened()
    executable = device.compile(lambda kv, i: (kv, {"y": i["x"].sum()}), BUCKET)
    with caplog.at_level(logging.WARNING):
        for turn in range(2):
            for size in range(1, 11):
                _, outputs = executable(None, {"x": put(device, *[turn + 1] * size)})
                assert device.get(outputs["y"]).result() == size * (turn + 1)
    assert [graph.replays for graph in module.graphs] == [1] * 8
    assert [record.message for record in caplog.records] == [
        "cpu:0: steps are launched operator by operator: a step is captured for at most 8 shapes"
    ]


def test_another_cache_is_another_graph(opened: Open) -> None:
    device, module = opened()
    layout = KVLayout((LayerKV(1, 16),), 16, "float32")
    caches, executable = [device.alloc_kv(layout, 1) for _ in range(2)], device.compile(counting, BUCKET)
    history = put(device, 0)
    for kv in caches * 2:
        executable(kv, {"x": put(device, 1), "history": history})
    assert [float(kv.keys[0].mean()) for kv in caches] == [2, 2]
    assert [graph.replays for graph in module.graphs] == [1, 1]


def test_outputs_of_one_step_outlive_another_steps_calls(opened: Open) -> None:
    device, _ = opened()
    first, second = (device.compile(lambda kv, i, k=k: (kv, {"y": i["x"] * k}), BUCKET) for k in (2, 3))
    for _ in range(2):
        _, outputs = first(None, {"x": put(device, 5)})
        second(None, {"x": put(device, 7)})
    assert device.get(outputs["y"]).result().tolist() == [10]


def test_a_step_that_reads_on_the_host_stays_eager_and_logs_it_once(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    device, module = opened()
    step = lambda kv, i: (kv, {"y": i["x"][: int(i["n"].sum())]})  # noqa: E731
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            executable = device.compile(step, BUCKET)
            for n in (1, 2, 3):
                _, outputs = executable(None, {"x": put(device, 1, 2, 3), "n": put(device, n)})
                assert len(device.get(outputs["y"]).result()) == n
    said = [record.message for record in caplog.records]
    assert said == [
        "cpu:0: steps are launched operator by operator: capture failed: RuntimeError: CUDA error: operation not "
        "permitted when stream is capturing"
    ]
    assert len(module.graphs) == 2, "one attempt a step"


def test_a_device_lost_while_capturing_is_lost(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    device, module = opened()

    def broken() -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(module, "CUDAGraph", broken)
    with pytest.raises(DeviceLost, match="illegal memory access"):
        device.compile(lambda kv, i: (kv, {}), BUCKET)(None, {})


@pytest.mark.parametrize(
    ("vendor", "options", "more", "said"),
    [
        (CUDA, {"graph_tokens": 0}, {}, "option graph_tokens is 0"),
        (XPU, {}, {}, "option graph_tokens is 0"),
        (XPU, {"graph_tokens": 64}, {"module": fake.FakeModule(fake.MAX1550, graph="")}, "this build of torch cannot"),
    ],
    ids=["asked", "default", "old-torch"],
)
def test_why_nothing_is_captured(
    vendor: Any, options: Any, more: Any, said: str, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    device, module = opened(vendor, options, **more)
    with caplog.at_level(logging.WARNING):
        executables = [device.compile(lambda kv, i: (kv, {"y": i["x"] * 2}), BUCKET) for _ in range(2)]
    for executable in executables * 2:
        assert device.get(executable(None, {"x": put(device, 4)})[1]["y"]).result().tolist() == [8]
    assert not module.graphs
    assert not device.capabilities().static_shapes, "padding would serve nothing"
    assert said in str(device.why_uncaptured())
    assert len([record for record in caplog.records if said in record.message]) == 1


def test_references_are_not_captured(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    module = fake.FakeModule(fake.H200)
    device, _ = opened(module=module, source=fake.operators_of(module, "linear"))
    with caplog.at_level(logging.WARNING):
        device.compile(lambda kv, i: (kv, {}), BUCKET)(None, {})
    assert not module.graphs
    assert "operators served by reference read sizes on the host (resolve_tokens, embedding" in caplog.text


def test_large_steps_are_launched_as_they_are(opened: Open, caplog: pytest.LogCaptureFixture) -> None:
    device, module = opened(options={"graph_tokens": 8})
    large, small = (device.compile(lambda kv, i: (kv, {"y": i["x"] * 2}), Bucket(n, 8, 8, 8)) for n in (16, 8))
    with caplog.at_level(logging.WARNING):
        for executable in (large, small):
            executable(None, {"x": put(device, 1)})
    assert len(module.graphs) == 1
    assert not caplog.records


def test_the_recording_is_undone_and_reads_are_refused() -> None:
    """The fake itself: capturing has no effect, replaying has."""
    module = fake.FakeModule(fake.H200)
    stream, graph, x = module.Stream(), fake.Graph(module), torch.zeros(2)
    with module.graph(graph, ("pool",), stream):
        y = (x + 1).view(2, 1)
        x.add_(5)
        with pytest.raises(RuntimeError, match="not permitted"):
            x.sum().item()
    assert x.tolist() == [0, 0]
    graph.replay()
    assert x.tolist() == [5, 5]
    assert y.flatten().tolist() == [1, 1]
    graph.replay()
    assert y.flatten().tolist() == [6, 6]
