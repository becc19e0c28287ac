"""The TPU platform's own code on a fake torch-xla: compiled steps, donation, copies, faults, the complete kit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_machines import machine, torch_folder
from fake_xla import GIB, FakeXla
from kit_parts import PARTS, PartOfKit

from headrace.config import Config
from headrace.conformance import run
from headrace.conformance.seeded_drafts import PlacedDrafts
from headrace.conformance.tiny import Serving, TinyModel, requests
from headrace.errors import DeviceLost, OutOfMemory, PlatformError, UnsupportedModel
from headrace.kernels.kv import TorchKV
from headrace.kernels.pallaslib import torch_operators as pallas_table
from headrace.kernels.registry import DRAFTING, HEAD_DRAFTING, OPS, OPTIONAL
from headrace.platforms.cpu.device import CpuDevice
from headrace.platforms.tpu import TpuPlatform, headrace_platforms
from headrace.platforms.tpu.device import TpuDevice
from headrace.resolution import ModelFacts, resolve
from headrace.types import Bucket, KVLayout, LayerKV

BUCKET = Bucket(8, 8, 8, 4)
LAYOUT = KVLayout((LayerKV(2, 16),) * 2, 32, "int8")


def platform(root: Path, xla: FakeXla, **environ: str) -> TpuPlatform:
    folder = torch_folder(root, "2.9.1")
    (folder.parent / "torch_xla").mkdir(exist_ok=True)
    (folder.parent / "torch_xla" / "version.py").write_text("__version__ = '2.9.0'\n")
    files = {
        "sys/bus/pci/devices/0000:00:04.0/vendor": "0x1ae0",
        "sys/bus/pci/devices/0000:00:04.0/device": "0x0063",
        "dev/vfio/0": "",
    }
    return TpuPlatform(machine(root, files, folder, **environ), xla.runtime)


Opened = Callable[..., tuple[TpuDevice, FakeXla]]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made: list[TpuDevice] = []

    def open_(xla: FakeXla | None = None, **options: Any) -> tuple[TpuDevice, FakeXla]:
        xla = xla or FakeXla()
        device = platform(tmp_path, xla).open(0, {"kernels": "xla", **options})
        assert isinstance(device, TpuDevice)
        made.append(device)
        return device, xla

    yield open_
    for device in made:
        device.close()


@pytest.mark.slow
@pytest.mark.parametrize("tiers", PARTS, ids=lambda tiers: tiers[-1])
def test_the_kit_is_green(tiers: tuple[str, ...], tmp_path: Path) -> None:
    """With few calls of each operator: `test_kernels_static` compares the same forms with more."""
    here = platform(tmp_path, FakeXla(), PJRT_DEVICE="CPU")
    report = run(PartOfKit(here, options={"dtype": "float32"}, examples=4, tiers=tiers))
    assert report.ok, report.table()
    assert {outcome.tier for outcome in report.outcomes} == set(tiers)


def test_greedy_and_sampled_tokens_are_the_cpus(opened: Opened) -> None:
    device, xla = opened(dtype="float32")
    host = CpuDevice()
    for temperature in (0.0, 1.0):
        found = Serving(device, TinyModel(device)).run(requests(6, temperature))
        wanted = Serving(host, TinyModel(host, device.capabilities())).run(requests(6, temperature))
        assert {k: v[0] for k, v in found.items()} == {k: v[0] for k, v in wanted.items()}
    host.close()
    assert xla.runs >= 3 * xla.compiled, "a step for each bucket, and copies of blocks"


def test_a_step_is_compiled_once_a_shape(opened: Opened) -> None:
    device, xla = opened()
    calls: list[int] = []

    def step(kv: Any, inputs: Any) -> Any:
        calls.append(len(inputs["x"]))
        return kv, {"y": inputs["x"] + 1, "x": inputs["x"]}

    executable = device.compile(step, BUCKET)
    for length in (3, 5, 3, 5, 3):
        kv, outputs = executable("no cache", {"x": device.put(np.arange(length))})
        assert kv == "no cache"
        assert device.get(outputs["y"]).result().tolist() == list(range(1, length + 1))
        assert device.get(outputs["x"]).result().tolist() == list(range(length)), "an input that comes back"
    assert calls == [3, 5]
    assert device.runtime.compilations() == xla.compiled == 2


def test_a_step_of_nothing_is_not_run(opened: Opened) -> None:
    device, xla = opened()
    x = device.put(np.arange(3))
    constant = torch.ones(2)
    _, outputs = device.compile(lambda kv, i: (kv, {"x": i["x"], "c": constant}), BUCKET)(None, {"x": x})
    assert outputs["x"] is x
    assert outputs["c"] is constant
    assert xla.runs == xla.compiled == device.runtime.compilations() == 0


def test_state_is_donated_where_it_is_replaced_and_nowhere_else(opened: Opened) -> None:
    device, _ = opened()
    kv = device.alloc_kv(LAYOUT, 4)
    history = device.put(np.zeros((2, 8), np.int32))

    def step(kv: Any, inputs: Any) -> Any:
        kv.keys[1] = kv.keys[1] + inputs["one"]
        inputs["history"][0, 0] = 5
        return kv, {"history": inputs["history"], "seen": inputs["history"][0] + 0}

    one = device.put(np.ones(1, np.int8))
    after, outputs = device.compile(step, BUCKET)(kv, {"one": one, "history": history})
    assert isinstance(after, TorchKV)
    assert (kv.keys[1] == 77).all()
    assert (history == 77).all(), "the old ones are dead"
    assert after.keys[0] is kv.keys[0], "what was not replaced was not donated"
    assert (after.keys[1] == 1).all()
    assert outputs["history"][0, 0] == 5
    assert outputs["seen"].tolist() == [5] + [0] * 7


def test_the_tracing_of_a_step_leaves_its_state_alone(opened: Opened) -> None:
    device, xla = opened()
    history = device.put(np.zeros((2, 8), np.int32))
    xla.failure = RuntimeError("INTERNAL: broken")

    def step(kv: Any, inputs: Any) -> Any:
        inputs["history"].add_(1)
        return kv, {"history": inputs["history"]}

    executable = device.compile(step, BUCKET)
    with pytest.raises(PlatformError, match="INTERNAL: broken"):
        executable(None, {"history": history})
    assert not history.any()
    assert (executable(None, {"history": history})[1]["history"] == 1).all()


def test_a_step_that_fails_in_tracing_leaves_nothing_behind(opened: Opened) -> None:
    device, xla = opened()

    def broken(kv: Any, inputs: Any) -> Any:
        inputs["history"].add_(1)
        raise ValueError("no such layer")

    history = device.put(np.zeros((2, 8), np.int32))
    with pytest.raises(PlatformError, match="no such layer"):
        device.compile(broken, BUCKET)(None, {"history": history})
    assert xla._tape is None
    assert not history.any()
    assert xla.compiled == xla.runs == 0


def test_copies_of_blocks_are_padded_to_few_shapes(opened: Opened) -> None:
    device, xla = opened()
    kv = device.alloc_kv(LAYOUT, 16)
    for block in range(16):
        kv.keys[0][block], kv.value_scales[1][block] = block, block
    kv = device.copy_blocks(kv, [1, 2, 3], [2, 1, 5])
    assert [int(kv.keys[0][b, 0, 0, 0]) for b in range(7)] == [0, 2, 1, 3, 4, 3, 6]
    assert kv.value_scales[1][1, 0, 0] == 2
    kv = device.copy_blocks(kv, [4], [6])
    assert xla.compiled == 1
    kv = device.copy_blocks(kv, list(range(1, 10)), [15, *range(1, 9)])
    assert xla.compiled == 2
    assert int(kv.keys[0][15, 0, 0, 0]) == 2
    assert device.copy_blocks(kv, [], []) is kv
    with pytest.raises(PlatformError, match="block 16 of a cache of 16"):
        device.copy_blocks(kv, [1], [16])
    with pytest.raises(PlatformError, match="1 sources and 2 destinations"):
        device.copy_blocks(kv, [1], [2, 3])


def test_memory_is_the_chips_or_the_hosts(opened: Opened) -> None:
    device, xla = opened()
    assert device.memory() == (15 * GIB, 16 * GIB)
    xla.used = 20 * GIB
    assert device.memory() == (0, 16 * GIB)
    xla.used = None
    assert device.memory()[1] > 0


def test_copies_to_the_host(opened: Opened) -> None:
    device, _ = opened()
    x = device.put(np.arange(4, dtype=np.float32))
    pending = device.get(x.to(torch.bfloat16))
    assert pending.result().dtype == np.float32
    assert pending.done()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm\nmore", OutOfMemory),
        ("DATA_LOSS: the chip went away", DeviceLost),
        ("INVALID_ARGUMENT: what", PlatformError),
    ],
)
def test_errors_of_runs(opened: Opened, text: str, kind: type[Exception]) -> None:
    device, xla = opened()
    executable = device.compile(lambda kv, i: (kv, {"y": i["x"] + 1}), BUCKET)
    x = {"x": device.put(np.arange(3))}
    executable(None, x)
    xla.failure = RuntimeError(text)
    with pytest.raises(kind, match=text.splitlines()[0]) as caught:
        executable(None, x)
    assert "more" not in str(caught.value)
    if kind is DeviceLost:
        with pytest.raises(DeviceLost, match="restart the process"):
            executable(None, x)
    else:
        executable(None, x)


class Lost:
    """A tensor whose work has failed, which shows when it is read."""

    def detach(self) -> Lost:
        return self

    def cpu(self) -> torch.Tensor:
        raise RuntimeError("UNAVAILABLE: core halted")


def test_a_loss_that_shows_in_a_copy_ends_the_device(opened: Opened) -> None:
    device, _ = opened()
    with pytest.raises(DeviceLost, match="core halted"):
        device.get(Lost()).result()
    with pytest.raises(DeviceLost):
        device.get(torch.ones(1))


def test_late_tensors_are_launched_before_a_run() -> None:
    xla = FakeXla()
    asked: list[Any] = []
    xla._check_tensor_need_materialization = lambda tensors: [True, False][: len(tensors)]  # type: ignore[method-assign]
    xla._xla_sync_multi = lambda tensors, **how: asked.append((tensors, how))  # type: ignore[method-assign]
    one, two = torch.ones(1), torch.ones(2)
    xla.runtime().settle([one, two])
    assert asked[0][0][0] is one
    assert asked[0][1] == {"devices": [], "wait": False, "sync_xla_data": True}


@pytest.mark.parametrize("constrained", [(), ("r1", "r4")])
def test_drafts_of_the_device_give_the_same_tokens(opened: Opened, constrained: tuple[str, ...]) -> None:
    """In steps of static sizes, with a history that each of them returns anew."""
    device, _ = opened(dtype="float32")
    work = [
        replace(one, params=replace(one.params, allowed_token_ids=(7, 8, 9))) if at % 2 else one
        for at, one in enumerate(requests(6, 0.7, 24))
    ]
    wanted = Serving(device, TinyModel(device)).run(work, constrained)
    drafts = PlacedDrafts(eager=0.9, seed=1)
    found = Serving(device, TinyModel(device), drafts=drafts, placed=8).run(work, constrained)
    assert {name: tokens for name, (tokens, _) in found.items()} == {n: tokens for n, (tokens, _) in wanted.items()}
    assert drafts.ahead > 0
    assert 0 < drafts.accepted < drafts.drafted


def test_float32_is_exact_when_it_is_asked_for(opened: Opened) -> None:
    assert opened()[1].precision == ""
    assert opened(dtype="float32")[1].precision == "highest"


@pytest.mark.parametrize("kernels", ["xla", "auto", "interpret"])
def test_every_operator_is_the_devices_own(opened: Opened, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def some(call: Any, dtype: Any, interpret: bool) -> dict[str, Any]:
        asked.append((call.__name__, dtype, interpret))
        return {"attention": lambda: "mine"}

    monkeypatch.setattr(pallas_table, "operators", some)
    device, _ = opened(kernels=kernels, dtype="bfloat16")
    assert device.alloc_kv(LAYOUT, 2).keys[0].shape[-1] == (16 if kernels == "xla" else 128), "whole lanes"
    features = {"store_features", "load_features", "take_rows", "widen_logits", "correct_logits", "block_conv"}
    features |= {"gather_blocks", "scatter_blocks", "named_logprobs"}
    own = features | {spec.name for spec in (*DRAFTING, *HEAD_DRAFTING)}
    without = {spec.name for spec in OPTIONAL} - own
    assert device.op_reasons() == dict.fromkeys(without, "it is not implemented for XLA")
    assert device.torch_device == torch.device("cpu")
    tags = {spec.name: getattr(device.op(spec), "tag", "") for spec in OPS}
    assert tags.pop("attention") == ("xla" if kernels == "xla" else "pallas")
    assert set(tags.values()) == {"xla"}
    assert asked == ([] if kernels == "xla" else [("call_kernel", torch.bfloat16, kernels == "interpret")])


def test_a_kernel_is_called_with_what_is_no_tensor_by_name() -> None:
    xla = FakeXla()
    found = xla.runtime().call_kernel(lambda x, none, *, by: x * by if none is None else x, torch.ones(2), None, by=3)
    assert found.tolist() == [3, 3]
    assert xla.journal[0][0] == "kernel"


def test_a_closed_device_raises_an_error(opened: Opened) -> None:
    device, _ = opened()
    device.close()
    device.close()
    for call in (lambda: device.get(torch.ones(1)), lambda: device.compile(lambda k, i: (k, i), BUCKET)):
        with pytest.raises(PlatformError, match="closed"):
            call()
    with pytest.raises(PlatformError, match="closed"):
        device.copy_blocks(None, [], [])


def test_a_model_with_experts_is_refused(opened: Opened) -> None:
    device, _ = opened()
    assert "moe" in device.capabilities().missing_operators
    assert "gated_linear" not in device.capabilities().missing_operators, "it is composed"
    facts = ModelFacts((LayerKV(2, 128),) * 2, 64, 100, "bfloat16", (), (frozenset(), frozenset({"moe"})))
    with pytest.raises(UnsupportedModel, match=r"layers 1 need the operator moe, which TPU v5e does not have"):
        resolve(Config(), device.capabilities(), facts, 1 << 34, "TPU v5e")


def test_collectives_are_part_of_the_step(opened: Opened) -> None:
    device, xla = opened(FakeXla(rank=2, ranks=4))
    assert device.capabilities().collectives
    assert device.communicator([2]).all_reduce(5) == 5
    group = device.communicator([0, 2])
    x = torch.arange(4.0)
    assert group.all_reduce(x).tolist() == [0, 2, 4, 6]
    assert len(group.all_gather(x, 0)) == 8
    assert group.reduce_scatter(x, 0).tolist() == [0, 2]
    assert group.broadcast(x, 0).tolist() == [0, 0, 0, 0], "it is another rank's"
    assert group.broadcast(x, 1).tolist() == [0, 2, 4, 6], "the fake adds up equal ranks"
    assert {str(entry[-1]) for entry in xla.journal} == {"[[0, 2], [1, 3]]"}
    with pytest.raises(PlatformError, match="dimension 0 of 3 does not divide among 2"):
        group.reduce_scatter(torch.ones(3), 0)
    for ranks, said in (([0, 1], "rank 2 of 4: cannot"), ([1, 3, 5], "tile"), ([1, 2], "tile"), ([2, 0], "tile")):
        with pytest.raises(PlatformError, match=said):
            device.communicator(ranks)


def test_opening_names_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="no Google PCI device"):
        TpuPlatform(machine(tmp_path / "none", {})).open(0, {})
    here = platform(tmp_path, FakeXla())
    with pytest.raises(PlatformError, match="device 1 was requested; devices here: 1"):
        here.open(1, {})
    with pytest.raises(PlatformError, match="unknown option 'threads'; there are dtype, kernels"):
        here.open(0, {"threads": 1})
    with pytest.raises(PlatformError, match="unknown option 'kernel'; there are dtype, kernels; did you mean kernels"):
        here.open(0, {"kernel": "xla"})
    with pytest.raises(PlatformError, match="option dtype is 'float16': choose one of None, float32, bfloat16"):
        here.open(0, {"dtype": "float16"})
    broken = TpuPlatform(here.machine, lambda: (_ for _ in ()).throw(RuntimeError("no libtpu")))
    with pytest.raises(PlatformError, match="device 0 cannot be opened: no libtpu"):
        broken.open(0, {})


def test_the_platform_registers_itself() -> None:
    (found,) = headrace_platforms()
    assert (found.name, found.api_version) == ("tpu", (1, 0))
