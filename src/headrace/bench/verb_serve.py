"""Send workloads to an OpenAI endpoint and report latency, throughput, the three wastes, processor time and memory.

Wastes are those of the run alone if the server has counters for them (such as `headrace_device_busy_seconds_total`),
else means of its gauges. Memory and processor time are those of the server's processes, if it runs on this machine.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import httpx

from headrace import event_loop
from headrace.bench.bench_report import add_outputs, publish
from headrace.bench.load_options import add_load_options, load_encoder, planned_runs, target_seconds
from headrace.bench.load_runs import load_report
from headrace.bench.process_cost import find_server
from headrace.bench.server_load import Endpoint, run_load
from headrace.errors import excerpt
from headrace.server_address import http_address

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server")
    parser.add_argument("--model", default="smollm2", help="the model's name on the server")
    parser.add_argument(
        "--tokenizer",
        default="smollm2",
        help="a directory, a .gguf file or a catalogue name; prompts are sent as token ids",
    )
    parser.add_argument("--api-key", metavar="KEY", help="of that server")
    parser.add_argument("--extra", type=_object, default={}, help="JSON merged into every body")
    parser.add_argument(
        "--server-pid",
        type=int,
        metavar="PID",
        help="process to measure (default: the one that listens on that port here)",
    )
    add_load_options(parser, ["W1", "W2"])
    add_outputs(parser)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{excerpt(text)} is not a JSON object")
    return found


def engine_facts(target: Endpoint) -> dict[str, str]:
    """Platform and dtype, as far as the server tells them: only ours does."""
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    try:
        model = httpx.get(f"{target.url}/v1/engine/state", headers=headers, timeout=5).json()["model"]
        return {"platform": str(model["platform"]), "dtype": str(model["dtype"])}
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return {"dtype": "not told by the server"}


def run(args: argparse.Namespace) -> int:
    url = http_address(args.url)
    args.progress("bench serve: prompts")
    encode = load_encoder(args.tokenizer)
    target = Endpoint(url, args.model, args.api_key, args.extra)
    pid = args.server_pid or find_server(url)
    runs = []
    for workload, seed in planned_runs(args):
        load = run_load(
            target,
            workload,
            encode,
            seed=seed,
            requests=args.requests,
            targets=target_seconds(args),
            pid=pid,
            progress=args.progress,
        )
        runs.append(event_loop.run(load))
    known = {"endpoint": url, "model": args.model, "process": pid, **engine_facts(target)}
    publish(args, load_report(args.label, runs, known))
    return 1 if any(r.summary.errors for r in runs) else 0
