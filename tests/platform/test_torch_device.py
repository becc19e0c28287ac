"""The defaults of `TorchDevice` with both work queues: in the caller's thread and on a separate thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from headrace.errors import DeviceLost, OutOfMemory, PlatformError
from headrace.kernels.registry import OPS, bind, binding, pack
from headrace.kernels.spec import OpSpec
from headrace.platforms import interface
from headrace.platforms.interface import PackedForms, TorchTensors
from headrace.platforms.torch_device import TorchDevice
from headrace.types import Bucket, Capabilities, KVLayout, LayerKV

BUCKET = Bucket(8, 8, 8, 8)
Tensors = Mapping[str, Any]


def capabilities(async_exec: bool) -> Capabilities:
    return Capabilities(dtypes=frozenset({"float32"}), kv_dtypes=frozenset({"float32"}), async_exec=async_exec)


@pytest.fixture(params=[False, True], ids=["inline", "worker"])
def device(request: pytest.FixtureRequest) -> Iterator[TorchDevice]:
    made = TorchDevice(torch.device("cpu"), capabilities(request.param))
    yield made
    made.close()


def double(kv: Any, inputs: Tensors) -> tuple[Any, Tensors]:
    return kv, {"y": inputs["x"] * 2}


def test_it_satisfies_the_protocols(device: TorchDevice) -> None:
    assert isinstance(device, interface.Device)
    executable = device.compile(double, BUCKET)
    assert isinstance(executable, interface.Executable)
    assert isinstance(device.get(device.put(np.zeros(1))), interface.Pending)
    assert isinstance(device.communicator([0]), interface.Communicator)
    assert device.capabilities() is device.capabilities()


def test_put_copies_and_get_brings_back(device: TorchDevice) -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    tensor = device.put(array)
    array[:] = 0
    pending = device.get(tensor)
    assert pending.result().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert pending.result().dtype == np.int32
    assert pending.done()


def test_a_copy_is_of_the_moment_it_was_asked_for(device: TorchDevice) -> None:
    def add_one(kv: Any, inputs: Tensors) -> tuple[Any, Tensors]:
        inputs["x"].add_(1)
        return kv, {}

    x, executable = device.put(np.zeros(2, np.float32)), device.compile(add_one, BUCKET)
    executable(None, {"x": x})
    first = device.get(x)
    executable(None, {"x": x})
    assert first.result().tolist() == [1, 1]
    assert device.get(x).result().tolist() == [2, 2]


def test_bfloat16_comes_as_float32(device: TorchDevice) -> None:
    got = device.get(torch.tensor([1.5], dtype=torch.bfloat16)).result()
    assert got.dtype == np.float32
    assert got.tolist() == [1.5]


def test_outputs_feed_the_next_step_before_they_are_there(device: TorchDevice) -> None:
    executable = device.compile(double, BUCKET)
    kv, outputs = "cache", {"y": device.put(np.ones(1, np.float32))}
    for _ in range(5):
        kv, outputs = executable(kv, {"x": outputs["y"]})
    assert kv == "cache"
    assert list(outputs) == ["y"]
    assert outputs.get("history") is None
    assert device.get(outputs["y"]).result().tolist() == [32]


def test_a_worker_returns_before_the_step_has_run() -> None:
    device, gate = TorchDevice(torch.device("cpu"), capabilities(True)), threading.Event()
    threads = []

    def wait(kv: Any, inputs: Tensors) -> tuple[Any, Tensors]:
        threads.append(threading.current_thread())
        assert gate.wait(300)
        return kv, {"y": inputs["x"]}

    executable, x = device.compile(wait, BUCKET), device.put(np.ones(1, np.float32))
    gate.set()
    executable(None, {"x": x})[1]["y"]
    gate.clear()
    _, outputs = executable(None, {"x": x})
    pending = device.get(outputs["y"])
    early = pending.done()
    gate.set()
    assert not early
    assert pending.result().tolist() == [1]
    assert len(set(threads)) == 1
    assert threads[0] is not threading.current_thread()
    device.close()


def test_an_error_of_a_step_is_the_pending_copys_and_passes(device: TorchDevice) -> None:
    def step(kv: Any, inputs: Tensors) -> tuple[Any, Tensors]:
        if float(inputs["x"]) < 0:
            raise ValueError("negative")
        return kv, {"y": inputs["x"]}

    executable = device.compile(step, BUCKET)
    x, bad = device.put(np.ones(1, np.float32)), device.put(-np.ones(1, np.float32))
    device.get(executable(None, {"x": x})[1]["y"]).result()
    failing = device.get(executable(None, {"x": bad})[1]["y"])
    with pytest.raises(PlatformError, match="cpu: ValueError: negative"):
        failing.result()
    assert device.get(executable(None, {"x": x})[1]["y"]).result().tolist() == [1]


def test_an_error_of_the_very_first_step(device: TorchDevice) -> None:
    def step(kv: Any, inputs: Tensors) -> tuple[Any, Tensors]:
        raise DeviceLost("gone")

    with pytest.raises(DeviceLost, match="gone"):
        device.get(device.compile(step, BUCKET)(None, {})[1]["y"]).result()


def test_running_out_of_memory_in_a_step_names_the_free_bytes(device: TorchDevice) -> None:
    def step(kv: Any, inputs: Tensors) -> tuple[Any, Tensors]:
        raise MemoryError("4 bytes too many")

    with pytest.raises(OutOfMemory, match=r"4 bytes too many \(\d+ of \d+ bytes are free\)"):
        device.get(device.compile(step, BUCKET)(None, {})[1]["y"]).result()


LAYOUT = KVLayout((LayerKV(2, 4), LayerKV(1, 8)), 16, "int8")


def test_a_cache_is_zero_and_has_the_layouts_shape(device: TorchDevice) -> None:
    kv = device.alloc_kv(LAYOUT, 5)
    assert [tuple(t.shape) for t in kv.keys] == [(5, 2, 16, 4), (5, 1, 16, 8)]
    assert [tuple(t.shape) for t in kv.value_scales] == [(5, 2, 16), (5, 1, 16)]
    assert not any(t.any() for t in (*kv.keys, *kv.values, *kv.key_scales, *kv.value_scales))


def test_a_cache_that_does_not_fit_is_an_error_with_both_numbers(device: TorchDevice) -> None:
    with pytest.raises(OutOfMemory, match=r"needs \d{18,} bytes, but \d+ of \d+ are free"):
        device.alloc_kv(LAYOUT, 10**15)


def test_blocks_are_read_before_they_are_written(device: TorchDevice) -> None:
    kv = device.alloc_kv(LAYOUT, 4)
    stores = (*kv.keys, *kv.values, *kv.key_scales, *kv.value_scales)
    for store in stores:
        store[1], store[2] = 1, 2
    assert device.copy_blocks(kv, [1, 2], [2, 3]) is kv
    device.get(kv.keys[0]).result()
    for store in stores:
        assert [int(store[block].max()) for block in range(4)] == [0, 1, 1, 2]


def test_a_failed_block_copy_is_raised_by_all_later_work(device: TorchDevice) -> None:
    kv = device.alloc_kv(LAYOUT, 4)
    device.copy_blocks(kv, [1], [99])
    with pytest.raises(PlatformError, match="IndexError"):
        device.get(device.put(np.zeros(1))).result()


def test_one_rank_changes_nothing(device: TorchDevice) -> None:
    group, x = device.communicator([3]), object()
    assert [group.all_reduce(x), group.all_gather(x, 0), group.reduce_scatter(x, 0), group.broadcast(x, 0)] == [x] * 4
    with pytest.raises(PlatformError, match="a group of 2 ranks"):
        device.communicator([0, 1])


def test_memory_and_extension_defaults(device: TorchDevice) -> None:
    free, total = device.memory()
    assert 0 < free <= total
    assert device.extension(TorchTensors) is device
    assert device.extension(PackedForms) is None
    assert all(device.op(spec) is None for spec in OPS)


def test_a_closed_device_refuses_work(device: TorchDevice) -> None:
    executable, tensor = device.compile(double, BUCKET), device.put(np.zeros(1))
    device.close()
    device.close()
    for call in (
        lambda: device.put(np.zeros(1)),
        lambda: device.get(tensor),
        lambda: device.alloc_kv(LAYOUT, 2),
        lambda: device.copy_blocks(None, [], []),
        lambda: device.compile(double, BUCKET),
        lambda: executable(None, {"x": tensor}),
    ):
        with pytest.raises(PlatformError, match="has been closed"):
            call()


def test_closing_waits_for_what_was_launched() -> None:
    device, ran = TorchDevice(torch.device("cpu"), capabilities(True)), []
    device.compile(lambda kv, inputs: (kv, {"n": ran.append(1)}), BUCKET)(None, {})
    device.close()
    assert ran == [1]


@pytest.mark.parametrize("async_exec", [False, True])
def test_threads_are_those_of_the_thread_that_does_the_work(async_exec: bool) -> None:
    before = torch.get_num_threads()
    try:
        device = TorchDevice(torch.device("cpu"), capabilities(async_exec), before + 1)
        assert device.submit(torch.get_num_threads).result() == before + 1
        device.close()
    finally:
        torch.set_num_threads(before)


class Partly(TorchDevice):
    """A device with its own norm, and a reason for an operator that it lacks."""

    packed: list[Any]

    def op(self, spec: OpSpec) -> Any:
        if spec.name != "rms_norm":
            return None
        self.packed = []

        def norm(x: Any, weight: Any, eps: float) -> Any:
            return x

        norm.tag, norm.pack = "fast norm", self.packed.append  # type: ignore[attr-defined]
        return norm

    def op_reasons(self) -> dict[str, str]:
        return {"linear": "no compiler"}


def test_binding_takes_the_devices_operators_and_gives_reasons_for_others(caplog: pytest.LogCaptureFixture) -> None:
    device = Partly(torch.device("cpu"), capabilities(False))
    caplog.set_level(logging.INFO)
    ops = bind(device)
    assert ops.rms_norm(x=3, weight=None, eps=0.0) == 3
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("headrace")]
    assert "by reference: linear (no compiler)" in lines
    assert len(lines) == 2
    bound = binding(device)
    assert bound.tags["rms_norm"] == "fast norm"
    assert bound.tags["sample"] == "reference"
    assert bound.reasons["linear"] == "no compiler"
    pack(ops, "rms_norm", "weight")
    pack(ops, "linear", "weight")
    assert device.packed in (["weight"], [])
    with pytest.raises(AttributeError, match="no operator 'conv'; there are resolve_tokens"):
        ops.conv  # noqa: B018
    device.close()


def test_an_operator_that_cannot_be_called_is_refused() -> None:
    class Wrong(TorchDevice):
        def op(self, spec: OpSpec) -> Any:
            return 7

    with pytest.raises(PlatformError, match=r"Wrong.op\('resolve_tokens'\) gave 7"):
        bind(Wrong(torch.device("cpu"), capabilities(False)))
