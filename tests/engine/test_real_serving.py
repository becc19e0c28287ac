"""The default model, the command line, the official client and curl: a thousand streams, 32 at a time, and nothing is
left over."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import openai
import pytest

from headrace.hub.catalogue import cached_path

pytestmark = pytest.mark.real_model
REQUESTS, AT_ONCE = 1000, 32
PATIENCE = 300.0
"""Seconds; for what comes soon, unless the machine stands still."""
PATIENT = (
    "import sys; from headrace.cli.main import main; from headrace.client import base_client, process_client; "
    "process_client._SILENCE = process_client._KILL_AFTER = 300.0; "
    "base_client._STATS_TIMEOUT = base_client._FRESH_TIMEOUT = 300.0; sys.exit(main())"
)
"""The command, with an engine that the machine may hold up."""
TOPICS = ["rivers", "mills", "wheels", "rain", "bread", "clocks", "ships", "bees", "snow", "glass"]


@dataclass
class Running:
    url: str
    process: subprocess.Popen[str]

    def gauges(self) -> dict[str, float]:
        lines = httpx.get(f"{self.url}/metrics", timeout=PATIENCE).text.splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    cached_path("smollm2")
    command = [sys.executable, "-c", PATIENT, "serve", "smollm2", "--port", "0", "--max-model-len", "2048"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found, "the server did not start"
        yield Running(found[0], process)
        process.terminate()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()


async def one_chat(client: openai.AsyncOpenAI, number: int) -> int:
    """Tokens of one streamed chat; checks the stream's shape."""
    question = f"Write a few words about {TOPICS[number % 10]}, number {number}."
    stream = await client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": question}],
        max_completion_tokens=4 + number % 5,
        seed=number,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
    assert len(reasons) == 1
    usage = chunks[-1].usage
    assert usage is not None
    assert reasons == ["length"] or usage.completion_tokens <= 4 + number % 5
    return usage.completion_tokens


async def one_completion(client: openai.AsyncOpenAI, number: int) -> int:
    prompt = f"Number {number}. A short text about {TOPICS[number % 10]}:"
    stream = await client.completions.create(
        model="smollm2",
        prompt=prompt,
        max_tokens=4 + number % 5,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    pieces = [chunk.choices[0].text async for chunk in stream if chunk.choices]
    assert "".join(pieces)
    return 4 + number % 5


async def all_of_them(url: str) -> list[int]:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> int:
        async with gate:
            return await (one_chat if number % 2 else one_completion)(client, number)

    return list(await asyncio.gather(*(one(number) for number in range(REQUESTS))))


def settled(server: Running) -> dict[str, float]:
    """The gauges once nothing runs; a minute's turns are allowed."""
    for _ in range(1200):
        gauges = server.gauges()
        if not gauges["headrace_requests_running"] + gauges["headrace_requests_waiting"]:
            return gauges
        time.sleep(0.05)
    raise AssertionError("requests are left over")


@pytest.mark.slow
def test_a_thousand_streams_and_every_block_free(server: Running) -> None:
    before = settled(server)
    tokens = asyncio.run(all_of_them(server.url))
    assert len(tokens) == REQUESTS
    assert min(tokens) >= 1
    after = settled(server)
    assert after['headrace_kv_blocks{state="held"}'] == 0
    blocks = [sum(g[f'headrace_kv_blocks{{state="{s}"}}'] for s in ("free", "cached", "held")) for g in (before, after)]
    assert blocks[0] == blocks[1]


def test_a_chat_answers_sensibly(server: Running) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "What is the largest planet of the solar system?"}],
        temperature=0,
    )
    assert "Jupiter" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"


def test_streamed_is_whole(server: Running) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    asked = {"model": "smollm2", "prompt": "The mill stands by the", "max_tokens": 24, "temperature": 0.8, "seed": 3}
    whole = client.completions.create(**asked)
    pieces = [c.choices[0].text for c in client.completions.create(**asked, stream=True) if c.choices]
    assert "".join(pieces) == whole.choices[0].text


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_streams(server: Running) -> None:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}], "stream": True, "max_tokens": 8}
    command = [
        "curl",
        "-sN",
        f"{server.url}/v1/chat/completions",
        "-H",
        "Content-Type: application/json",
        "-d",
        json.dumps(body),
    ]
    lines = [
        line for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines() if line
    ]
    assert lines[-1] == "data: [DONE]"
    assert all(line.startswith("data: ") for line in lines)
