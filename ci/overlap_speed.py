#!/usr/bin/env python3
"""Speed of a method whose drafts the device makes, beside the same between two steps, beside none.

    python ci/overlap_speed.py --task edit chat --batch 1 16
    python ci/overlap_speed.py --speculate dflash:head/ --answers head/training/answers.jsonl   # for held-out prompts

All engines live in this process, and each round of requests is answered by one after the other, in an order that
changes, so that a machine whose speed changes does not decide. Printed are tokens per second (medians over rounds),
their ratios within a round, the share of drafts that were accepted, and whether every answer was the same.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from headrace import LLM, SamplingParams
from headrace.bench.tasks import TASKS, task_prompt
from headrace.engine import draft_depth
from headrace.training.answers import load_answers


@contextlib.contextmanager
def host_drafts() -> Iterator[None]:
    """Engines that are built here believe that the device cannot draft. Their other ranks follow rank 0's plans."""
    with mock.patch.object(draft_depth, "draft_depth", return_value=draft_depth.DraftDepth(0)):
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--speculate", default="ngram", help="the method, with its checkpoint if it takes one")
    parser.add_argument("--answers", type=Path, help="of a training: what it held out, in place of tasks")
    parser.add_argument("--task", choices=sorted(TASKS), nargs="+", default=["edit", "chat"])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--platform")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--quantize")
    args = parser.parse_args()
    options = {"platform": args.platform, "kv_memory": "512MiB", "max_num_seqs": 16}
    options |= {"tensor_parallel_size": args.tensor_parallel_size, "quantize": args.quantize}
    with contextlib.ExitStack() as stack:
        engines = {"none": stack.enter_context(LLM(args.model, **options))}
        with host_drafts():
            engines["host"] = stack.enter_context(LLM(args.model, speculate=args.speculate, **options))
        engines["device"] = stack.enter_context(LLM(args.model, speculate=args.speculate, **options))
        for task in ["held out"] if args.answers else args.task:
            for batch in args.batch:
                compare(args, task, batch, engines)


def compare(args: argparse.Namespace, task: str, batch: int, engines: dict[str, LLM]) -> None:
    rng, same = random.Random(5), True
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    before = {name: drafts(llm) for name, llm in engines.items()}
    held_out = [one.prompt for one in load_answers(args.answers) if one.held_out] if args.answers else []
    for number in range(args.rounds + 1):
        encode = lambda text: engines["none"].tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
        prompts = (
            rng.sample(held_out, batch)
            if held_out
            else [list(task_prompt(TASKS[task], args.prompt, encode, rng)) for _ in range(batch)]
        )
        params = SamplingParams(
            max_tokens=args.tokens, temperature=args.temperature, seed=number, ignore_eos=not held_out
        )
        answers = []
        names = list(engines)
        for name in names[number % 3 :] + names[: number % 3]:
            start = time.perf_counter()
            answers.append(
                [one.outputs[0].token_ids for one in engines[name].generate(prompts, params, progress=False)]
            )
            speeds[name].append(sum(map(len, answers[-1])) / (time.perf_counter() - start))
        same = same and answers[0] == answers[1] == answers[2]
    # The first round compiles and learns.
    found = {name: values[1:] for name, values in speeds.items()}
    line = [f"{task} batch {batch}:"]
    for name, values in found.items():
        line.append(f"{name} {statistics.median(values):.0f} tok/s")
        if name != "none":
            made, right = (now - then for now, then in zip(drafts(engines[name]), before[name], strict=True))
            line.append(f"({ratio(values, found['none']):.2f} of none; {right} of {made} drafts),")
    line.append(f"device / host {ratio(found['device'], found['host']):.2f}, {'same' if same else 'OTHER'} answers")
    print(*line, flush=True)


def ratio(values: list[float], others: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(values, others, strict=True))


def drafts(llm: LLM) -> tuple[int, int]:
    """Drafted and accepted tokens."""
    methods = llm.stats().speculation.methods
    return sum(sum(one.drafted) for one in methods), sum(sum(one.accepted) for one in methods)


if __name__ == "__main__":
    main()
