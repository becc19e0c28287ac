"""The real engine in a separate process: the same bits as in this one, and a restart after it was killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from engine_harness import Answer, alone, answer, config_of, idle, request
from tiny_models import prompt as random_prompt

from headrace.client.api import GenerateRequest
from headrace.client.process_client import ProcessClient
from headrace.errors import CheckpointError, EngineDead, Overloaded
from headrace.tokenization.tokenizer import load_tokenizer


@pytest.fixture(scope="module", autouse=True)
def ranks_and_engines_by_fork() -> None:
    """Not here."""


@asynccontextmanager
async def running(model: Path, progress: Callable[[str, float], None]) -> AsyncIterator[ProcessClient]:
    client = ProcessClient(config_of(model), load_tokenizer(model), progress)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def killed_under(client: ProcessClient) -> None:
    """While it answers: at the first piece of the first answer, of more than it can give before the signal."""
    longest = [request((1, 5 + at), f"long{at}", max_tokens=500) for at in range(60)]
    others = [asyncio.create_task(answer(client, one)) for one in longest[1:]]
    async for _ in client.generate(longest[0]):
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        break
    found = await asyncio.gather(*others, return_exceptions=True)
    assert [type(error) for error in found] == [EngineDead] * len(others)
    assert all("signal 9" in str(error) for error in found)


async def answered_again(client: ProcessClient, wanted: GenerateRequest) -> Answer:
    """By the next engine, as clients ask that heed Retry-After."""
    for _ in range(600):
        with suppress(Overloaded):
            return await answer(client, wanted)
        await asyncio.sleep(0.1)
    raise AssertionError("no engine within a minute")


def test_the_same_bits_before_and_after_a_kill(tiny_llama: Path) -> None:
    requests = [request(random_prompt(20 + at, 260), f"r{at}", temperature=0.7, seed=at) for at in range(4)]
    expected = alone(tiny_llama, requests)
    stages: list[str] = []

    async def main() -> None:
        async with running(tiny_llama, lambda stage, done: stages.append(stage)) as client:
            assert client.info.vocab_size == 260
            found = await asyncio.gather(*(answer(client, one) for one in requests))
            assert [one.bits for one in found] == [one.bits for one in expected]
            await idle(client)
            await killed_under(client)
            again = await answered_again(client, requests[0])
            assert again.bits == expected[0].bits
            assert (await client.stats()).restarts == 1

    asyncio.run(main())
    assert "weights" in stages


def test_a_truncated_checkpoint_is_reported_by_name(tiny_llama: Path, tmp_path: Path) -> None:
    for file in tiny_llama.iterdir():
        data = file.read_bytes()
        (tmp_path / file.name).write_bytes(data[: len(data) // 2] if file.suffix == ".safetensors" else data)

    async def main() -> None:
        client = ProcessClient(config_of(tmp_path), load_tokenizer(tmp_path))
        with pytest.raises(CheckpointError, match="safetensors"):
            await client.start()

    asyncio.run(main())
