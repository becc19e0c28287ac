"""Prompts that one engine computes and another continues: the same bits as in one engine, whatever arrives."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from engine_harness import BLOCK, Answer, GroupingClient, alone, answer, engine, idle, in_turn, request, together
from test_engine_bits import COUNT, VOCAB, mixed, same
from tiny_models import prompt as random_prompt

from headrace.client.api import GenerateRequest
from headrace.engine.stats import EngineStats, TierStats
from headrace.engine.wire import TransferInfo
from headrace.types import RemoteBlocks


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> list[Answer]:
    return alone(tiny_llama, mixed(COUNT))


def info(client: GroupingClient) -> TransferInfo:
    found = client.engine_info.transfer
    assert found is not None
    return found


def figures(stats: EngineStats, name: str) -> TierStats:
    return next(tier for tier in stats.tiers if tier.name == name)


def given(one: GenerateRequest) -> GenerateRequest:
    """The part of the engine that computes the prompt."""
    return replace(one, params=replace(one.params, max_tokens=1, min_tokens=0), gives_blocks=True)


def taken(
    one: GenerateRequest, giver: GroupingClient, timeout: float = 20.0, patience: float = 10.0
) -> GenerateRequest:
    """The part of the engine that continues it. Blocks are sealed by a thread: it may have to wait for them."""
    where = info(giver)
    remote = RemoteBlocks(where.address, len(one.prompt), timeout, patience, where.epoch)
    return replace(one, remote=remote)


@pytest.mark.parametrize("connector", ["memory", "shm", "tcp"])
def test_a_prompt_computed_elsewhere(tiny_llama: Path, wanted: list[Answer], connector: str) -> None:
    async def main() -> None:
        async with (
            engine(tiny_llama, connector=connector) as giver,
            engine(tiny_llama, connector=connector) as taker,
        ):
            await in_turn(giver, [given(one) for one in mixed(COUNT)])
            found = await in_turn(taker, [taken(one, giver) for one in mixed(COUNT)])
            same(found, wanted)
            stats = figures(await idle(taker), connector)
            assert stats.hits > 0
            assert stats.failures == 0
            assert figures(await idle(giver), connector).stored > 0

    asyncio.run(main())


def test_all_at_once_with_blocks_that_are_still_computed(tiny_llama: Path, wanted: list[Answer]) -> None:
    """Both engines get the requests at the same time, in chunks of 16 tokens."""

    async def main() -> None:
        async with (
            engine(tiny_llama, connector="tcp", chunk=16) as giver,
            engine(tiny_llama, connector="tcp", chunk=64, seqs=5, blocks=60, speculate="ngram") as taker,
        ):
            _, found = await asyncio.gather(
                together(giver, [given(one) for one in mixed(COUNT)]),
                together(taker, [taken(one, giver) for one in mixed(COUNT)]),
            )
            same(found, wanted)
            await idle(giver)
            assert figures(await idle(taker), "tcp").hits > 0

    asyncio.run(main())


def test_every_full_block_of_a_prompt_arrives(tiny_llama: Path) -> None:
    """Also when nothing else keeps the giving engine at work, and when it had them cached."""
    one = request(random_prompt(6 * BLOCK + 5, VOCAB), max_tokens=9)
    (expected,) = alone(tiny_llama, [one])

    async def main() -> None:
        async with engine(tiny_llama, connector="tcp") as giver:
            for _ in range(2):
                await answer(giver, given(one))
                async with engine(tiny_llama, connector="tcp") as taker:
                    found = await answer(taker, taken(one, giver))
                    same([found], [expected])
                    assert found.usage.cached_tokens == 6 * BLOCK
                    await idle(taker)
            assert figures(await idle(giver), "tcp").stored == 6

    asyncio.run(main())


def test_what_does_not_come_is_computed(tiny_llama: Path) -> None:
    """Nothing given, another start of the engine, an address where nobody listens, and an engine that has ended."""
    one = request(random_prompt(5 * BLOCK + 3, VOCAB), max_tokens=9)
    (expected,) = alone(tiny_llama, [one])

    async def main() -> None:
        async with engine(tiny_llama, connector="tcp") as taker:
            async with engine(tiny_llama, connector="tcp") as giver:
                await answer(giver, given(one))
                right = taken(one, giver)
                assert right.remote is not None
                nothing = replace(right, remote=replace(right.remote, patience=0.0), salt="other")
                restarted = replace(right, remote=replace(right.remote, epoch=1))
                nobody = replace(right, remote=replace(right.remote, address="tcp:127.0.0.1:1"))
                for lost in (nothing, restarted, nobody):
                    found = await answer(taker, replace(lost, id=str(lost.remote), salt=str(lost.remote)))
                    same([found], [expected])
            ended = await answer(taker, replace(right, id="ended", salt="ended"))
            same([ended], [expected])
            stats = await idle(taker)
            assert figures(stats, "tcp").failures >= 2

    asyncio.run(main())


def test_salts_are_apart(tiny_llama: Path) -> None:
    one = request(random_prompt(5 * BLOCK + 3, VOCAB), logprobs=2)

    async def main() -> None:
        async with engine(tiny_llama, connector="tcp") as giver, engine(tiny_llama, connector="tcp") as taker:
            await answer(giver, given(replace(one, salt="a")))
            other = await answer(taker, taken(replace(one, salt="b"), giver, patience=0.0))
            assert other.usage.cached_tokens == 0
            mine = await answer(taker, taken(replace(one, salt="a", id="mine"), giver))
            assert mine.usage.cached_tokens == 5 * BLOCK
            same([mine], [other])

    asyncio.run(main())


def test_two_requests_share_a_prefix_that_does_not_come(tiny_llama: Path) -> None:
    shared = random_prompt(5 * BLOCK, VOCAB)
    asked = [request([*shared, at], f"r{at}", max_tokens=9) for at in (7, 8, 9)]
    expected = alone(tiny_llama, asked)

    async def main() -> None:
        async with engine(tiny_llama, connector="tcp") as giver, engine(tiny_llama, connector="tcp") as taker:
            same(await together(taker, [taken(one, giver, patience=0.3) for one in asked]), expected)
            await idle(taker)

    asyncio.run(main())


def test_an_abort_while_blocks_are_awaited(tiny_llama: Path) -> None:
    one = request(random_prompt(5 * BLOCK, VOCAB))
    (expected,) = alone(tiny_llama, [one])

    async def main() -> None:
        async with engine(tiny_llama, connector="shm") as giver, engine(tiny_llama, connector="shm") as taker:
            waits = asyncio.create_task(answer(taker, taken(one, giver, patience=60.0)))
            while not (await taker.stats()).scheduler.fetching:
                await asyncio.sleep(0.005)
            waits.cancel()
            await idle(taker)
            same([await answer(taker, one)], [expected])
            await idle(giver)

    asyncio.run(main())


def test_two_hundred_requests_of_all_kinds(tiny_llama: Path) -> None:
    """Given or not, partly cached, with another epoch, an address where nobody is, a short deadline."""
    rng = random.Random(9)
    kinds = [request(random_prompt(rng.randrange(10, 90), VOCAB), f"k{at}", max_tokens=4) for at in range(10)]
    expected = alone(tiny_llama, kinds)

    async def main() -> None:
        async with (
            engine(tiny_llama, connector="shm", chunk=64) as giver,
            engine(tiny_llama, connector="shm", chunk=64, blocks=60) as taker,
        ):
            for turn in range(20):
                chosen = [rng.randrange(len(kinds)) for _ in range(10)]
                salts = [f"{turn % 7}-{rng.randrange(2)}" for _ in chosen]
                asked = [
                    replace(kinds[at], id=f"{turn}-{place}", salt=salt)
                    for place, (at, salt) in enumerate(zip(chosen, salts, strict=True))
                ]
                await together(giver, [given(one) for one in asked if rng.random() < 0.7])
                found = await together(taker, [spoilt(taken(one, giver, patience=0.05), rng) for one in asked])
                same(found, [expected[at] for at in chosen])
            assert figures(await idle(taker), "shm").hits > 0
            await idle(giver)

    asyncio.run(main())


def spoilt(one: GenerateRequest, rng: random.Random) -> GenerateRequest:
    assert one.remote is not None
    changes = [{}, {}, {}, {"epoch": 1}, {"address": "shm:/nowhere"}, {"timeout": 1e-6}, {"tokens": 33}]
    return replace(one, remote=replace(one.remote, **rng.choice(changes)))  # type: ignore[arg-type]
