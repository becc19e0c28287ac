"""Prompts that one engine computes and another continues whose blocks have another number of tokens: the same bits as
in one engine."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from engine_harness import Answer, alone, answer, engine, idle, in_turn, request, together
from test_engine_bits import COUNT, VOCAB, mixed, same
from test_transfer_bits import figures, given, info, taken
from tiny_models import prompt as random_prompt


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> list[Answer]:
    return alone(tiny_llama, mixed(COUNT))


@pytest.mark.parametrize(
    ("giving", "taking", "connector"), [(16, 32, "tcp"), (32, 16, "shm"), (64, 16, "memory"), (16, 64, "tcp")]
)
def test_blocks_of_another_size(
    tiny_llama: Path, wanted: list[Answer], giving: int, taking: int, connector: str
) -> None:
    async def main() -> None:
        async with (
            engine(tiny_llama, connector=connector, block=giving) as giver,
            engine(tiny_llama, connector=connector, block=taking) as taker,
        ):
            await in_turn(giver, [given(one) for one in mixed(COUNT)])
            same(await in_turn(taker, [taken(one, giver) for one in mixed(COUNT)]), wanted)
            stats = figures(await idle(taker), connector)
            assert stats.hits > 0
            assert stats.failures == 0
            await idle(giver)

    asyncio.run(main())


@pytest.mark.parametrize(("giving", "taking", "cached"), [(16, 32, 96), (32, 16, 96)])
def test_every_block_that_both_have_in_full_arrives(tiny_llama: Path, giving: int, taking: int, cached: int) -> None:
    """Of 117 tokens one has seven blocks and the other three; a second request begins inside of a block."""
    one = request(random_prompt(117, VOCAB), max_tokens=9)
    beginning = replace(one, id="beginning", prompt=one.prompt[:49])
    (expected,) = alone(tiny_llama, [one])

    async def main() -> None:
        async with (
            engine(tiny_llama, connector="tcp", block=giving) as giver,
            engine(tiny_llama, connector="tcp", block=taking) as taker,
        ):
            await answer(giver, given(one))
            await answer(taker, beginning)
            found = await answer(taker, taken(one, giver))
            same([found], [expected])
            assert found.usage.cached_tokens == cached
            assert figures(await idle(taker), "tcp").hits == (cached - 49 // taking * taking) // taking

    asyncio.run(main())


def test_how_others_reach_an_engine_is_logged_once(tiny_llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "headrace")

    async def main() -> None:
        async with engine(tiny_llama, connector="shm") as giver:
            lines = [one.getMessage() for one in caplog.records]
            at = info(giver).address
            assert len([one for one in lines if at in one]) == 1
            wanted = rf"KV blocks of other engines, and up to \d+ for them at {re.escape(at)}"
            assert any(re.fullmatch(wanted, one) for one in lines)

    asyncio.run(main())


def test_blocks_that_are_still_computed_are_converted_as_they_come(tiny_llama: Path, wanted: list[Answer]) -> None:
    async def main() -> None:
        async with (
            engine(tiny_llama, connector="tcp", chunk=16) as giver,
            engine(tiny_llama, connector="tcp", chunk=64, seqs=5, blocks=40, block=32) as taker,
        ):
            _, found = await asyncio.gather(
                together(giver, [given(one) for one in mixed(COUNT)]),
                together(taker, [taken(one, giver) for one in mixed(COUNT)]),
            )
            same(found, wanted)
            await idle(giver)
            assert figures(await idle(taker), "tcp").hits > 0

    asyncio.run(main())
