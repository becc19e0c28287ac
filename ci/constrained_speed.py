#!/usr/bin/env python3
"""Throughput of constrained requests beside free ones, on any OpenAI-compatible server that runs already.

    headrace serve smollm2 & python ci/constrained_speed.py --base-url http://127.0.0.1:8000/v1 --model smollm2

Each round runs 32 free requests, 32 constrained ones, 64 free ones, and 32 of each together; all generate the same
number of tokens. Printed are the medians over the rounds of the ratios within a round. `--forms` adds constraints: by a
list of records (the default), whose keys leave no choice, and by free text in one string.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

_RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["customer", "supplier"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
FORMS: dict[str, Any] = {
    "records": {"type": "array", "items": _RECORD, "minItems": 40},
    "text": {
        "type": "object",
        "properties": {"text": {"type": "string", "minLength": 2000}},
        "required": ["text"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True)
class Load:
    """What one run of requests took."""

    tokens_per_second: float
    free_tpot: float
    """Seconds between two tokens of the free requests, the median over requests; 0 without any."""


async def one(client: httpx.AsyncClient, args: argparse.Namespace, number: int, form: str | None) -> tuple[int, float]:
    """(tokens, seconds per token after the first)"""
    body: dict[str, Any] = {
        "model": args.model,
        "messages": [{"role": "user", "content": f"Write about the people of town number {number}, in JSON."}],
        "max_tokens": args.tokens,
        "temperature": 0.7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if form is None:
        body["ignore_eos"] = True
    else:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "form", "schema": FORMS[form]}}
    first = last = tokens = 0.0
    async with client.stream("POST", f"{args.base_url}/chat/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("choices") and event["choices"][0]["delta"].get("content"):
                last = time.perf_counter()
                first = first or last
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    assert tokens >= args.tokens - 1, f"{tokens} tokens instead of {args.tokens}"
    return int(tokens), (last - first) / (tokens - 1)


async def load(args: argparse.Namespace, forms: Sequence[str | None], seed: int) -> Load:
    """Run requests at once; None is a free one."""
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None)) as client:
        start = time.perf_counter()
        found = await asyncio.gather(*(one(client, args, 1000 * seed + n, form) for n, form in enumerate(forms)))
        seconds = time.perf_counter() - start
    free = [tpot for (_, tpot), form in zip(found, forms, strict=True) if form is None]
    return Load(sum(tokens for tokens, _ in found) / seconds, statistics.median(free) if free else 0.0)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["records", "text"])
    args = parser.parse_args()
    for form in args.forms:
        rows = []
        for seed in range(args.rounds + 1):
            n = args.requests
            free, held = await load(args, [None] * n, seed), await load(args, [form] * n, seed)
            many, mixed = await load(args, [None] * 2 * n, seed), await load(args, [None, form] * n, seed)
            row = (
                held.tokens_per_second / free.tokens_per_second,
                mixed.tokens_per_second / many.tokens_per_second,
                mixed.free_tpot / many.free_tpot,
            )
            print(form, seed, free, held, many, mixed, *(f"{value:.3f}" for value in row), flush=True)
            rows += [row] if seed else []  # The first warms up.
        alone, among, tpot = (statistics.median(column) for column in zip(*rows, strict=True))
        print(f"{form}: {n} constrained / {n} free {alone:.3f} · {n} among {n} / {2 * n} free {among:.3f} · ", end="")
        print(f"time per token of the free ones {tpot:.3f}")


if __name__ == "__main__":
    asyncio.run(main())
