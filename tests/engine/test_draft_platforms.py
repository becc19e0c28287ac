"""A draft model on devices of every kind: by reference, with static shapes and donated buffers, with captured steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from draft_engine import save_draft, speculate_always
from engine_harness import config_of
from fake_machines import VENDORS
from fake_xla import FakeXla
from test_draft_heads import save_target
from test_head_platforms import _tpu, answers, drafted, fail_a_step, requests, serve

from headrace.engine.draft_depth import drafts_of
from headrace.engine.head_passes import HeadPasses
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


def test_a_drafter_whose_cache_was_lost_with_the_targets_drafts_again(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pass that is refused takes no buffer, so no answer suffers. Later its answers, and how many of its drafts are
    right, are those from before."""
    speculate_always(monkeypatch, 2)
    xla, following, broken = FakeXla(), HeadPasses.following, [False]

    def failing(passes: HeadPasses, step: Any, depth: int) -> Any:
        if broken[0]:
            xla.failure = RuntimeError("INTERNAL: the program was refused")
        return following(passes, step, depth)

    monkeypatch.setattr(HeadPasses, "following", failing)
    device = _tpu(tmp_path, "float32", xla)
    (wanted, _), engine = answers(device, target, f"draft:{target / 'small'}")
    assert engine.draft is not None
    model, whole = engine.draft.model, drafted(engine)
    broken[0] = True
    assert serve(engine, requests()) == wanted
    broken[0], before = False, drafted(engine)
    assert before - whole < 10
    lost = model._passes._kv
    fail_a_step(engine, xla)
    assert model._passes._kv is not lost
    assert serve(engine, requests()) == wanted
    assert drafted(engine) > before + 10
    assert (model.failures, model._sequences) == (1, {})
    assert caplog.text.count("drafts again") == 1
    device.close()
