#!/usr/bin/env python3
"""How evenly 8 answers are written while long prompts arrive: one engine, against prefill apart from decode.

    python ci/prefill_apart_speed.py --model smollm2

Each arm has the same two cores: `one engine` computes prompts in chunks between the tokens of the others (two threads;
`--chunks 512,64` tries several sizes of a step), `apart` is an engine of role prefill and one of role decode, a core
each, behind the router. All servers are started first, and the arms take turns, with the same prompts in a round.

In a turn 8 streams with seeds are written, one answer after another. After `--calm` seconds a prompt of `--tokens`
tokens arrives every `--every` seconds; its own answer is short. Printed per arm: the gaps between two tokens of a
stream before the first long prompt and from then on (until the interval after the last one has passed), the time per
output token of the answers that began and ended meanwhile, and the time to the first token of the long prompts. Last
the ratios within a round, and whether the answers of the arms are equal: they must be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import httpx

from headrace.bench.request_timing import percentile

Cores = set[int]


@dataclass(slots=True)
class StreamedAnswer:
    """What came of one request, and when. Times are of one clock, in seconds."""

    began: float
    came: list[float] = field(default_factory=list)
    """Of each event with text."""
    text: str = ""
    tokens: int = 0
    """As the usage says; 0 if the answer was left early."""

    @property
    def first(self) -> float:
        return self.came[0] - self.began

    @property
    def per_token(self) -> float:
        return (self.came[-1] - self.came[0]) / max(1, self.tokens - 1)


@dataclass(slots=True)
class Turn:
    """One arm's part of a round, in seconds."""

    calm: list[float] = field(default_factory=list)
    """Gaps before the first long prompt."""
    gaps: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    """Of the long prompts."""
    texts: dict[str, str] = field(default_factory=dict)
    """By the request's name."""


def start(stack: ExitStack, cores: Cores, *command: str) -> str:
    """A process of its own on these cores, which ends with the stack. Returns its address, once it listens."""
    whole = [sys.executable, "-m", "headrace", *command, "--port", "0"]
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # It inherits them.
    try:
        process = subprocess.Popen(whole, stdout=subprocess.PIPE, text=True)
    finally:
        os.sched_setaffinity(0, mine)
    stack.callback(process.wait, 60)
    stack.callback(process.terminate)
    assert process.stdout is not None
    found = re.search(r"http://[\w.:]+", process.stdout.readline())
    assert found, f"it did not start: {' '.join(whole)}"
    return found[0]


def arms(stack: ExitStack, args: argparse.Namespace) -> dict[str, str]:
    """The address of each arm."""
    first, second = sorted(os.sched_getaffinity(0))[:2]
    blocks = str(6 * (args.tokens // 16 + 8))
    plain = ["serve", args.model, "--max-model-len", str(args.tokens + 64), "--num-blocks", blocks, *args.option]
    found = {}
    for chunk in args.chunks.split(","):
        sized = ["--threads", "2", "--max-num-batched-tokens", chunk]
        found[f"one engine, {chunk}"] = start(stack, {first, second}, *plain, *sized)
    roles = [
        start(stack, {core}, *plain, "--threads", "1", "--role", role, "--kv-timeout", "60", "--kv-connector", args.by)
        for role, core in (("prefill", first), ("decode", second))
    ]
    # The router and the client have no core of their own: they take what they need of both.
    found["apart"] = start(stack, {first, second}, "route", *roles, "--split", "always")
    rows: list[dict[str, object]] = []
    while not rows or not all(row["events"] and row["reads_prompts"] for row in rows):
        time.sleep(0.1)
        rows = httpx.get(f"{found['apart']}/v1/router/replicas").json()["replicas"]
    return found


async def ask(url: str, prompt: Sequence[int], tokens: int, seed: int) -> StreamedAnswer:
    answer = StreamedAnswer(time.perf_counter())
    await read(url, body_of(prompt, tokens, seed), answer)
    return answer


def body_of(prompt: Sequence[int], tokens: int, seed: int) -> bytes:
    fields = {"prompt": list(prompt), "max_tokens": tokens, "temperature": 0.8, "seed": seed, "ignore_eos": True}
    return json.dumps(fields | {"stream": True, "stream_options": {"include_usage": True}}).encode()


async def read(url: str, body: bytes, answer: StreamedAnswer) -> None:
    """Ask, and note what comes. If it is cancelled, what has come stays in `answer`."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=2**20)
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        status = await reader.readline()
        assert b" 200 " in status, status + await reader.read(2000)
        while (line := await reader.readline()) and not line.startswith(b"data: [DONE]"):
            if line.startswith(b"data: {"):
                _take(json.loads(line[6:]), answer)
    finally:
        writer.close()


def _take(event: dict[str, object], answer: StreamedAnswer) -> None:
    assert "error" not in event, event
    usage, choices = event.get("usage"), event.get("choices")
    if isinstance(usage, dict):
        answer.tokens = usage["completion_tokens"]
    if isinstance(choices, list) and choices:
        answer.came.append(time.perf_counter())
        answer.text += choices[0]["text"]


async def turn(url: str, number: int, args: argparse.Namespace) -> Turn:
    """One arm's part of round `number`. Every arm gets the same requests."""
    found, written = Turn(), list[tuple[str, StreamedAnswer]]()
    draw = random.Random(number)
    long = [words(draw, args.tokens) for _ in range(args.prompts)]

    async def write(stream: int) -> None:
        mine = random.Random(1000 * number + stream)
        for count in range(10**6):
            # The first ends sooner, at another place for each stream, so that not all begin anew at once.
            tokens = args.answer if count else max(2, args.answer * (stream + 1) // args.streams)
            answer = StreamedAnswer(time.perf_counter())
            written.append((f"{stream}.{count}", answer))
            await read(url, body_of(words(mine, 32), tokens, count), answer)

    streams = [asyncio.create_task(write(stream)) for stream in range(args.streams)]
    await asyncio.sleep(args.calm)
    arrived = time.perf_counter()
    asked = []
    for prompt in long:
        asked.append(asyncio.create_task(ask(url, prompt, 4, 1)))
        await asyncio.sleep(args.every)
    until = time.perf_counter()
    for at, answer in enumerate(await asyncio.gather(*asked)):
        found.first.append(answer.first)
        found.texts[f"long {at}"] = answer.text
    for stream in streams:
        stream.cancel()
    for ended in await asyncio.gather(*streams, return_exceptions=True):
        if not isinstance(ended, asyncio.CancelledError):
            raise AssertionError(f"a stream ended: {ended}")
    sort(found, written, arrived, until)
    return found


def sort(found: Turn, written: Sequence[tuple[str, StreamedAnswer]], arrived: float, until: float) -> None:
    for name, answer in written:
        for before, after in zip(answer.came, answer.came[1:], strict=False):
            if after < arrived:
                found.calm.append(after - before)
            elif before >= arrived and before < until:
                found.gaps.append(after - before)
        if answer.tokens:
            found.texts[name] = answer.text
            if answer.began >= arrived and answer.came[-1] < until:
                found.per_token.append(answer.per_token)


def words(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(1000, 30000) for _ in range(count)]


COLUMNS: tuple[tuple[str, Callable[[Turn], float]], ...] = (
    ("calm p50", lambda one: percentile(one.calm, 50)),
    ("calm p99", lambda one: percentile(one.calm, 99)),
    ("gap p50", lambda one: percentile(one.gaps, 50)),
    ("gap p99", lambda one: percentile(one.gaps, 99)),
    ("gap max", lambda one: max(one.gaps, default=0.0)),
    ("TPOT p50", lambda one: percentile(one.per_token, 50)),
    ("TPOT p99", lambda one: percentile(one.per_token, 99)),
    ("TTFT p50", lambda one: percentile(one.first, 50)),
    ("TTFT max", lambda one: max(one.first, default=0.0)),
)


def table(turns: dict[str, list[Turn]]) -> None:
    print("milliseconds; medians over the rounds\n")
    print("| |", " | ".join(name for name, _ in COLUMNS), "| tokens |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for arm, rounds in turns.items():
        cells = [f"{1000 * statistics.median(map(of, rounds)):.1f}" for _, of in COLUMNS]
        print(f"| {arm} |", " | ".join(cells), f"| {sum(len(one.gaps) for one in rounds)} |")
    apart = turns.pop("apart")
    for arm, rounds in turns.items():
        print(f"\n{arm} / apart, within a round:")
        for name, of in COLUMNS:
            ratios = [of(one) / max(1e-9, of(other)) for one, other in zip(rounds, apart, strict=True)]
            each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"  {name}: {statistics.median(ratios):.2f} ({each})")
        both = [(one, other) for one, other in zip(rounds, apart, strict=True)]
        same = [
            one.texts[name] == other.texts[name] for one, other in both for name in one.texts if name in other.texts
        ]
        print(f"  answers that are equal: {sum(same)} of {len(same)}")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=4096, help="of each long prompt")
    parser.add_argument("--prompts", type=int, default=4, help="long ones in a turn")
    parser.add_argument("--every", type=float, default=12.0, help="seconds from one long prompt to the next")
    parser.add_argument("--calm", type=float, default=4.0, help="seconds before the first")
    parser.add_argument("--streams", type=int, default=8, help="answers that are written all the time")
    parser.add_argument("--answer", type=int, default=128, help="tokens of each")
    parser.add_argument("--rounds", type=int, default=3, help="after one that warms up")
    parser.add_argument("--chunks", default="512", help="step sizes of the one engine, separated by commas")
    parser.add_argument("--by", default="tcp", help="the connector between prefill and decode")
    parser.add_argument("--option", action="append", default=[], help="a further flag of all engines")
    args = parser.parse_args(argv)
    os.environ.setdefault("HEADRACE_KV_SECRET", secrets.token_hex(16))
    os.environ.setdefault("HEADRACE_LOG", "warning")
    print(" ".join(sys.argv[1:]), f"({len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f})", flush=True)
    with ExitStack() as stack:
        urls = arms(stack, args)
        turns: dict[str, list[Turn]] = {name: [] for name in urls}
        warm = argparse.Namespace(**{**vars(args), "prompts": 1, "every": 1.0, "calm": 1.0})
        for number in range(args.rounds + 1):
            for name in list(urls)[:: 1 if number % 2 else -1]:
                one = asyncio.run(turn(urls[name], number, args if number else warm))
                if number:
                    turns[name].append(one)
                    figures = "  ".join(f"{what} {1000 * of(one):.0f}" for what, of in COLUMNS)
                    print(f"round {number}  {name}: {figures} ms", flush=True)
    table(turns)


if __name__ == "__main__":
    main()
