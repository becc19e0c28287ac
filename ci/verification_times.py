#!/usr/bin/env python3
"""Times of the operators that draft on the device, of verification by rows, and what the model of step cost says.

    python ci/verification_times.py                       # all three, with the default model
    python ci/verification_times.py --only operators      # needs no model

Operators are timed alone: by the device's own times where it measures them (the CPU's tape), otherwise by many launches
in a row. Texts are drawn with frequencies like those of words, where matches are short and the whole history is looked
at, or are a repeated passage, where a search may end early.

A step verifies with all of its rows sampled, behind `--context` tokens, with two steps in flight as while serving; its
time is the one between two results. `placed` steps make, place and count their drafts themselves. Sizes come in an
order that changes, in rounds: every other round is learnt by a `StepCost`, and the rest is what its predictions are
compared with. `left out` is the prediction of one that has not seen steps of that number of tokens.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.config import Config
from headrace.engine.plans import single_sequence_plan
from headrace.engine.rank_loading import device_options
from headrace.engine.startup import build_on
from headrace.hub.catalogue import resolve_model
from headrace.kernels.inputs import batch_arrays, batch_of
from headrace.kernels.ops import OptionalOps
from headrace.kernels.registry import DRAFTING, bind
from headrace.options import make_config
from headrace.platforms.interface import Device, Executable, Profiled, StepFn
from headrace.plugins import discover
from headrace.speculation.speculator import MOST_DRAFTS
from headrace.speculation.step_cost import StepCost
from headrace.types import NO_TOKEN, Bucket, StepPlan

_SIZES = [f"1x{rows}" for rows in (*range(1, 10), 12, 16)] + "4x1 4x3 4x5 4x9 16x1 16x2 16x5".split()
"""(sequences, rows of each)"""
_WARM, _STEPS = 3, 9
"""Steps of one size in a round that are not counted, and those that are."""


class Size(NamedTuple):
    """A step of `seqs` sequences with `rows` tokens each behind `context` tokens."""

    seqs: int
    rows: int
    context: int

    @property
    def tokens(self) -> int:
        return self.seqs * self.rows

    @property
    def attended(self) -> int:
        return self.seqs * (self.rows * self.context + self.rows * (self.rows + 1) // 2)

    @property
    def blocks(self) -> Callable[[int], int]:
        """Of one sequence, by the size of a block."""
        return lambda block_size: -(-(self.context + self.rows) // block_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--platform")
    parser.add_argument("--only", choices=["operators", "steps"])
    parser.add_argument("--history", type=int, nargs="+", default=[256, 1024, 4096, 16384, 65536])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--launches", type=int, default=200, help="of an operator")
    parser.add_argument("--context", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--sizes", nargs="+", default=_SIZES, help="of steps: sequences x rows of each")
    parser.add_argument("--rounds", type=int, default=8, help="of all sizes, half of them to learn from")
    args = parser.parse_args()
    platform, why = discover().select_platform(args.platform)
    print(why)
    options = {"platform": args.platform, "speculate": "ngram", "max_num_seqs": 16}
    config = make_config(str(resolve_model(args.model)) if args.only != "operators" else "none", options)
    device = platform.open(0, device_options(config))
    try:
        if args.only != "steps":
            time_operators(device, args)
        if args.only != "operators":
            time_steps(device, platform.name, config, args)
    finally:
        device.close()


def plan_of(size: Size, block_size: int, placed: bool) -> StepPlan:
    """A verification step; its sequences have blocks of their own, from 1 on."""
    one = single_sequence_plan(size.rows, size.context, block_size)
    table = one.block_tables + np.arange(size.seqs, dtype=np.int32)[:, None] * one.block_tables.shape[1]
    seq = np.arange(size.seqs, dtype=np.int32).repeat(size.rows)
    positions = np.tile(one.positions, size.seqs)
    rows = np.arange(size.tokens, dtype=np.int32)
    sampling = replace(
        one.sampling,
        params={name: array.repeat(size.tokens) for name, array in one.sampling.params.items()},
        seed=one.sampling.seed.repeat(size.tokens),
        position=positions + 1,
    )
    first = np.tile(np.arange(size.rows) == 0, size.seqs)
    return replace(
        one,
        token_ids=np.where(first & placed, NO_TOKEN, 1 + rows).astype(np.int32),
        positions=positions,
        slot_mapping=table[seq, positions // block_size] * block_size + positions % block_size,
        query_start=np.arange(size.seqs + 1, dtype=np.int32) * size.rows,
        context_lens=one.context_lens.repeat(size.seqs),
        block_tables=table,
        slots=np.arange(size.seqs, dtype=np.int32),
        rows=rows,
        row_seq=seq,
        row_target=np.full_like(rows, NO_TOKEN),
        prompt_lens=one.prompt_lens.repeat(size.seqs),
        sampling=sampling,
        lengths=np.full(size.seqs, size.context + 1, np.int32) if placed else None,
    )


def text(rng: np.random.Generator, length: int, repeats: bool) -> np.ndarray:
    """Tokens whose frequencies fall like those of words; `repeats`: of 200 that come again and again."""
    found = rng.zipf(1.2, 200 if repeats else length) % 49_000
    return np.resize(found, length).astype(np.int32)


def time_operators(device: Device, args: argparse.Namespace) -> None:
    """Print microseconds of each operator."""
    ops, block_size = cast(OptionalOps, bind(device)), device.capabilities().block_sizes[0]
    missing = [spec.name for spec in DRAFTING if device.op(spec) is None]
    if missing:
        raise SystemExit(f"this device has no form of {', '.join(missing)}: the host drafts")
    parts: dict[str, StepFn] = {
        "ngram": lambda kv, x: (kv, {"drafts": ops.ngram(batch_of(x), x["lengths"], x["history"], MOST_DRAFTS)}),
        "place": lambda kv, x: (
            kv,
            ops.place(batch_of(x), x["lengths"], x["drafts"], x["position"], x["history"], block_size)._asdict(),
        ),
        "accept": lambda kv, x: (
            kv, {"counts": ops.accept(batch_of(x), x["lengths"], x["drafts"], x["target"], x["history"])}
        ),
    }  # fmt: skip
    print(f"\nmicroseconds, {MOST_DRAFTS} drafts for each sequence")
    print("tokens of history, sequences | ngram: text, repeats | place | accept")
    rng = np.random.default_rng(1)
    for length in args.history:
        for seqs in args.sequences:
            size = Size(seqs, 1 + MOST_DRAFTS, length - 1)
            plan = plan_of(size, block_size, placed=True)
            times: dict[str, list[float]] = {}
            for repeats in (False, True):
                history = np.zeros((seqs, length + size.rows + 2), np.int32)
                history[:, :length] = [text(rng, length, repeats) for _ in range(seqs)]
                inputs = {name: device.put(np.ascontiguousarray(x)) for name, x in batch_arrays(plan).items()}
                inputs |= {"history": device.put(history), "target": device.put(plan.row_target)}
                bucket = Bucket(size.tokens, seqs, size.tokens, size.blocks(block_size))
                for name, part in parts.items():
                    seconds, outputs = time_operator(device, device.compile(part, bucket), inputs, args.launches)
                    times.setdefault(name, []).append(seconds)
                    inputs |= {"drafts": outputs["drafts"]} if name == "ngram" else {}
            shown = {name: " ".join(f"{1e6 * one:8.1f}" for one in found) for name, found in times.items()}
            place, accept = (shown[name].split()[0] for name in ("place", "accept"))
            print(f"{length:6} {seqs:3} | {shown['ngram']} | {place} | {accept}", flush=True)


def time_operator(
    device: Device, executable: Executable, inputs: Mapping[str, Any], launches: int
) -> tuple[float, Mapping[str, Any]]:
    """Seconds of one launch: the median of the device's own times, or the mean of launches in a row."""
    kv, outputs = executable(None, inputs)
    if isinstance(executable, Profiled):
        found = []
        executable.profile(True)
        for _ in range(launches):
            executable(kv, inputs)
            found.append(sum(one.seconds for one in executable.profile(True)))
        return statistics.median(found), outputs
    last = next(iter(outputs))
    device.get(outputs[last]).result()
    start = time.perf_counter()
    for _ in range(launches):
        kv, outputs = executable(kv, inputs)
    device.get(outputs[last]).result()
    return (time.perf_counter() - start) / launches, outputs


def time_steps(device: Device, platform: str, config: Config, args: argparse.Namespace) -> None:
    """Print milliseconds of steps, measured and predicted."""
    block_size = config.cache.block_size or device.capabilities().block_sizes[0]
    sizes = [Size(*map(int, size.split("x")), context) for context in args.context for size in args.sizes]
    blocks = 1 + max(size.seqs * size.blocks(block_size) for size in sizes)
    cache = config.cache.model_copy(update={"num_blocks": blocks})
    config = config.model_copy(update={"cache": cache})
    engine = build_on(device, platform, config, open_checkpoint(config.model.model), lambda stage, done: None)
    launch = engine.runner.launch
    rng, order = np.random.default_rng(2), random.Random(3)
    fill = history_of(rng, max(args.context) + 32, 16)
    launch(replace(plan_of(sizes[0], block_size, placed=False), **fill)).result()
    plans = {
        (size, placed): plan_of(size, block_size, placed)
        for size in sizes
        for placed in (False, True)
        if not placed or 1 < size.rows <= 1 + MOST_DRAFTS
    }
    learnt: dict[tuple[Size, bool], list[float]] = {key: [] for key in plans}
    measured: dict[tuple[Size, bool], list[float]] = {key: [] for key in plans}
    for number in range(args.rounds + 1):
        for key in order.sample(list(plans), len(plans)):
            found = step_seconds(launch, plans[key])
            if number:  # The first round compiles.
                (learnt if number % 2 else measured)[key] += found
    report(sizes, learnt, measured)


def history_of(rng: np.random.Generator, length: int, seqs: int) -> dict[str, Any]:
    """Fields of a plan that write texts to the history."""
    return {
        "history_tokens": np.concatenate([text(rng, length, False) for _ in range(seqs)]),
        "history_positions": np.tile(np.arange(length, dtype=np.int32), seqs),
        "history_slots": np.arange(seqs, dtype=np.int32).repeat(length),
    }


def step_seconds(launch: Callable[[StepPlan], Any], plan: StepPlan) -> list[float]:
    """The times between results, with two steps in flight."""
    found, flying = list[float](), launch(plan)
    last = time.perf_counter()
    for _ in range(_WARM + _STEPS):
        following = launch(plan)
        flying.result()
        now = time.perf_counter()
        found.append(now - last)
        flying, last = following, now
    flying.result()
    return found[_WARM:]


def report(
    sizes: Sequence[Size],
    learnt: Mapping[tuple[Size, bool], Sequence[float]],
    measured: Mapping[tuple[Size, bool], Sequence[float]],
) -> None:
    whole = cost_of(learnt, without=0)
    print(f"\nmilliseconds of a step; slope {1e9 * whole.slope:.2f} ns for each token that a token attends to")
    print("context sequences rows tokens | step, of first | placed | predicted  error | left out  error")
    errors, others = list[float](), list[float]()
    for size in sizes:
        time_of = statistics.median(measured[size, False])
        base = statistics.median(measured[sizes[0]._replace(context=size.context), False])
        placed = measured.get((size, True))
        costs = whole, cost_of(learnt, without=size.tokens)
        found, other = (cost.seconds(size.tokens, size.attended) for cost in costs)
        errors.append(abs(found / time_of - 1))
        others.append(abs(other / time_of - 1))
        shown = f"{1e3 * statistics.median(placed):6.2f}" if placed else " " * 6
        start = f"{size.context:7} {size.seqs:9} {size.rows:4} {size.tokens:6}"
        print(
            f"{start} | {1e3 * time_of:6.2f} {time_of / base:6.2f} | {shown} "
            f"| {1e3 * found:6.2f} {found / time_of - 1:+9.1%} | {1e3 * other:6.2f} {other / time_of - 1:+8.1%}"
        )
    print(
        f"median error {statistics.median(errors):.1%} (at most {max(errors):.1%}), "
        f"left out {statistics.median(others):.1%} (at most {max(others):.1%})"
    )


def cost_of(learnt: Mapping[tuple[Size, bool], Sequence[float]], without: int) -> StepCost:
    """What a cost model has learnt from plain steps, but from none of `without` tokens; in the order of the rounds."""
    cost = StepCost()
    plain = [(size, times) for (size, placed), times in learnt.items() if not placed and size.tokens != without]
    for at in range(max(len(times) for _, times in plain)):
        for size, times in plain:
            if at < len(times):
                cost.observe(size.tokens, size.attended, times[at])
    return cost


if __name__ == "__main__":
    main()
