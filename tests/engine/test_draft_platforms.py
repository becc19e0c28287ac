"""A draft model on devices of every kind: by reference, with static shapes and donated buffers, with captured steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from draft_engine import save_draft, speculate_always
from engine_harness import config_of
from fake_machines import VENDORS
from test_draft_heads import save_target
from test_head_platforms import _tpu, answers

from headrace.engine.draft_depth import drafts_of
from headrace.platforms.cpu.device import CpuDevice


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    save_target(path)
    save_draft(path / "small")
    return path


@pytest.fixture(params=["reference", "static", "captured"])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "reference":
        made: Any = CpuDevice(threads=1)
    elif request.param == "static":
        made = _tpu(tmp_path, "float32")
    else:
        made = VENDORS[0].open(tmp_path)[0].open(0, {})
    yield made
    made.close()


def test_answers_are_those_without_drafts(device: Any, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speculate_always(monkeypatch, 2)
    plain, _ = answers(device, target, None)
    speculate = f"draft:{target / 'small'}"
    found, engine = answers(device, target, speculate)
    assert found == plain
    assert engine.draft is not None
    assert engine.draft.model.failures == 0
    overlap = drafts_of(config_of(target, speculate=speculate), device) > 0
    assert overlap != isinstance(device, CpuDevice)
    (totals,) = engine.core.stats().speculation.methods
    assert totals.method == "draft"
    assert sum(totals.drafted) > 10
