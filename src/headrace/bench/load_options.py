"""Command-line options of the load, for `bench serve` and `bench offline`."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from headrace.bench.workloads import WORKLOADS, Workload
from headrace.errors import ConfigError
from headrace.hub.catalogue import resolve_model
from headrace.tokenization.tokenizer import Tokenizer, load_tokenizer

__all__ = ["add_load_options", "load_encoder", "memoized_encoder", "planned_runs", "target_seconds"]


def add_load_options(parser: argparse.ArgumentParser, workloads: Sequence[str]) -> None:
    """Add the options; `workloads` is the default of --workload."""
    add = parser.add_argument_group("load").add_argument
    add(
        "--workload",
        nargs="+",
        default=list(workloads),
        choices=sorted(WORKLOADS),
        metavar="NAME",
        help=", ".join(WORKLOADS),
    )
    add("--requests", type=int, metavar="N", help="in place of the workload's own number")
    add("--concurrency", type=int, metavar="N", help="requests at a time, in place of the workload's own number")
    add("--seed", type=int, default=0, metavar="N", help="of the prompts' content")
    add("--repeat", type=int, default=1, metavar="N", help="runs of each workload, with seeds counted up")
    add("--ttft-target", type=float, metavar="MS", help="with --tpot-target it defines goodput")
    add("--tpot-target", type=float, metavar="MS", help="time per output token of a good answer")


def planned_runs(args: argparse.Namespace) -> Iterator[tuple[Workload, int]]:
    """(Workload, seed) of each run. Raises ConfigError for counts below 1."""
    for name in ("concurrency", "requests", "repeat"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} {value}: at least 1")
    for name in args.workload:
        workload = WORKLOADS[name]
        if args.concurrency:
            workload = replace(workload, concurrency=args.concurrency)
        for repeat in range(args.repeat):
            yield workload, args.seed + repeat


def target_seconds(args: argparse.Namespace) -> tuple[float | None, float | None]:
    """The TTFT target and the TPOT target in seconds; None without one."""
    first, between = (None if ms is None else ms / 1e3 for ms in (args.ttft_target, args.tpot_target))
    return first, between


def load_encoder(source: str) -> Callable[[str], Sequence[int]]:
    """The `encode` function of a model's tokenizer, without special tokens."""
    return memoized_encoder(load_tokenizer(resolve_model(source)))


def memoized_encoder(tokenizer: Tokenizer) -> Callable[[str], Sequence[int]]:
    """The tokenizer's `encode` with a cache: most runs take their prompts from the same two megabytes of text."""

    @functools.lru_cache(maxsize=32)
    def encode(text: str) -> Sequence[int]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    return encode
