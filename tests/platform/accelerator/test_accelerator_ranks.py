"""Two ranks on fake devices of every vendor: a split model in captured steps, its collectives nodes of the graph."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_accelerator as fake
import pytest
import torch
from fake_machines import VENDORS, Vendor
from torch.utils._python_dispatch import _disable_current_modes

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.kernels.registry import OPS, OPTIONAL, bind
from headrace.models.sharding import Shard
from headrace.platforms import torch_communicator
from headrace.platforms.accelerator.triton_operators import triton_operators
from headrace.quant.weights import dense

SIZE = 2
CLASSES = {"cuda": "ProcessGroupNCCL", "rocm": "ProcessGroupNCCL", "xpu": "ProcessGroupXCCL"}
IDS = [5, 17, 80, 33, 2, 9, 64, 71, 12, 12, 90, 41]


class Meeting:
    """Where the ranks' threads exchange tensors."""

    def __init__(self, modules: Sequence[fake.FakeModule]) -> None:
        self.modules = modules
        self.captured = 0
        self._barrier = threading.Barrier(SIZE, timeout=300)
        self._parts: list[torch.Tensor] = [torch.empty(0)] * SIZE

    def exchange(self, rank: int, x: torch.Tensor) -> list[torch.Tensor]:
        self._parts[rank] = x.clone()
        self._barrier.wait()
        found = list(self._parts)
        self._barrier.wait()
        return found


def group_class(meeting: Meeting) -> type:
    class Group:
        """A vendor's process group: a node of the graph while a step is captured."""

        Options = SimpleNamespace

        def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
            self._rank, self._module = rank, meeting.modules[rank]

        def allreduce(self, tensors: list[torch.Tensor]) -> Any:
            (out,) = tensors
            return self._node(out, lambda: out.copy_(sum(meeting.exchange(self._rank, out))))

        def _allgather_base(self, out: torch.Tensor, source: torch.Tensor) -> Any:
            return self._node(out, lambda: out.copy_(torch.cat(meeting.exchange(self._rank, source))))

        def alltoall_base(self, out: torch.Tensor, source: torch.Tensor, *sizes: list[int]) -> Any:
            """Equal parts, as no sizes are given."""
            assert sizes == ([], [])
            return self._node(out, lambda: out.copy_(torch.cat(self._own(meeting.exchange(self._rank, source)))))

        def _own(self, sent: list[torch.Tensor]) -> list[torch.Tensor]:
            return [x.tensor_split(SIZE)[self._rank] for x in sent]

        def _node(self, out: torch.Tensor, work: Callable[[], Any]) -> Any:
            def run() -> None:
                work()

            recorder = self._module.recorder
            if recorder is None:
                run()
            else:
                meeting.captured += 1
                with _disable_current_modes():
                    recorder._remember([out])
                recorder.operator(run, (), {})
            return SimpleNamespace(wait=lambda: None)

        def abort(self) -> None:
            pass

    return Group


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_a_split_model_is_captured_with_its_collectives(
    vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "engine"))
    tiny_models, harness = importlib.import_module("tiny_models"), importlib.import_module("parallel_harness")
    tiny_models.save("qwen3-bias-tied", tmp_path / "model")
    modules = [fake.FakeModule(vendor.chip, vendor.chip, graph=vendor.graph) for _ in range(SIZE)]
    meeting = Meeting(modules)
    monkeypatch.setattr(torch_communicator.distributed, CLASSES[vendor.name], group_class(meeting), raising=False)

    def logits(rank: int, size: int, module: fake.FakeModule) -> torch.Tensor:
        platform, _ = vendor.open(tmp_path / f"{size}-{rank}", module=module)
        ranks = {"rank": rank, "world_size": size, "rendezvous": f"file://{tmp_path}/meeting"}
        device = platform.open(rank, {"dtype": "float32", "graph_tokens": 64, **(ranks if size > 1 else {})})
        group = device.communicator(range(size)) if size > 1 else None
        model = open_checkpoint(tmp_path / "model").build(bind(device), 64, shard=Shard(rank, size), group=group)
        found: torch.Tensor = harness.greedy(device, model, list(IDS), 4)
        device.close()
        return found

    whole = logits(0, 1, fake.FakeModule(vendor.chip, graph=vendor.graph))
    with ThreadPoolExecutor(SIZE) as pool:
        futures = [pool.submit(logits, rank, SIZE, modules[rank]) for rank in range(SIZE)]
        first, second = (future.result(300) for future in futures)
    assert torch.equal(first, second)
    assert harness.nmse(first, whole) < 1e-10
    assert torch.equal(first.argmax(-1), whole.argmax(-1))
    # The embedding, two products a layer, the logits: once a captured step, of which each rank has as many.
    graphs = [len(module.graphs) for module in modules]
    assert graphs[0] == graphs[1] > 0
    assert meeting.captured == sum(graphs) * (1 + 2 * 3 + 1)
    assert all(sum(graph.replays for graph in module.graphs) > 0 for module in modules)


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_complete_experts_over_a_vendors_collectives(
    vendor: Vendor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In captured steps, as nodes: three collectives a layer, attention's sum, the experts' results and the columns."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "engine"))
    models, harness = importlib.import_module("moe_models"), importlib.import_module("parallel_harness")
    models.save_moe("qwen3_moe", tmp_path / "model")
    modules = [fake.FakeModule(vendor.chip, vendor.chip, graph=vendor.graph) for _ in range(SIZE)]
    meeting = Meeting(modules)
    monkeypatch.setattr(torch_communicator.distributed, CLASSES[vendor.name], group_class(meeting), raising=False)

    def logits(rank: int, size: int, module: fake.FakeModule) -> torch.Tensor:
        table = {spec.name: fake.RecordedOperator(module, spec.reference) for spec in (*OPS, *OPTIONAL)}
        source = lambda capabilities, chip, options: (table, "")  # noqa: E731
        platform, _ = vendor.open(tmp_path / f"{size}-{rank}", module=module, source=source)
        ranks = {"rank": rank, "world_size": size, "rendezvous": f"file://{tmp_path}/meeting"}
        device = platform.open(rank, {"dtype": "float32", "graph_tokens": 64, **(ranks if size > 1 else {})})
        group = device.communicator(range(size)) if size > 1 else None
        shard = Shard(rank, size, expert_parallel=size > 1)
        model = open_checkpoint(tmp_path / "model").build(bind(device), 64, shard=shard, group=group)
        found: torch.Tensor = harness.greedy(device, model, list(IDS), 4)
        device.close()
        return found

    whole = logits(0, 1, fake.FakeModule(vendor.chip, graph=vendor.graph))
    with ThreadPoolExecutor(SIZE) as pool:
        first, second = (f.result(300) for f in [pool.submit(logits, r, SIZE, modules[r]) for r in range(SIZE)])
    assert torch.equal(first, second)
    assert harness.nmse(first, whole) < 1e-10
    assert torch.equal(first.argmax(-1), whole.argmax(-1))
    graphs, layers = [len(module.graphs) for module in modules], 3
    assert graphs[0] == graphs[1] > 0
    assert meeting.captured == sum(graphs) * (1 + 3 * layers + 1)
    assert all(sum(graph.replays for graph in module.graphs) > 0 for module in modules)


def test_the_triton_embedding_of_a_part_gives_zeros_for_ids_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "triton"))
    importlib.import_module("triton_interpret").interpreted()
    device = VENDORS[0].open(tmp_path, source=triton_operators)[0].open(0, {})
    whole = torch.arange(64.0).view(8, 8).bfloat16()
    ids = torch.tensor([0, 3, 7, 2, 5], dtype=torch.int32)
    found = bind(device).embedding(ids, dense(whole[2:5]), 2.0, first_row=2)
    inside = ((ids >= 2) & (ids < 5)).unsqueeze(1)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, torch.where(inside, 2 * whole[ids.long()], 0.0))
    device.close()
