"""Host time of the scheduler alone: microseconds per sequence and step, for steady decode and for a long queue.

Constant results replace the device, so only `schedule` and `commit` are timed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from headrace.bench.bench_report import BenchReport, ReportTable, add_outputs, facts, publish
from headrace.bench.plots import Bar, bars
from headrace.core import CoreConfig, Scheduler
from headrace.types import NO_TOKEN, Request, SamplingParams, StepPlan, StepResult

__all__ = ["SchedulerTiming", "configure", "decode", "queue", "run"]


@dataclass(frozen=True, slots=True)
class SchedulerTiming:
    """One line of the report. Times in microseconds, the median over steps."""

    name: str
    steps: int
    per_step: float
    per_sequence: float


def decode(running: int, steps: int, prompt: int = 128, ahead: bool = True) -> SchedulerTiming:
    """Time `running` sequences that all decode, with one step launched ahead of the commit."""
    config = _config(running, prompt + steps + 64)
    scheduler = Scheduler(config)
    params = SamplingParams(max_tokens=steps + 32, ignore_eos=True)
    for i in range(running):
        scheduler.add(Request(f"r{i}", _prompt(i, prompt), params))
    timings = [(spent, count) for spent, count, tokens in _steps(scheduler, ahead) if tokens == count == running]
    return _figure(f"decode, {running} running", timings)


def queue(waiting: int, running: int = 64, prompt: int = 64, output: int = 16) -> SchedulerTiming:
    """Time `waiting` requests, half of which share one of 16 prefixes, from the first step to the last."""
    scheduler = Scheduler(_config(running, prompt + output + 16, waiting))
    params = SamplingParams(max_tokens=output, ignore_eos=True)
    for i in range(waiting):
        head = _prompt(i % 16, prompt // 2) if i % 2 else _prompt(i, prompt // 2)
        scheduler.add(Request(f"r{i}", head + _prompt(waiting + i, prompt // 2), params))
    return _figure(
        f"{waiting} waiting, {running} slots", [(spent, count) for spent, count, _ in _steps(scheduler, True)]
    )


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of `headrace bench scheduler`."""
    parser.add_argument("--steps", type=int, default=500, help="decode steps to time (default: %(default)s)")
    parser.add_argument("--waiting", type=int, default=10_000, help="length of the queue (default: %(default)s)")
    add_outputs(parser, "scheduler")


def run(args: argparse.Namespace) -> int:
    found = [*(decode(running, args.steps) for running in (16, 64)), queue(args.waiting)]
    rows = [(one.name, str(one.steps), f"{one.per_step:.1f}", f"{one.per_sequence:.2f}") for one in found]
    table = ReportTable("host time of the scheduler", ("what", "steps", "µs/step", "µs/sequence/step"), rows)
    plot = bars([Bar(one.name, one.per_sequence) for one in found], "µs per sequence and step")
    publish(args, BenchReport(args.label, {"figures": [asdict(one) for one in found]}, [table], [plot], facts()))
    return 0


def _config(slots: int, length: int, waiting: int = 4096) -> CoreConfig:
    return CoreConfig(
        num_blocks=slots * (length // 16 + 1) * 2,
        block_size=16,
        max_num_seqs=slots,
        max_num_batched_tokens=max(512, slots),
        max_model_len=length,
        vocab_size=50_000,
        max_waiting=waiting,
    )


def _prompt(seed: int, length: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 50_000, length).tolist())


def _steps(scheduler: Scheduler, ahead: bool) -> Iterator[tuple[float, int, int]]:
    """Run to the end. Yields (seconds in the scheduler, sequences, tokens) for each step."""
    launched: list[StepPlan] = []
    while scheduler.has_work():
        start = time.perf_counter()
        plan = scheduler.schedule(start)
        spent = time.perf_counter() - start
        if plan is not None:
            launched.append(plan)
        if plan is None or not ahead or len(launched) > 1:
            first = launched.pop(0)
            result = StepResult(np.where(first.row_target == NO_TOKEN, 7, NO_TOKEN).astype(np.int32))
            start = time.perf_counter()
            scheduler.commit(first, result, start)
            spent += time.perf_counter() - start
        if plan is not None:
            yield spent, plan.num_seqs, plan.num_tokens


def _figure(name: str, steps: list[tuple[float, int]]) -> SchedulerTiming:
    per_step = statistics.median(spent for spent, _ in steps) * 1e6
    per_sequence = sum(spent for spent, _ in steps) / sum(count for _, count in steps) * 1e6
    return SchedulerTiming(name, len(steps), per_step, per_sequence)
