"""Speculative decoding changes no bit: every token, logprob and end is that of the engine without drafts."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_harness import Answer, alone, engine, idle, in_turn, request, together
from seeded_drafts import ByRequest, EngineDrafts, EnginePlaced, use
from test_engine_bits import COUNT, VOCAB, WAYS, leave_half, mixed, same
from tiny_models import prompt as random_prompt

from headrace.client.api import GenerateRequest


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> list[Answer]:
    return alone(tiny_llama, mixed(COUNT, max_tokens=20))


def drafts(wanted: list[Answer], right: float, eager: float, seed: int = 0) -> EngineDrafts:
    answers = ByRequest({f"r{at}": one.ids for at, one in enumerate(wanted)})
    return EngineDrafts(answers, right, eager, seed, VOCAB)


@pytest.mark.parametrize(
    "sizes",
    [{}, {"chunk": 16}, {"chunk": 11, "seqs": 3}, {"blocks": 20, "chunk": 24}, {"caching": False}],
    ids=str,
)
@pytest.mark.parametrize(("right", "eager"), [(1.0, 1.0), (0.0, 1.0), (0.7, 0.4)])
def test_any_drafts_in_a_batch_cold_then_warm(
    tiny_llama: Path,
    wanted: list[Answer],
    sizes: dict[str, Any],
    right: float,
    eager: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = use(monkeypatch, lambda: drafts(wanted, right, eager))

    async def main() -> None:
        async with engine(tiny_llama, **sizes) as client:
            same(await together(client, mixed(COUNT, max_tokens=20)), wanted)
            same(await together(client, mixed(COUNT, max_tokens=20)), wanted)
            await idle(client)

    asyncio.run(main())
    found = made[0]
    assert found.drafted > 10
    assert found.accepted == {1.0: found.drafted, 0.0: 0}.get(right, found.accepted)


def test_one_after_the_other(tiny_llama: Path, wanted: list[Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, lambda: drafts(wanted, 0.8, 0.8))

    async def main() -> None:
        async with engine(tiny_llama) as client:
            same(await in_turn(client, mixed(COUNT, max_tokens=20)), wanted)
            same(await in_turn(client, mixed(COUNT, max_tokens=20)[::-1]), wanted[::-1])

    asyncio.run(main())


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_the_methods_with_repeating_prompts(tiny_llama: Path, method: str) -> None:
    """A tiny model repeats itself, so that drafts are found; the policy decides by the times of this machine."""
    requests = [
        request(random_prompt(9, VOCAB) * 4, f"m{at}", max_tokens=60, **WAYS[at % len(WAYS)]) for at in range(10)
    ]
    expected = alone(tiny_llama, requests)

    async def main() -> None:
        async with engine(tiny_llama, speculate=method) as client:
            same(await together(client, requests), expected)
            same(await in_turn(client, requests[:4]), expected[:4])
            await idle(client)

    asyncio.run(main())


def test_requests_that_are_left_free_every_block(
    tiny_llama: Path, wanted: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = use(monkeypatch, lambda: drafts(wanted, 0.8, 0.9))
    rng = random.Random(3)

    async def main() -> None:
        async with engine(tiny_llama, blocks=40, chunk=32) as client:
            for _ in range(12):
                await leave_half(client, mixed(COUNT, max_tokens=20), rng, wanted)
            stats = await idle(client)
            assert stats.scheduler.blocks_held == 0

    asyncio.run(main())
    assert made[0].accepted > 0


@pytest.fixture(scope="module")
def repeating(tiny_llama: Path) -> list[Answer]:
    return alone(tiny_llama, repeats())


def repeats() -> list[GenerateRequest]:
    """Requests in whose text the device finds drafts, of which some are right: few different tokens may come."""
    found = mixed(COUNT, max_tokens=40)
    for at, one in enumerate(found):
        few = {"allowed_token_ids": (65, 66, 67)} if at % 3 else {"logit_bias": ((70, 9.0), (71, 8.0))}
        params = replace(one.params, **({} if at % 5 == 4 else few), stop_token_ids=(67,) if at % 4 == 1 else ())
        found[at] = replace(one, params=params)
    return found


@pytest.mark.parametrize(
    "sizes",
    [{}, {"chunk": 16}, {"chunk": 11, "seqs": 3}, {"blocks": 20, "chunk": 24}, {"caching": False}],
    ids=str,
)
@pytest.mark.parametrize("eager", [1.0, 0.3])
def test_drafts_of_the_device(
    tiny_llama: Path, repeating: list[Answer], sizes: dict[str, Any], eager: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next step is launched before it is known how many of them are right."""
    made = use(monkeypatch, lambda: EnginePlaced(eager, 3))

    async def main() -> None:
        async with engine(tiny_llama, speculate="ngram", **sizes) as client:
            same(await together(client, repeats()), repeating)
            same(await together(client, repeats()), repeating)
            same(await in_turn(client, repeats()[:5]), repeating[:5])
            stats = await idle(client)
            assert stats.scheduler.blocks_held == 0

    asyncio.run(main())
    assert made[0].ahead > 10
    assert 10 < made[0].accepted < made[0].drafted


def test_requests_whose_drafts_the_device_makes_free_every_block(
    tiny_llama: Path, repeating: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = use(monkeypatch, lambda: EnginePlaced(0.9, 5))
    rng = random.Random(4)

    async def main() -> None:
        async with engine(tiny_llama, blocks=40, chunk=32, speculate="ngram") as client:
            for _ in range(8):
                await leave_half(client, repeats(), rng, repeating)
            stats = await idle(client)
            assert stats.scheduler.blocks_held == 0

    asyncio.run(main())
    assert made[0].ahead > 10
