#!/usr/bin/env python3
"""Sends requests of all kinds to a server, leaves half of them at random, and checks that every block is free.

Prints how many drafts the server has made, of which none may be left over either: with `--drafts`, so many are needed.

headrace serve smollm2 --speculate ngram & python ci/aborted_requests.py --base-url http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
from typing import Any

import httpx

_CHOICES = [
    {},
    {"temperature": 1.0},
    {"n": 2, "temperature": 0.8},
    {"logprobs": 2},
    {"presence_penalty": 0.5},
    {"structured_outputs": {"regex": "([a-z]{1,8} ){1,20}"}},
    {"prediction": {"type": "content", "content": "one two three four five six seven eight nine ten"}},
    *({"allowed_token_ids": [70, 71, 72], "temperature": heat} for heat in (0.0, 0.7, 1.0, 1.5)),
]
"""Answers of three tokens repeat themselves, so that there are drafts, some of them right."""
_DRAFTS = re.compile(r"^headrace_speculation_(drafted|accepted)_tokens_total\{[^}]*\} (\S+)", re.MULTILINE)
_HELD = re.compile(r'^headrace_kv_blocks\{[^}]*state="held"[^}]*\} (\S+)', re.MULTILINE)


async def one(client: httpx.AsyncClient, rng: random.Random, url: str, model: str, number: int) -> str:
    """What came of a request: `done`, `left`, or its status."""
    most = rng.randrange(1, 40)
    text = " ".join(rng.choice(["one", "two", "three", "four"]) for _ in range(rng.randrange(2, 40)))
    body: dict[str, Any] = {
        "model": model, "prompt": text * rng.randrange(1, 4), "max_tokens": most, "seed": number,
        "stream": True, **rng.choice(_CHOICES),
    }  # fmt: skip
    # A piece may hold several tokens.
    leave_after = rng.randrange(0, 1 + most // 4) if rng.random() < 0.5 else None
    seen = 0
    async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
        if response.status_code != 200:
            return f"{response.status_code} {(await response.aread()).decode()[:200]}"
        async for line in response.aiter_lines():
            if leave_after is not None and seen >= leave_after:
                return "left"
            seen += line.startswith("data: {")
    return "done"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=48)
    parser.add_argument("--drafts", type=int, default=0, help="the least number of drafts that the server must make")
    args = parser.parse_args()
    rng, found = random.Random(1), dict[str, int]()
    gate = asyncio.Semaphore(args.concurrency)
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None)) as client:

        async def run(number: int) -> None:
            async with gate:
                outcome = await one(client, rng, args.base_url, args.model, number)
            found[outcome] = found.get(outcome, 0) + 1

        await asyncio.gather(*(run(number) for number in range(args.requests)))
        for _ in range(100):
            metrics = (await client.get(f"{args.base_url}/metrics")).text
            held = [float(value) for value in _HELD.findall(metrics)]
            if held == [0.0]:
                break
            await asyncio.sleep(0.1)
    drafts = dict.fromkeys(("drafted", "accepted"), 0.0)
    for kind, value in _DRAFTS.findall(metrics):
        drafts[kind] += float(value)
    print(found, "blocks held:", held, "drafts:", drafts)
    assert held == [0.0], "blocks are held without a request"
    assert set(found) <= {"done", "left"}, "a request was refused"
    assert drafts["drafted"] >= args.drafts, "too few drafts"


if __name__ == "__main__":
    asyncio.run(main())
