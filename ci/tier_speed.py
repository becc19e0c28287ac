#!/usr/bin/env python3
"""What KV tiers are worth here: times to first token of a long prompt, computed and from each tier; the cost of writes.

python ci/tier_speed.py [--model smollm2] [--tokens 4096] [--rounds 3] [--threads N] [--folder DIR]

All figures come from one run, in turns, on engines in this process. `host memory` is measured on the CPU platform as if
it had a memory of its own. Prints medians and ratios.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from headrace.bench.local_engine import open_engine
from headrace.bench.offline_load import run_in_process
from headrace.bench.workloads import WORKLOADS
from headrace.engine.service import BuiltEngine
from headrace.platforms.cpu import native_device
from headrace.types import Request, SamplingParams


def ask(engine: BuiltEngine, number: int, prompt: list[int], output: int) -> tuple[float, int]:
    """Seconds to the first token, and the number of prompt tokens that were not computed."""
    core, name = engine.core, f"r{number}"
    start, first, cached, ended = time.perf_counter(), 0.0, 0, False
    core.add([Request(name, tuple(prompt), SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True))])
    while not ended:
        for delta in core.step():
            if delta.token_ids and not first:
                first, cached = time.perf_counter() - start, delta.cached_tokens
            ended = ended or delta.finish_reason is not None
        if not core.in_flight:
            time.sleep(0.0005)
    return first, cached


def first_tokens(model: str, options: dict[str, Any], tokens: int, rounds: int, tier: str) -> dict[str, list[float]]:
    """Times by where the prompt comes from. The cache holds little more than one prompt, so that others replace it."""
    blocks = 2 * tokens // 16 + 40
    engine, _ = open_engine(model, {**options, "num_blocks": blocks, "max_num_seqs": 4})
    rng, found, number = random.Random(7), dict[str, list[float]](), 0
    try:
        for turn in range(rounds + 1):
            prompt, other = ([rng.randrange(10, 5000) for _ in range(tokens)] for _ in range(2))
            times = {}
            for what, text, output in (
                ("computed", prompt, 8),
                ("device", prompt, 40),  # the second use: steps that decode write it through
                ("", other, 8),
                ("", other[::-1], 8),
                (tier, prompt, 8),
            ):
                number += 1
                seconds, cached = ask(engine, number, text, output)
                if what:
                    times[what] = seconds
                    assert (cached > tokens // 2) == (what != "computed"), (what, cached)
                settle(engine)
            for what, seconds in times.items() if turn else ():  # the first turn warms up
                found.setdefault(what, []).append(seconds)
        print(f"  {engine.core.stats().tiers[-1]}")
    finally:
        engine.close()
    return found


def report(times: dict[str, list[float]]) -> None:
    for what, seconds in times.items():
        each = ", ".join(f"{one * 1000:.0f}" for one in seconds)
        ratio = median(a / b for a, b in zip(times["computed"], seconds, strict=True))
        print(f"{what}: {median(seconds) * 1000:.0f} ms ({each}), computed / this: {ratio:.1f}", flush=True)


def settle(engine: BuiltEngine) -> None:
    """Wait until a tier has written what it was offered."""
    before = -1.0
    while (now := engine.core.stats().tiers[-1].write_seconds) != before:
        before = now
        time.sleep(0.3)


def write_cost(model: str, options: dict[str, Any], folder: Path, rounds: int) -> None:
    """W2 with and without a disk, in turns, in a cache so small that most blocks leave it."""
    small = {**options, "num_blocks": 700, "max_num_seqs": 16}
    pair = [open_engine(model, small), open_engine(model, {**small, "kv_disk": f"{folder}:20GiB"})]
    seconds: tuple[list[float], list[float]] = [], []
    try:
        for turn in range(rounds + 1):
            for which in (0, 1) if turn % 2 else (1, 0):
                engine, encode = pair[which]
                start = time.perf_counter()
                run_in_process(engine, WORKLOADS["W2"], encode, seed=turn)
                if turn:
                    seconds[which].append(time.perf_counter() - start)
        stored = pair[1][0].core.stats().tiers[-1].stored
    finally:
        for engine, _ in pair:
            engine.close()
    ratios = [mine / plain for plain, mine in zip(*seconds, strict=True)]
    each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
    print(f"W2 with a disk over W2 without: {median(ratios):.3f} ({each}; {stored} blocks written)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--folder", help="on the disk to measure; default: the temporary folder")
    args = parser.parse_args()
    options: dict[str, Any] = {} if args.threads is None else {"threads": args.threads}
    folder = Path(tempfile.mkdtemp(prefix="headrace-tiers-", dir=args.folder))
    try:
        report(first_tokens(args.model, {**options, "kv_disk": f"{folder}:20GiB"}, args.tokens, args.rounds, "disk"))
        usual = native_device.CAPABILITIES
        native_device.CAPABILITIES = replace(usual, host_memory=False)
        report(first_tokens(args.model, {**options, "kv_host_memory": "2GiB"}, args.tokens, args.rounds, "host"))
        native_device.CAPABILITIES = usual
        write_cost(args.model, options, folder / "w2", args.rounds)
    finally:
        with suppress(OSError):
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
