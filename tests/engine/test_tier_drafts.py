"""Tiers with drafters: what a drafter keeps in the blocks comes back with them, and gives the same drafts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
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


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with drafters of all kinds."""
    path = tmp_path_factory.mktemp("target")
    save_target(path)
    add_mtp(path, "deepseek")
    save_eagle3(path / "eagle3", "A")
    save("dflash", path / "dflash")
    save_draft(path / "draft")
    return path


@pytest.fixture(scope="module")
def wanted(target: Path) -> list[Answer]:
    return alone(target, mixed(COUNT, max_tokens=TOKENS))


def speculate(method: str, target: Path) -> str:
    return method if method == "mtp" else f"{method}:{target / method}"


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
    both = one.keys() & other.keys()
    assert len([key for key in both if one[key]]) > 10
    assert {key: one[key] for key in both} == {key: other[key] for key in both}


@pytest.mark.parametrize("method", METHODS)
def test_drafts_after_a_restart(
    target: Path, wanted: list[Answer], method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, options = watch(monkeypatch), {"disk": f"{tmp_path}:1GiB", "speculate": speculate(method, target)}

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


@pytest.mark.parametrize("method", ["eagle3", "dflash"])
def test_drafts_from_another_engines_blocks(
    target: Path, wanted: list[Answer], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, options = watch(monkeypatch), {"connector": "memory", "speculate": speculate(method, target)}

    async def main() -> None:
        async with engine(target, **options) as giver:
            cold = watched(built)
            expected = await in_turn(giver, [given(one) for one in mixed(COUNT, max_tokens=TOKENS)])
            assert len(expected) == COUNT
            same(await in_turn(giver, mixed(COUNT, max_tokens=TOKENS)), wanted)
            async with engine(target, **options) as taker:
                warm = watched(built)
                same(await in_turn(taker, [taken(one, giver) for one in mixed(COUNT, max_tokens=TOKENS)]), wanted)
                alike(warm, cold)
                stats = figures(await idle(taker), "memory")
                assert stats.hits > 0
                assert stats.failures == 0
            await idle(giver)

    asyncio.run(main())


def test_another_drafter_has_blocks_of_its_own(
    target: Path, wanted: list[Answer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On the disk they are another layout; another engine refuses them with both sides' drafters."""
    one = mixed(COUNT, max_tokens=TOKENS)[-1]

    async def main() -> None:
        disk = f"{tmp_path}:1GiB"
        async with engine(target, connector="tcp", disk=disk, speculate=speculate("dflash", target)) as giver:
            await answer(giver, given(one))
            async with engine(target, connector="tcp", disk=disk) as taker:
                found = await answer(taker, taken(one, giver))
                same([found], wanted[-1:])
                assert found.usage.cached_tokens == 0
                await idle(taker)
            await idle(giver)

    asyncio.run(main())
    assert any("the drafter dflash and this engine none" in record.message for record in caplog.records)
