"""One completion over HTTP, streamed and timed."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp

from headrace.bench.measure import Row
from headrace.bench.workloads import Prompt

__all__ = ["send"]


async def send(session: aiohttp.ClientSession, url: str, model: str, prompt: Prompt, extra: dict[str, Any]) -> Row:
    """Stream one completion; never raises: a failure stands in `Row.error`."""
    body = {
        "model": model,
        "prompt": list(prompt.token_ids),
        "max_tokens": prompt.max_tokens,
        "temperature": 0,
        "stream": True,
    }
    body |= {"stream_options": {"include_usage": True}, "ignore_eos": True} | extra
    row = Row(len(prompt.token_ids), time.perf_counter(), wanted=prompt.max_tokens)
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            if response.status != 200:
                row.error = f"HTTP {response.status}: {(await response.text())[:300]}"
            else:
                await _read(response, row)
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError) as problem:
        row.error = f"{type(problem).__name__}: {problem}"
    row.close(time.perf_counter())
    return row


async def _read(response: aiohttp.ClientResponse, row: Row) -> None:
    async for raw in response.content:
        if not raw.startswith(b"data:"):
            continue
        payload = raw[5:].strip()
        if payload == b"[DONE]":
            break
        now = time.perf_counter()
        event = json.loads(payload)
        if event.get("error"):
            row.error = str(event["error"])
            return
        _usage(event.get("usage"), row)
        choices = event.get("choices")
        if not choices or (choices[0].get("finish_reason") and not choices[0].get("text") and row.last is not None):
            continue
        row.piece(now)


def _usage(usage: dict[str, Any] | None, row: Row) -> None:
    if usage:
        row.output_tokens = usage.get("completion_tokens", 0)
        row.prompt_tokens = usage.get("prompt_tokens", row.prompt_tokens)
        row.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
