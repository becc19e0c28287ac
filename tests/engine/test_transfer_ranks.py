"""Prompts that one engine computes and another continues, of which at least one has several ranks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_harness import Answer, GroupingClient, alone, answer, idle, in_turn, request
from pipeline_harness import pipeline
from test_engine_bits import VOCAB, mixed, same
from test_tier_ranks import ranks
from test_transfer_bits import figures, given, taken
from tiny_models import prompt as random_prompt

from headrace.platforms.cpu.native import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
COUNT = 8


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> list[Answer]:
    return alone(tiny_llama, mixed(COUNT))


async def handed_over(giver: GroupingClient, taker: GroupingClient) -> list[Answer]:
    """The answers of `taker`, with blocks of `giver`, all of which arrive."""
    await in_turn(giver, [given(one) for one in mixed(COUNT)])
    found = await in_turn(taker, [taken(one, giver) for one in mixed(COUNT)])
    await idle(giver)
    stats = figures(await idle(taker), "tcp")
    assert stats.hits > 0
    assert stats.failures == 0
    return found


def test_the_same_split_on_both_sides_keeps_every_bit(tiny_llama: Path) -> None:
    """With blocks of another size besides."""

    async def main() -> None:
        async with (
            ranks(tiny_llama, 2, connector="tcp") as giver,
            pipeline(tiny_llama, 1, 2, connector="tcp", block=32) as taker,
        ):
            expected = await in_turn(giver, mixed(COUNT))
            same(await handed_over(giver, taker), expected)

    asyncio.run(main())


@pytest.mark.parametrize(("giving", "taking"), [(1, 2), (2, 1)])
def test_another_number_of_ranks(tiny_llama: Path, giving: int, taking: int) -> None:
    """The blocks are those of the other engine to the bit. What is computed from them is what this engine computes, in
    whose sums the order of terms is another: the tokens are those of one rank here."""
    one = request(random_prompt(70, VOCAB), max_tokens=9, logprobs=None)
    (expected,) = alone(tiny_llama, [one])

    async def main() -> None:
        async with (
            pipeline(tiny_llama, 1, giving, connector="tcp") as giver,
            pipeline(tiny_llama, 1, taking, connector="tcp") as taker,
        ):
            await answer(giver, given(one))
            found = await answer(taker, taken(one, giver))
            assert found.usage.cached_tokens == 64
            assert found.ids == expected.ids
            await idle(giver)
            assert figures(await idle(taker), "tcp").failures == 0

    asyncio.run(main())


@pytest.mark.parametrize(("giving", "taking"), [(1, 2), (2, 1)])
def test_another_number_of_stages(tiny_llama: Path, wanted: list[Answer], giving: int, taking: int) -> None:
    """Stages change no bit."""

    async def main() -> None:
        async with (
            pipeline(tiny_llama, giving, connector="tcp") as giver,
            pipeline(tiny_llama, taking, connector="tcp") as taker,
        ):
            same(await handed_over(giver, taker), wanted)

    asyncio.run(main())
