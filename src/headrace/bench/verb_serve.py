"""Send workloads to an OpenAI endpoint and report latency, throughput and the three wastes."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.bench.report import as_json, dump, print_table, write_html
from headrace.bench.serve import Run, Target, run_load
from headrace.bench.workloads import WORKLOADS, Workload
from headrace.engine.catalogue import resolve_model
from headrace.engine.tokenizer import load_tokenizer
from headrace.errors import ConfigError

__all__ = ["add_outputs", "configure", "facts", "publish", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2", help="the name the server knows")
    parser.add_argument(
        "--tokenizer",
        default="smollm2",
        help="a directory, a .gguf file or a catalogue name; prompts are sent as token ids",
    )
    parser.add_argument("--workload", nargs="+", default=["W1", "W2"], choices=sorted(WORKLOADS))
    parser.add_argument("--requests", type=int)
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, default=1, help="runs of each workload, with seeds counted up")
    parser.add_argument("--api-key")
    parser.add_argument("--extra", type=_object, default={}, help="JSON merged into every body")
    parser.add_argument("--ttft-target", type=float, help="milliseconds; with --tpot-target it defines goodput")
    parser.add_argument("--tpot-target", type=float, help="milliseconds")
    add_outputs(parser)


def add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--label", default="headrace bench")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--html", type=Path, help="write a page with plots here")


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return found


def run(args: argparse.Namespace) -> int:
    encode = load_encoder(args.tokenizer)
    target = Target(args.url.rstrip("/"), args.model, args.api_key, args.extra)
    wanted = (_seconds(args.ttft_target), _seconds(args.tpot_target))
    runs = []
    for name in args.workload:
        for turn in range(args.repeat):
            load = run_load(
                target,
                _workload(name, args.concurrency),
                encode,
                seed=args.seed + turn,
                requests=args.requests,
                targets=wanted,
            )
            runs.append(asyncio.run(load))
    publish(args, runs, {"endpoint": args.url, "model": args.model})
    return 1 if any(r.summary.errors for r in runs) else 0


def load_encoder(source: str) -> Callable[[str], Sequence[int]]:
    """The `encode` of a model's tokenizer, without special tokens."""
    tokenizer = load_tokenizer(resolve_model(source))
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3


def _workload(name: str, concurrency: int | None) -> Workload:
    found = WORKLOADS[name]
    if concurrency is not None and concurrency < 1:
        raise ConfigError(f"--concurrency {concurrency}: at least 1")
    return replace(found, concurrency=concurrency) if concurrency else found


def facts() -> dict[str, Any]:
    return {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}


def publish(args: argparse.Namespace, runs: Sequence[Run], more: dict[str, Any]) -> None:
    """The three forms of a report, as the options ask for."""
    known = facts() | more
    print_table(args.label, runs)
    for found in runs:
        if found.summary.first_error:
            print(f"{found.workload.name}: {found.summary.first_error}")
    if args.json:
        dump(args.json, as_json(args.label, runs, known))
    if args.html:
        write_html(args.html, args.label, runs, known)
