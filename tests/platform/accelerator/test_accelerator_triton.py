"""The Triton operators on a platform's own code: bound by its data, and captured, which no read on the host would
survive."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import fake_accelerator as fake
import numpy as np
import pytest
import torch
from fake_machines import VENDORS, Vendor

from headrace.cli.doctor_facts import operator_facts
from headrace.cli.speculation_facts import add_depths
from headrace.conformance.tiny import Serving, TinyModel, requests
from headrace.engine.placed_steps import count_drafts, place_drafts
from headrace.kernels.ngram.generate import PlacedStep, draw_step
from headrace.kernels.ops import Batch
from headrace.kernels.registry import DRAFTING, HEAD_DRAFTING, OPS, OPTIONAL, binding
from headrace.kernels.weight import Weight
from headrace.platforms.accelerator.accelerator_options import AcceleratorOptions
from headrace.platforms.accelerator.triton_operators import FollowsTable, triton_operators
from headrace.platforms.cuda.cuda_chips import CudaProperties, capabilities, triton_chip
from headrace.platforms.torch_device import TorchDevice
from headrace.types import GIVEN, ON_DEVICE, Bucket, Capabilities

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "triton"))
    importlib.import_module("triton_interpret").interpreted()
    yield
    sys.modules.pop("triton_interpret", None)


H200 = CudaProperties("H200", 9, 0, 132)


def test_every_operator_is_bound_for_a_chip() -> None:
    table, _ = triton_operators(capabilities(H200), triton_chip(H200), AcceleratorOptions())
    assert {spec.name for spec in OPS} <= set(table) <= {spec.name for spec in (*OPS, *OPTIONAL)}
    assert isinstance(table["embedding"], FollowsTable)


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_the_doctor_tells_that_steps_with_drafts_overlap(vendor: Vendor, tmp_path: Path) -> None:
    operators = operator_facts(vendor.open(tmp_path, source=triton_operators)[0], [])
    assert operators is not None
    by_name = {one["name"]: one["implementation"] for one in operators["optional"]}
    assert {by_name[spec.name] for spec in (*DRAFTING, *HEAD_DRAFTING)} == {"triton"}
    facts = [{"name": name} for name in ("ngram", "eagle3", "mtp")]
    add_depths(facts, operators)
    assert [fact["depth"] for fact in facts] == [2, 2, 2]


def test_an_embedding_keeps_the_type_it_is_stored_in(tmp_path: Path) -> None:
    device = VENDORS[0].open(tmp_path, source=triton_operators)[0].open(0, {})
    bound = binding(device)
    assert set(bound.tags.values()) == {"triton"}
    ids = torch.tensor([1, 0], dtype=torch.int32)
    for name in ("float32", "bfloat16"):
        table = torch.arange(32.0).view(2, 16).to(getattr(torch, name))
        weight = Weight(name, (2, 16), {"weight": table}, lambda weight: weight.tensors["weight"])
        found = bound.embedding(ids, weight, 1.0)
        assert found.dtype == table.dtype
        assert torch.equal(found, table.flip(0))
    device.close()


def test_captured_steps_place_their_drafts(tmp_path: Path) -> None:
    """What a captured step drafts and accepts follows from the lengths that the steps before it left in the history."""
    module = fake.FakeModule(fake.H200)
    platform, _ = VENDORS[0].open(tmp_path, module=module, source=fake.triton_of(module))
    device = platform.open(0, {"dtype": "float32"})
    given = next(filter(_drafting, (draw_step(np.random.default_rng(seed), torch.device("cpu")) for seed in range(99))))
    history, most, size = given.history.clone(), given.most, given.block_size
    own, wanted = history.clone(), {spec.name: spec.reference for spec in DRAFTING}
    ops: Any = binding(device)

    def step(kv: Any, inputs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        placed = place_drafts(ops, inputs, most, size, of_head=False)
        return kv, {**placed, **count_drafts(ops, {**inputs, **placed}, inputs["target"])}

    executable = device.compile(step, Bucket(64, 8, 64, 16))
    batch = {field.name: getattr(given.batch, field.name) for field in fields(Batch)}
    lengths = torch.where(given.lengths == GIVEN, GIVEN, 20).int()
    accepted = []
    for right in (True, False, True):
        drafts = wanted["ngram"](given.batch, lengths, history, most)
        placed = wanted["place"](given.batch, lengths, drafts, given.position, history, size)
        target = placed.token_ids.roll(-1)[given.batch.rows.long()] + (not right)
        counts = wanted["accept"](given.batch, lengths, drafts, target, history)
        inputs = {**batch, "position": given.position, "lengths": lengths, "target": target}
        _, found = executable(None, {**inputs, "history": own})
        for name, want in {"drafts": drafts, **placed._asdict(), "counts": counts}.items():
            assert torch.equal(found[name], want), name
        assert torch.equal(own, history)
        accepted.append(int((counts[:, 0] - 1).clamp(min=0).sum()))
        lengths = torch.where(lengths == GIVEN, GIVEN, ON_DEVICE).int()
    assert accepted[1] == 0 < min(accepted[0], accepted[2])
    (graph,) = module.graphs
    assert graph.replays == 2
    device.close()


def _drafting(step: PlacedStep) -> bool:
    """Two sequences at least that the device places, with drafts, and texts that have many matches."""
    fresh = step.batch.query_start.diff()
    return int((fresh[step.lengths != GIVEN] > 2).sum()) > 1 and int(step.history[:, :-1].max()) < 4


@pytest.mark.slow
def test_captured_triton_steps_give_the_references_tokens(tmp_path: Path) -> None:
    module = fake.FakeModule(fake.H200)
    platform, _ = VENDORS[0].open(tmp_path, module=module, source=fake.triton_of(module))
    device = platform.open(0, {"dtype": "float32"})
    plain = TorchDevice(torch.device("cpu"), Capabilities(frozenset({"float32"}), frozenset({"float32"})))
    (request,) = [request for request in requests(9, output=3) if len(request.prompt) == 6]
    found, wanted = (
        Serving(where, TinyModel(where, device.capabilities()), budget=8, seqs=1, blocks=4).run([request])[request.id]
        for where in (device, plain)
    )
    assert found[0] == wanted[0]
    assert found[1] == pytest.approx(wanted[1], abs=1e-4)
    (graph,) = module.graphs
    assert graph.replays == 2
    device.close()
