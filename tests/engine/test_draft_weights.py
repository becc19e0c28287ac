"""Drafters with quantised weights change no bit, and take the memory that is planned for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from block_draft_checkpoints import save as save_block_draft
from draft_engine import save_draft, watch
from engine_harness import Answer, alone, config_of, engine, idle, together
from test_draft_heads import TOKENS, save_target_with_heads
from test_engine_bits import mixed, same

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.config import Config
from headrace.engine.block_loading import find_block_draft
from headrace.engine.dry_run import plan_engine
from headrace.engine.head_loading import find_head
from headrace.errors import ConfigError
from headrace.kernels.registry import bind
from headrace.platforms.cpu.native import missing
from headrace.plugins import discover

COUNT = 4


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with a head of its own, and a drafter of each kind beside it."""
    path = save_target_with_heads(tmp_path_factory.mktemp("target"), "mimo")
    save_draft(path / "draft")
    return path


def method_of(name: str, target: Path, tiny_llama: Path, folder: Path) -> tuple[str, Path]:
    """(`--speculate`, the model that it drafts for)"""
    if name in ("dflash", "dspark"):
        layout = "zlab" if name == "dflash" else "dspark"
        return f"{name}:{save_block_draft(layout, folder / name)}", tiny_llama
    return {"eagle3": f"eagle3:{target / 'head'}", "mtp": "mtp", "draft": f"draft:{target / 'draft'}"}[name], target


@pytest.fixture(scope="module")
def wanted(target: Path, tiny_llama: Path) -> dict[Path, list[Answer]]:
    return {path: alone(path, mixed(COUNT, max_tokens=TOKENS)) for path in (target, tiny_llama)}


@pytest.mark.parametrize("name", ["eagle3", "mtp", "dflash", "dspark", "draft"])
def test_answers_keep_their_bits(
    name: str,
    target: Path,
    tiny_llama: Path,
    wanted: dict[Path, list[Answer]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = watch(monkeypatch)
    method, model = method_of(name, target, tiny_llama, tmp_path)

    async def main() -> None:
        async with engine(model, speculate=method, drafts="int8") as client:
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted[model])
            await idle(client)

    asyncio.run(main())
    counts = {one.method: sum(one.drafted) for one in built.engines[-1].core.stats().speculation.methods}
    assert counts[name] > 10


def quantised(config: Config) -> Config:
    """The same, with the target's own weights as int4."""
    return config.model_copy(update={"model": config.model.model_copy(update={"quantize": "int4"})})


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("name", ["eagle3", "dflash", "draft"])
def test_the_plan_has_the_memory_of_the_narrow_weights(
    name: str, target: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    method, model = method_of(name, target, tiny_llama, tmp_path)
    stored = plan_engine(quantised(config_of(model, speculate=method, drafts="none")))
    narrow = plan_engine(quantised(config_of(model, speculate=method)))
    assert (stored.draft_quantization, narrow.draft_quantization) == ("none", "int8")
    reason = "draft_quantization int8: the model's own weights are quantised"
    assert reason in narrow.reasons
    assert reason not in stored.reasons
    assert narrow.draft_bytes < stored.draft_bytes
    assert plan_engine(config_of(model, speculate=method)).draft_quantization == "none"


def planned_and_loaded(model: Path, speculate: str, find: Callable[..., Any]) -> dict[str, tuple[int, int]]:
    """The bytes of a drafter's weights by precision: what the plan has, and what loading them counts."""
    checkpoint = open_checkpoint(model)
    platform, _ = discover().select_platform("cpu")
    device = platform.open(0, {"threads": 1})
    found = dict[str, tuple[int, int]]()
    try:
        ops = bind(device)
        weights = checkpoint.build(ops, 64).weights
        for kind in ("none", "int8"):
            source = find(config_of(model, speculate=speculate, drafts=kind), checkpoint, device)
            assert source is not None
            source.max_model_len = 64
            source.load(device, ops, weights, lambda weight, operators: weight, lambda vector: vector)
            found[kind] = source.total_bytes, source.precision.loaded
    finally:
        device.close()
    return found


def test_the_planned_bytes_are_those_that_are_loaded(target: Path) -> None:
    """Up to the scales of parts of a matrix: in so small a head 1 % of what is saved."""
    found = planned_and_loaded(target, f"eagle3:{target / 'head'}", find_head)
    planned, loaded = (before - after for before, after in zip(found["none"], found["int8"], strict=True))
    assert planned == pytest.approx(loaded, rel=0.02)


def test_the_plan_of_a_block_drafter_has_both_copies_of_its_keys_and_values(tiny_llama: Path, tmp_path: Path) -> None:
    """The text's are computed by matrices of their own. Files have headers and norms, too."""
    drafter = save_block_draft("zlab", tmp_path / "dflash")
    found = planned_and_loaded(tiny_llama, f"dflash:{drafter}", find_block_draft)
    planned, loaded = (before - after for before, after in zip(found["none"], found["int8"], strict=True))
    assert planned == pytest.approx(loaded, rel=0.02)
    planned, loaded = found["none"]
    assert loaded <= planned < 1.1 * loaded


def test_the_log_says_what_was_loaded(target: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with caplog.at_level(logging.INFO):
            async with engine(target, speculate=f"eagle3:{target / 'head'}", drafts="int8"):
                pass

    asyncio.run(main())
    assert f"drafts by eagle3 of {target / 'head'}: weights int8, 0.1 MB" in caplog.text


@pytest.mark.parametrize("speculate", ["ngram", None])
def test_a_precision_of_nothing_is_refused(speculate: str | None, tiny_llama: Path) -> None:
    why = rf"--draft-quantization int8: --speculate {speculate or 'is not given'}.*leave it out"
    with pytest.raises(ConfigError, match=why):
        plan_engine(config_of(tiny_llama, speculate=speculate, drafts="int8"))
    plan_engine(config_of(tiny_llama, speculate=speculate, drafts="none"))
