"""Throughput in this process, without HTTP: all requests of a workload handed over at once."""

from __future__ import annotations

import argparse
import json
import time

from headrace.bench.verb_serve import load_encoder
from headrace.bench.workloads import WORKLOADS, build
from headrace.llm import LLM
from headrace.types import SamplingParams

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--workload", default="W2", choices=sorted(WORKLOADS))
    parser.add_argument("--requests", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--platform")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    prompts = build(WORKLOADS[args.workload], load_encoder(args.model), args.seed, args.requests)
    slots = WORKLOADS[args.workload].concurrency
    with LLM(args.model, dtype=args.dtype, threads=args.threads, platform=args.platform, max_num_seqs=slots) as llm:
        params = [SamplingParams(max_tokens=p.max_tokens, temperature=0.0, ignore_eos=True) for p in prompts]
        start = time.perf_counter()
        answers = llm.generate([list(p.token_ids) for p in prompts], params)
        wall = time.perf_counter() - start
        stats = llm.stats()
    output = sum(len(choice.token_ids) for answer in answers for choice in answer.outputs)
    found = {
        "workload": args.workload,
        "requests": len(prompts),
        "seconds": round(wall, 3),
        "output_tok_s": round(output / wall, 1),
        "total_tok_s": round((output + sum(len(p.token_ids) for p in prompts)) / wall, 1),
        "device_busy": round(stats.device_busy, 3),
    }
    print(json.dumps(found) if args.json else "  ".join(f"{name} {value}" for name, value in found.items()))
    return 0
