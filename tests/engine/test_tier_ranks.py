"""Tiers of engines over several ranks, each of which holds a part of every block: the same bits as computed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_harness import GroupingClient, answer, idle, in_turn, request, together
from pipeline_harness import pipeline
from test_engine_bits import VOCAB, mixed, same
from test_parallel_engine import followers
from test_tier_bits import tier
from tiny_models import prompt as random_prompt

from headrace.engine import startup
from headrace.platforms.cpu import native_device
from headrace.platforms.cpu.native import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
COUNT = 12


@asynccontextmanager
async def ranks(model: Path, size: int, stages: int = 1, **sizes: Any) -> AsyncIterator[GroupingClient]:
    async with pipeline(model, stages, size, **sizes) as client:
        yield client
    assert followers() == []


@pytest.mark.parametrize(("size", "stages"), [(2, 1), (1, 2)], ids=["ranks", "stages"])
def test_a_prefix_from_the_disk_after_a_restart(tiny_llama: Path, size: int, stages: int, tmp_path: Path) -> None:
    """In company and alone, with files of which some are spoilt in the last rank's part."""
    disk = f"{tmp_path}:1GiB"

    async def main() -> None:
        async with ranks(tiny_llama, size, stages, disk=disk) as client:
            wanted = await in_turn(client, mixed(COUNT))
            same(await together(client, mixed(COUNT)), wanted)
            await idle(client)
        files = sorted(tmp_path.rglob("*.kv"))
        for file in files[::5]:
            data = bytearray(file.read_bytes())
            data[-1] ^= 4
            file.write_bytes(data)
        async with ranks(tiny_llama, size, stages, disk=disk, chunk=16, blocks=60, speculate="ngram") as client:
            same(await together(client, mixed(COUNT)), wanted)
            stats = tier(await idle(client), "disk")
            assert 0 < stats.hits < len(files)
            assert 0 < stats.failures <= len(files[::5])

    asyncio.run(main())


def test_another_number_of_ranks_has_blocks_of_its_own(tiny_llama: Path, tmp_path: Path) -> None:
    one = request(random_prompt(70, VOCAB), logprobs=2)

    async def main() -> None:
        for size in (2, 1):
            async with ranks(tiny_llama, size, disk=f"{tmp_path}:1GiB") as client:
                assert (await answer(client, one)).usage.cached_tokens == 0
                assert (await answer(client, one)).usage.cached_tokens > 0
                await answer(client, request([5]))
                await idle(client)
        assert len({path.parent.parent.name for path in tmp_path.rglob("*.kv")}) == 2

    asyncio.run(main())


def test_host_memory_gives_back_what_two_ranks_have_lost(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices with a memory of their own, which is too small for all prompts."""
    monkeypatch.setattr(native_device, "_SEVERAL", replace(native_device._SEVERAL, host_memory=False))
    monkeypatch.setattr(startup, "check_devices", lambda *_: None)

    async def main() -> None:
        async with ranks(tiny_llama, 2, blocks=24, host=1 << 28) as client:
            wanted = await in_turn(client, mixed(COUNT))
            same(await in_turn(client, mixed(COUNT)), wanted)
            same(await together(client, mixed(COUNT)), wanted)
            assert tier(await idle(client), "host").hits > 0

    asyncio.run(main())
