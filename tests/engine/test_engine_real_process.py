"""The real engine in its own process: the same bits as in this one, and back after it was killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from engine_harness import alone, answer, config_of, idle, request
from tiny_models import prompt as random_prompt

from headrace.engine.remote import ProcessClient
from headrace.engine.tokenizer import load_tokenizer
from headrace.errors import CheckpointError, EngineDead, Overloaded


def test_the_same_bits_before_and_after_a_kill(tiny_llama: Path) -> None:
    requests = [request(random_prompt(20 + at, 260), f"r{at}", temperature=0.7, seed=at) for at in range(4)]
    expected = alone(tiny_llama, requests)
    stages: list[str] = []

    async def main() -> None:
        client = ProcessClient(
            config_of(tiny_llama), load_tokenizer(tiny_llama), lambda stage, done: stages.append(stage)
        )
        await client.start()
        assert client.info.vocab_size == 260
        found = await asyncio.gather(*(answer(client, one) for one in requests))
        assert [one.bits for one in found] == [one.bits for one in expected]
        await idle(client)
        running = asyncio.create_task(answer(client, request((1, 5), "long", max_tokens=500)))
        await asyncio.sleep(0.1)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(EngineDead, match="signal 9"):
            await running
        assert time.monotonic() - start < 1
        while time.monotonic() - start < 30:
            try:
                again = await answer(client, requests[0])
                break
            except Overloaded:
                await asyncio.sleep(0.1)
        assert again.bits == expected[0].bits
        assert (await client.stats()).restarts == 1
        await client.close()

    asyncio.run(main())
    assert "weights" in stages


def test_a_truncated_checkpoint_is_told_by_name(tiny_llama: Path, tmp_path: Path) -> None:
    for file in tiny_llama.iterdir():
        data = file.read_bytes()
        (tmp_path / file.name).write_bytes(data[: len(data) // 2] if file.suffix == ".safetensors" else data)

    async def main() -> None:
        client = ProcessClient(config_of(tmp_path), load_tokenizer(tmp_path))
        with pytest.raises(CheckpointError, match="safetensors"):
            await client.start()

    asyncio.run(main())
