"""Run the workloads of `bench serve` on an engine in this process, without HTTP. The difference is the server cost."""

from __future__ import annotations

import argparse

from headrace.arguments import add_engine_options, engine_options
from headrace.bench.bench_report import add_outputs, publish
from headrace.bench.load_options import add_load_options, planned_runs, target_seconds
from headrace.bench.load_runs import load_report
from headrace.bench.local_engine import open_engine
from headrace.bench.offline_load import run_in_process

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2", help="a directory, a .gguf file or a catalogue name")
    add_load_options(parser, ["W2"])
    add_engine_options(parser)
    add_outputs(parser, "headrace, in process")


def run(args: argparse.Namespace) -> int:
    options = engine_options(args)
    engine, encode = open_engine(args.model, options)
    try:
        runs = []
        for workload, seed in planned_runs(args):
            args.progress(workload.name)
            goals = target_seconds(args)
            runs.append(run_in_process(engine, workload, encode, seed=seed, requests=args.requests, targets=goals))
        known = {"model": args.model, "platform": engine.info.platform, "dtype": engine.info.dtype, **options}
    finally:
        engine.close()
    publish(args, load_report(args.label, runs, known))
    return 1 if any(one.summary.errors for one in runs) else 0
