"""Streams, copies, memory and errors of an accelerator, on the fake device."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fake_accelerator as fake
import numpy as np
import pytest
import torch
from fake_machines import VENDORS

from headrace.errors import DeviceLost, OutOfMemory, PlatformError
from headrace.kernels.registry import OPS, binding
from headrace.kernels.tritonlib.chip import TritonChip
from headrace.kernels.tritonlib.launch_config import LaunchConfig
from headrace.platforms.accelerator.accelerator_options import AcceleratorOptions
from headrace.platforms.accelerator.device import AcceleratorDevice
from headrace.platforms.accelerator.error_patterns import ErrorPatterns, first_line, root_cause
from headrace.platforms.accelerator.triton_operators import FollowsTable, missing_operators, triton_operators
from headrace.platforms.interface import ALL_TO_ALL, CaptureReason, NamesChip, Platform
from headrace.platforms.torch_communicator import World
from headrace.types import API_VERSION, COLLECTIVES, Bucket, Capabilities, KVLayout, LayerKV

CUDA = VENDORS[0]
BUCKET = Bucket(8, 8, 8, 8)
LAYOUT = KVLayout((LayerKV(1, 16),), 16, "float32")
Tensors = Mapping[str, Any]


@pytest.fixture
def module() -> fake.FakeModule:
    return fake.FakeModule(fake.H200)


@pytest.fixture
def device(tmp_path: Path, module: fake.FakeModule) -> Iterator[AcceleratorDevice]:
    made = CUDA.open(tmp_path, module=module)[0].open(0, {})
    assert isinstance(made, AcceleratorDevice)
    yield made
    module.failure = None
    made.close()


def double(kv: Any, inputs: Tensors) -> tuple[Any, Tensors]:
    return kv, {"y": inputs["x"] * 2}


def test_its_kind_is_named(device: AcceleratorDevice, tmp_path: Path) -> None:
    """Cached blocks carry it in their names."""
    found = device.extension(NamesChip)
    assert found is not None
    with_same = CUDA.open(tmp_path, module=fake.FakeModule(fake.H200))[0].open(0, {})
    assert with_same.extension(NamesChip).chip == found.chip
    assert "target=('cuda'" in found.chip
    with_same.close()


def test_work_runs_on_the_compute_stream_and_results_come_back_behind_it(
    device: AcceleratorDevice, module: fake.FakeModule
) -> None:
    executable = device.compile(double, BUCKET)
    x = device.put(np.arange(4, dtype=np.float32))
    _, outputs = executable(None, {"x": x})
    module.journal.clear()
    assert device.get(outputs["y"]).result().tolist() == [0, 2, 4, 6]
    assert module.journal == [("record", "compute"), ("wait", "copies", "compute"), ("record", "copies")]


def test_a_result_is_waited_for_only_when_it_is_asked_for(device: AcceleratorDevice, module: fake.FakeModule) -> None:
    module.slow = True
    pending = device.get(device.put(np.arange(4)))
    assert not pending.done()
    assert pending.result().tolist() == [0, 1, 2, 3]
    assert pending.done()


def test_a_replay_waits_for_the_copies_of_what_it_overwrites(
    device: AcceleratorDevice, module: fake.FakeModule
) -> None:
    executable = device.compile(double, BUCKET)
    for turn in range(3):
        _, outputs = executable(None, {"x": device.put(np.full(4, turn, np.float32))})
    module.slow = True
    pending = device.get(outputs["y"])
    module.journal.clear()
    executable(None, {"x": device.put(np.full(4, 9, np.float32))})
    assert module.journal.index(("wait", "compute", "copies")) < module.journal.index(("replay", "compute"))
    assert pending.result().tolist() == [4, 4, 4, 4]


def test_what_a_copy_reads_is_kept_until_it_is_made(device: AcceleratorDevice, module: fake.FakeModule) -> None:
    module.slow = True
    pending = device.get(device.put(np.arange(4)))
    held = device.copies._pending
    device.get(device.put(np.arange(4)))
    assert len(held) == 2, "neither has been made"
    pending.result()
    device.get(device.put(np.arange(4)))
    assert len(held) == 2, "the first has"
    device.copies.synchronize()
    assert not held


def test_work_of_another_thread_is_ordered_by_the_device(device: AcceleratorDevice, module: fake.FakeModule) -> None:
    found: list[Any] = []
    module.journal.clear()

    def elsewhere() -> None:
        found.append(device.get(device.put(np.arange(3))).result().tolist())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [[0, 1, 2]]
    assert module.journal[:2] == [("wait", "compute", "default"), ("wait", "default", "compute")]


def test_large_arrays_are_copied_from_where_they_lie(device: AcceleratorDevice) -> None:
    large = np.arange(1 << 18, dtype=np.int64)
    tensor = device.put(large)
    large[:] = 0
    assert device.get(tensor).result()[-1] == (1 << 18) - 1
    large.flags.writeable = False
    assert device.get(device.put(large)).result().sum() == 0


def test_bfloat16_comes_as_float32(device: AcceleratorDevice) -> None:
    assert device.get(torch.ones(3, dtype=torch.bfloat16)).result().dtype == np.float32


def test_memory_is_free_memory_and_what_torch_caches(device: AcceleratorDevice, module: fake.FakeModule) -> None:
    assert device.memory() == (8 * fake.GIB, 8 * fake.GIB)
    module.others, module.reserved, module.allocated = 3 * fake.GIB, 2 * fake.GIB, fake.GIB
    assert device.memory() == (4 * fake.GIB, 8 * fake.GIB)


def test_a_cache_uses_what_torch_has_cached_and_an_error_has_both_numbers(
    device: AcceleratorDevice, module: fake.FakeModule
) -> None:
    module.others, module.reserved = 8 * fake.GIB - 4096, 0
    with pytest.raises(OutOfMemory, match=r"needs 8192 bytes, but 4096 of 8589934592 are free"):
        device.alloc_kv(LAYOUT, 4)
    assert ("empty_cache",) in module.journal
    device.alloc_kv(LAYOUT, 1)


def test_blocks_are_copied_at_once_and_checked(device: AcceleratorDevice) -> None:
    kv = device.alloc_kv(LAYOUT, 3)
    kv.keys[0][1], kv.keys[0][2] = 1.0, 2.0
    device.copy_blocks(kv, [1, 2], [2, 1])
    assert [float(kv.keys[0][i].mean()) for i in range(3)] == [0.0, 2.0, 1.0]
    with pytest.raises(PlatformError, match="block 3 of a cache of 3"):
        device.copy_blocks(kv, [1], [3])
    with pytest.raises(PlatformError, match="1 sources and 2 destinations"):
        device.copy_blocks(kv, [1], [1, 2])


def test_running_out_of_memory_in_a_step_is_reported_with_both_numbers(
    device: AcceleratorDevice, module: fake.FakeModule
) -> None:
    def hungry(kv: Any, inputs: Tensors) -> tuple[Any, Tensors]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nadvice")

    module.others = 7 * fake.GIB
    with pytest.raises(OutOfMemory, match=r"2.00 GiB. \(1073741824 of 8589934592 bytes are free\)"):
        device.compile(hungry, BUCKET)(None, {})
    assert device.get(device.put(np.arange(2))).result().tolist() == [0, 1]


def test_a_lost_device_stays_lost(
    device: AcceleratorDevice, module: fake.FakeModule, caplog: pytest.LogCaptureFixture
) -> None:
    pending = device.get(device.put(np.arange(2)))
    module.failure = RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be …")
    assert pending.done(), "its result would not block"
    with pytest.raises(DeviceLost, match="device-side assert triggered: the device's state is lost"):
        pending.result()
    module.failure = None
    with pytest.raises(DeviceLost, match="device-side assert"):
        device.put(np.arange(2))
    module.failure = RuntimeError("CUDA error: device-side assert triggered")
    with caplog.at_level(logging.WARNING):
        device.close()
    assert "closed after a failure" in caplog.text


def test_a_failing_step_is_an_error_and_no_more(device: AcceleratorDevice) -> None:
    def wrong(kv: Any, inputs: Tensors) -> tuple[Any, Tensors]:
        raise ValueError("a shape that does not fit")

    with pytest.raises(PlatformError, match="ValueError: a shape that does not fit"):
        device.compile(wrong, BUCKET)(None, {})
    assert device.get(device.put(np.arange(2))).result().tolist() == [0, 1]


def test_closing_gives_the_stream_back(tmp_path: Path, module: fake.FakeModule) -> None:
    before = module.current_stream()
    device = CUDA.open(tmp_path, module=module)[0].open(0, {})
    assert module.current_stream() is not before
    device.close()
    device.close()
    assert module.current_stream() is before
    with pytest.raises(PlatformError, match="closed"):
        device.compile(double, BUCKET)


@pytest.mark.parametrize(
    ("text", "kind"),
    [("it is LOST now", "lost"), ("out of memory", "memory"), ("no kernel image", "other"), ("", "other")],
)
def test_errors_are_classified_by_their_text(text: str, kind: str) -> None:
    error_patterns = ErrorPatterns(lost=("is lost",))
    assert error_patterns.kind(RuntimeError(text)) == kind
    assert error_patterns.kind(ValueError("is lost")) == "other", "not an error of the runtime"
    assert error_patterns.kind(MemoryError()) == "memory"


def test_the_cause_of_an_error_is_the_first() -> None:
    first, then = ValueError("first\nadvice"), RuntimeError("then")
    then.__context__ = first
    assert root_cause(then) is first
    assert root_cause(first) is first
    assert first_line(first) == "first"
    assert first_line(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"thread": 1}, "unknown option 'thread'; there are dtype, graph_tokens"),
        ({"threads": 4}, "option threads does not apply"),
        ({"dtype": "int4"}, "option dtype is 'int4': choose one of float32, bfloat16, float16"),
        ({"graph_tokens": -1}, "option graph_tokens is -1"),
        ({"graph_tokens": "many"}, "option graph_tokens is 'many'"),
        ({"batch_invariant": 2}, "option batch_invariant is 2"),
        ({"world_size": 0}, "option world_size is 0"),
        (
            {"rank": 2, "world_size": 2, "rendezvous": "tcp://127.0.0.1:1"},
            "rank is 2: with world_size 2 it is at most 1",
        ),
        ({"world_size": 2}, "option rendezvous is ''"),
    ],
)
@pytest.mark.parametrize("vendor", VENDORS, ids=lambda v: v.name)
def test_wrong_options_are_named(vendor: Any, options: dict[str, Any], said: str, tmp_path: Path) -> None:
    platform, _ = vendor.open(tmp_path)
    with pytest.raises(PlatformError, match=said):
        platform.open(0, options)


def test_a_device_that_cannot_be_opened_gives_the_reason(tmp_path: Path) -> None:
    platform, module = CUDA.open(tmp_path)
    with pytest.raises(PlatformError, match="device 2 was requested; devices here: 2"):
        platform.open(2, {})
    module.device_count = lambda: 1 // 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        platform.open(0, {})

    def broken() -> int:
        raise RuntimeError("driver too old")

    module.device_count = broken  # type: ignore[method-assign]
    with pytest.raises(PlatformError, match="device 0 cannot be opened: driver too old"):
        platform.open(0, {})


def test_operators_that_are_missing_are_by_reference_and_say_why(tmp_path: Path, module: fake.FakeModule) -> None:
    source = fake.operators_of(module, "linear", "rms_norm")
    device = CUDA.open(tmp_path, module=module, source=source)[0].open(0, {})
    bound = binding(device)
    assert bound.tags["linear"] == "recorded reference"
    assert bound.tags["sample"] == "reference"
    assert bound.reasons["sample"] == "not in the fake's table"
    assert not device.capabilities().deterministic, "a reference on a device is not batch-invariant"
    device.close()


@pytest.mark.parametrize(("options", "said"), [({}, True), ({"batch_invariant": 0}, False)])
def test_determinism_follows_the_tiles(options: dict[str, Any], said: bool, tmp_path: Path) -> None:
    device = CUDA.open(tmp_path)[0].open(0, options)
    assert device.capabilities().deterministic is said
    assert device.capabilities() is device.capabilities()
    device.close()


def test_a_dtype_that_the_chip_lacks_is_refused(tmp_path: Path) -> None:
    turing = fake.FakeModule(fake.SimpleNamespace(name="T4", major=7, minor=5, multi_processor_count=40))
    with pytest.raises(PlatformError, match="'bfloat16', but this device computes in float16, float32"):
        CUDA.open(tmp_path, module=turing)[0].open(0, {"dtype": "bfloat16"})


def test_providers_are_reported(device: AcceleratorDevice) -> None:
    assert device.provider_versions() == {"FlashInfer": "not installed"}
    assert device.why_uncaptured() == ""
    assert device.extension(CaptureReason) is device


def test_a_group_needs_a_world(device: AcceleratorDevice) -> None:
    assert device.communicator([0]).all_reduce(3) == 3
    with pytest.raises(PlatformError, match="a group of 2 ranks"):
        device.communicator([0, 1])


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda v: v.name)
def test_ranks_meet_in_the_vendors_collectives(vendor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(World, "communicator", lambda self, group, backend: asked.append((tuple(group), backend)))
    meeting = {"rank": 1, "world_size": 2, "rendezvous": f"file://{tmp_path}/meeting"}
    device = vendor.open(tmp_path)[0].open(1, meeting)
    device.communicator([0, 1])
    assert asked == [((0, 1), "xccl" if vendor.name == "xpu" else "nccl")]
    assert device.capabilities().collectives == COLLECTIVES | {ALL_TO_ALL}
    assert device.communicator([1]).all_reduce(3) == 3
    device.close()


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda v: v.name)
def test_a_platform_is_a_plugin_and_brings_torchs_own_runtime(vendor: Any) -> None:
    module = importlib.import_module(f"headrace.platforms.{vendor.name}")
    (platform,) = module.headrace_platforms()
    assert (platform.name, platform.api_version) == (vendor.name, API_VERSION)
    assert isinstance(platform, Platform)
    assert platform.runtime().kind == ("xpu" if vendor.name == "xpu" else "cuda")


ABLE = Capabilities(frozenset({"float32", "bfloat16", "quantized"}), frozenset({"float32"}))
CHIP = TritonChip(fp8="ocp")


def test_without_triton_everything_is_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    table, why = triton_operators(ABLE, CHIP, AcceleratorOptions())
    assert not table
    assert "triton is not installed" in why
    assert missing_operators(table) == [spec.name for spec in OPS]


class Named:
    tag = "triton"

    def __init__(self, name: str) -> None:
        self.name, self.packed = name, 0

    def __call__(self, *args: Any) -> str:
        return self.name

    def pack(self, weight: Any) -> None:
        self.packed += 1


def test_the_triton_table_is_asked_with_the_chips_data(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[LaunchConfig] = []

    def operators(config: LaunchConfig) -> dict[str, Named]:
        asked.append(config)
        return {name: Named(str(config.dtype).removeprefix("torch.")) for name in ("embedding", "linear")}

    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("importlib.import_module", lambda name: fake.SimpleNamespace(operators=operators))
    table, _ = triton_operators(ABLE, CHIP, AcceleratorOptions(dtype="float32", batch_invariant=False))
    assert asked == [LaunchConfig(torch.float32, "ocp", batch_invariant=False)]
    assert isinstance(table["embedding"], Named)
    table, _ = triton_operators(ABLE, CHIP, AcceleratorOptions())
    assert isinstance(table["embedding"], FollowsTable)
    assert table["linear"]() == "bfloat16", "the usual one"


def test_an_embedding_follows_its_table() -> None:
    forms = {name: Named(name) for name in ("float32", "bfloat16")}
    embedding = FollowsTable(forms, "bfloat16")
    weights = {name: fake.SimpleNamespace(scheme=name) for name in ("float32", "bfloat16", "gguf_q4")}
    found = {name: embedding(None, weight, 1.0) for name, weight in weights.items()}  # type: ignore[arg-type]
    assert found == {"float32": "float32", "bfloat16": "bfloat16", "gguf_q4": "bfloat16"}
    embedding.pack(weights["float32"])  # type: ignore[arg-type]
    assert (forms["float32"].packed, forms["bfloat16"].packed) == (1, 0)
    assert embedding.tag == "triton"
