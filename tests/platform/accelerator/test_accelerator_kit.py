"""The conformance kit over each platform's own code, on the fake device: with captured steps and without."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_machines import VENDORS, Vendor
from kit_parts import PARTS, PartOfKit
from torch import distributed

from headrace.conformance import run
from headrace.conformance.tiny import Serving, TinyModel, requests
from headrace.platforms import torch_communicator
from headrace.platforms.accelerator.device import AcceleratorDevice
from headrace.types import QUANT_FORMATS


class HostGroup(distributed.ProcessGroupGloo):
    """A vendor's collectives on tensors of the host."""

    Options = SimpleNamespace

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        super().__init__(store, rank, size, timedelta(seconds=60))


@pytest.mark.parametrize("tiers", PARTS, ids=lambda tiers: tiers[-1])
@pytest.mark.parametrize("vendor", VENDORS, ids=lambda v: v.name)
def test_the_kit_is_green(
    vendor: Vendor, tiers: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ProcessGroupXCCL" if vendor.name == "xpu" else "ProcessGroupNCCL"
    monkeypatch.setattr(torch_communicator.distributed, name, HostGroup, raising=False)
    platform, module = vendor.open(tmp_path)
    report = run(PartOfKit(platform, options={"graph_tokens": 4096}, examples=4, tiers=tiers))
    assert report.ok, report.table()
    assert {outcome.tier for outcome in report.outcomes} == set(tiers)
    skipped = [outcome for outcome in report.outcomes if outcome.result == "skipped"]
    assert all("the optional operator" in outcome.detail for outcome in skipped), report.table()
    if "operators" in tiers:
        assert {m.dtype for m in report.measured} == {"float32", "bfloat16", "float16"} | QUANT_FORMATS
    if "determinism" in tiers:
        placed = [one.result for one in report.outcomes if one.name.startswith("test_drafts_of_")]
        assert placed == ["passed", "passed", "passed"]
        assert sum(graph.replays for graph in module.graphs) > 100


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda v: v.name)
def test_captured_steps_answer_as_eager_ones_do(vendor: Vendor, tmp_path: Path) -> None:
    answers = []
    for tokens in (0, 512):
        platform, module = vendor.open(tmp_path)
        device = platform.open(0, {"graph_tokens": tokens})
        assert isinstance(device, AcceleratorDevice)
        answers.append(Serving(device, TinyModel(device)).run(requests(6, 1.0)))
        assert bool(module.graphs) == bool(tokens)
        device.close()
    assert answers[0] == answers[1]
