"""Tiers with drafters: what a drafter keeps in the blocks comes back with them, and gives the same drafts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from block_draft_checkpoints import save
from draft_engine import Built, save_draft, watch
from engine_harness import Answer, GroupingClient, alone, answer, engine, idle, in_turn
from plain_heads import add_mtp, save_eagle3
from test_draft_heads import save_target
from test_engine_bits import mixed, same
from test_tier_bits import tier
from test_transfer_bits import figures, given, taken

from headrace.speculation.model_speculator import ModelDrafts

COUNT, TOKENS = 6, 12
METHODS = ("eagle3", "mtp", "dflash", "draft")
Made = dict[tuple[tuple[int, ...], int], list[int]]
"""(Tokens of a sequence, number of drafts) → the drafts."""


@dataclass(frozen=True)
class Model:
    """A target, a drafter for it, and the answers of the target alone."""

    target: Path
    speculate: str
    wanted: list[Answer]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> dict[str, Model]:
    """By method."""
    path = tmp_path_factory.mktemp("target")
    save_target(path)
    add_mtp(path, "deepseek")
    save_eagle3(path / "eagle3", "A")
    save("zlab", path / "dflash")
    save_draft(path / "draft")
    expected = {target: alone(target, mixed(COUNT, max_tokens=TOKENS)) for target in (path, tiny_llama)}
    return {
        method: Model(target, method if method == "mtp" else f"{method}:{path / method}", expected[target])
        for method in METHODS
        for target in (tiny_llama if method == "dflash" else path,)
    }


def watched(built: Built) -> Made:
    """The drafts that the last engine makes from now on."""
    one, found = built.engines[-1], Made()
    model: Any = one.head or one.blocks or built.model
    draft = model.draft

    def remember(asked: Sequence[tuple[str, int]]) -> ModelDrafts:
        keys = [(tuple(model._sequences[name].tokens), count) for name, count in asked]
        drafts: ModelDrafts = draft(asked)
        found.update(zip(keys, map(list, drafts.tokens), strict=True))
        return drafts

    model.draft = remember
    return found


async def asked(client: GroupingClient, built: Built, wanted: list[Answer]) -> Made:
    made = watched(built)
    same(await in_turn(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
    return made


def alike(one: Made, other: Made) -> None:
    """The number of drafts of a round follows from when results are read, so it may differ: fewer drafts for the same
    tokens are the first of more."""
    both = one.keys() & other.keys()
    assert {key: one[key] for key in both} == {key: other[key] for key in both}
    most, others = longest(one), longest(other)
    compared = most.keys() & others.keys()
    assert len(compared) > 10
    for tokens in compared:
        count = min(len(most[tokens]), len(others[tokens]))
        assert most[tokens][:count] == others[tokens][:count]


def longest(made: Made) -> dict[tuple[int, ...], list[int]]:
    """The most drafts for the tokens of a sequence, of those that have some."""
    return {tokens: drafts for (tokens, _), drafts in sorted(made.items(), key=lambda one: len(one[1])) if drafts}


@pytest.mark.parametrize("method", METHODS)
def test_drafts_after_a_restart(
    models: dict[str, Model], method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, built = models[method], watch(monkeypatch)
    target, wanted, options = model.target, model.wanted, {"disk": f"{tmp_path}:1GiB", "speculate": model.speculate}

    async def main() -> None:
        async with engine(target, **options) as client:
            cold = await asked(client, built, wanted)
            await asked(client, built, wanted)
            await idle(client)
        async with engine(target, **options) as client:
            alike(await asked(client, built, wanted), cold)
            stats = tier(await idle(client), "disk")
            assert stats.hits > 0
            assert stats.failures == 0

    asyncio.run(main())


@pytest.mark.parametrize(("method", "block"), [("eagle3", 32), ("dflash", 32)])
def test_drafts_from_another_engines_blocks(
    models: dict[str, Model], method: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which are of another size."""
    model, built = models[method], watch(monkeypatch)
    target, wanted, options = model.target, model.wanted, {"connector": "memory", "speculate": model.speculate}

    async def main() -> None:
        async with engine(target, **options) as giver:
            cold = watched(built)
            expected = await in_turn(giver, [given(one) for one in mixed(COUNT, max_tokens=TOKENS)])
            assert len(expected) == COUNT
            same(await in_turn(giver, mixed(COUNT, max_tokens=TOKENS)), wanted)
            async with engine(target, block=block, **options) as taker:
                warm = watched(built)
                same(await in_turn(taker, [taken(one, giver) for one in mixed(COUNT, max_tokens=TOKENS)]), wanted)
                alike(warm, cold)
                stats = figures(await idle(taker), "memory")
                assert stats.hits > 0
                assert stats.failures == 0
            await idle(giver)

    asyncio.run(main())


def test_another_drafter_has_blocks_of_its_own(
    models: dict[str, Model], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On the disk they are another layout; another engine refuses them with both sides' drafters."""
    model, one = models["dflash"], mixed(COUNT, max_tokens=TOKENS)[2]

    async def main() -> None:
        disk = f"{tmp_path}:1GiB"
        async with engine(model.target, connector="tcp", disk=disk, speculate=model.speculate) as giver:
            await answer(giver, given(one))
            async with engine(model.target, connector="tcp", disk=disk) as taker:
                found = await answer(taker, taken(one, giver))
                same([found], model.wanted[2:3])
                assert found.usage.cached_tokens == 0
                await idle(taker)
            await idle(giver)

    asyncio.run(main())
    assert any("the drafter none and this engine dflash" in record.message for record in caplog.records)
