"""Prefixes from a disk and from host memory: the same bits as computed, whatever else the engine does."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_harness import BLOCK, Answer, alone, answer, engine, idle, in_turn, request, together
from test_engine_bits import COUNT, VOCAB, WAYS, leave_half, mixed, same
from tiny_models import prompt as random_prompt

from headrace.client.api import GenerateRequest
from headrace.engine.stats import EngineStats, TierStats
from headrace.platforms.cpu import native_device
from headrace.types import Constraint


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> list[Answer]:
    return alone(tiny_llama, mixed(COUNT))


def tier(stats: EngineStats, name: str) -> TierStats:
    return next(tier for tier in stats.tiers if tier.name == name)


def drawn(seed: int) -> dict[str, Any]:
    """Sizes of an engine, drawn at random."""
    rng = random.Random(seed)
    return {
        "chunk": rng.choice([512, 64, 16, 7]),
        "seqs": rng.choice([64, 5, 2]),
        "blocks": rng.choice([400, 60, 24]),
        "speculate": rng.choice([None, "ngram", "suffix"]),
    }


@pytest.mark.parametrize("seed", range(6))
def test_restarted_engines_with_sizes_drawn_at_random(
    tiny_llama: Path, wanted: list[Answer], seed: int, tmp_path: Path
) -> None:
    disk = f"{tmp_path}:1GiB"

    async def main() -> None:
        async with engine(tiny_llama, disk=disk, **drawn(seed)) as client:
            for _ in range(2):
                same(await together(client, mixed(COUNT)), wanted)
            await idle(client)
        for turn in range(2):
            async with engine(tiny_llama, disk=disk, **drawn(100 + seed + turn)) as client:
                same(await together(client, mixed(COUNT)), wanted)
                same(await in_turn(client, mixed(COUNT)[::-3]), wanted[::-3])
                stats = await idle(client)
                assert tier(stats, "disk").hits > 0
                assert tier(stats, "disk").failures == 0

    asyncio.run(main())


def constrained(count: int) -> list[GenerateRequest]:
    prompt = random_prompt(70, VOCAB)
    limits = [Constraint("regex", "[a-f]{3,30}x"), None, Constraint("choice", '["abcdef", "abcxyz", "q"]')]
    return [
        replace(
            request(prompt[: 40 + at], f"c{at}", max_tokens=12, ignore_eos=limits[at % 3] is None, **WAYS[at % 5]),
            constraint=limits[at % 3],
        )
        for at in range(count)
    ]


def test_constrained_requests_after_a_restart(tiny_llama: Path, tmp_path: Path) -> None:
    expected = alone(tiny_llama, constrained(9))

    async def main() -> None:
        for turn in range(2):
            async with engine(tiny_llama, disk=f"{tmp_path}:1GiB") as client:
                same(await together(client, constrained(9)), expected)
                stats = await idle(client)
                assert (tier(stats, "disk").hits > 0) == (turn > 0)

    asyncio.run(main())


def test_salts_are_apart_on_the_disk(tiny_llama: Path, tmp_path: Path) -> None:
    one = request(random_prompt(5 * BLOCK + 3, VOCAB), logprobs=2)

    async def main() -> None:
        async with engine(tiny_llama, disk=f"{tmp_path}:1GiB") as client:
            cold = await answer(client, replace(one, salt="mine"))
            await answer(client, replace(one, salt="mine"))
            await answer(client, request([5]))
            await idle(client)
        async with engine(tiny_llama, disk=f"{tmp_path}:1GiB") as client:
            assert (await answer(client, one)).usage.cached_tokens == 0
            warm = await answer(client, replace(one, salt="mine"))
            assert warm.usage.cached_tokens == 5 * BLOCK
            assert warm.bits == cold.bits
            assert (await idle(client)).tiers[0].hits == 5

    asyncio.run(main())


def test_a_spoilt_disk_costs_a_computation(tiny_llama: Path, wanted: list[Answer], tmp_path: Path) -> None:
    """Every file has another fault when the second engine reads it."""

    async def main() -> None:
        async with engine(tiny_llama, disk=f"{tmp_path}:1GiB") as client:
            for _ in range(2):
                same(await together(client, mixed(COUNT)), wanted)
            await idle(client)
        files = sorted(tmp_path.rglob("*.kv"))
        assert files
        for at, file in enumerate(files):
            data = bytearray(file.read_bytes())
            data[[70, -1, 20, 50][at % 4]] ^= 4
            file.write_bytes(data[: len(data) // 2] if at % 5 == 0 else data)
        async with engine(tiny_llama, disk=f"{tmp_path}:1GiB") as client:
            same(await together(client, mixed(COUNT)), wanted)
            stats = await idle(client)
            assert tier(stats, "disk").failures > 0
            assert tier(stats, "disk").hits == 0

    asyncio.run(main())


def test_requests_that_are_left_free_every_block(tiny_llama: Path, wanted: list[Answer], tmp_path: Path) -> None:
    rng = random.Random(5)

    async def main() -> None:
        async with engine(tiny_llama, blocks=40, chunk=32, disk=f"{tmp_path}:1GiB") as client:
            for _ in range(10):
                await leave_half(client, mixed(COUNT), rng, wanted)
            await idle(client)

    asyncio.run(main())


@pytest.mark.parametrize("below", [False, True])
def test_host_memory_gives_back_what_the_device_has_lost(
    tiny_llama: Path, wanted: list[Answer], below: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device with a memory of its own, which is too small for all prompts."""
    monkeypatch.setattr(native_device, "CAPABILITIES", replace(native_device.CAPABILITIES, host_memory=False))
    sizes: dict[str, Any] = {"blocks": 24, "host": 1 << 20 if below else 1 << 28}
    if below:
        sizes["disk"] = f"{tmp_path}:1GiB"

    async def main() -> None:
        async with engine(tiny_llama, **sizes) as client:
            for _ in range(3):
                same(await in_turn(client, mixed(COUNT)), wanted)
            stats = await idle(client)
            assert tier(stats, "host").hits > 0
            assert [tier.name for tier in stats.tiers] == (["host", "disk"] if below else ["host"])

    asyncio.run(main())
