#!/usr/bin/env python3
"""Time to the first token of requests whose grammar is not compiled yet: 30 tools of 8 parameters each.

Each round sends the same prompt four times to the default model, in process: free, with a new grammar, with the same
grammar again, and free once more. Prints medians in milliseconds, and those of compiling alone.

Usage: ci/grammar_latency.py [--rounds 15] [--tools 30]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from typing import Any


def tools(count: int, number: int) -> dict[str, Any]:
    """A schema for one call of one of the tools; `number` makes it another grammar."""
    kinds: list[Any] = [
        {"type": "string"}, {"type": "integer", "minimum": 0, "maximum": 100}, {"type": "boolean"}, {"type": "number"},
        {"enum": ["celsius", "fahrenheit"]}, {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        {"type": "string", "format": "date"}, {"type": ["string", "null"], "maxLength": 40},
    ]  # fmt: skip
    calls = []
    for at in range(count):
        parameters = {f"p{number}_{at}_{i}": kind for i, kind in enumerate(kinds)}
        arguments = {
            "type": "object",
            "properties": parameters,
            "required": list(parameters)[:4],
            "additionalProperties": False,
        }
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": f"tool_{number}_{at}"}, "arguments": arguments},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    return {"anyOf": calls}


def first_token(llm: Any, prompt: str, params: Any) -> float:
    start = time.perf_counter()
    llm.generate(prompt, params)
    return time.perf_counter() - start


def measure(rounds: int, count: int) -> dict[str, list[float]]:
    from headrace import LLM, SamplingParams, StructuredOutputs

    found: dict[str, list[float]] = defaultdict(list)
    free = SamplingParams(max_tokens=1)
    with LLM("smollm2", max_model_len=1024) as llm:
        for number in range(-2, rounds):
            prompt = f"Call {number} of a tool as JSON, for the weather in Rome tomorrow: "
            schema = tools(count, number + 2)
            held = SamplingParams(max_tokens=1, structured_outputs=StructuredOutputs(json=schema))
            # The first sight of a prompt computes it; all that are timed find it in the cache.
            first_token(llm, prompt, free)
            order = [("free", free), ("cold grammar", held), ("the same again", held), ("free, after", free)]
            for name, params in order:
                seconds = first_token(llm, prompt, params)
                # The first rounds set the grammar library up.
                if number >= 0:
                    found[name].append(seconds)
    return found


def compile_alone(rounds: int, count: int) -> list[float]:
    from headrace.grammar.loading import find_backend, read_vocabulary
    from headrace.hub.catalogue import resolve_model
    from headrace.types import Constraint

    backend = find_backend("llguidance")(read_vocabulary(resolve_model("smollm2"), 49152, (0, 2)))
    found = []
    for number in range(rounds + 2):
        text = json.dumps(tools(count, number))
        start = time.perf_counter()
        backend.compile(Constraint("json_schema", text)).matcher()
        found.append(time.perf_counter() - start)
    return found[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tools", type=int, default=30)
    args = parser.parse_args()
    found = measure(args.rounds, args.tools)
    found["compiling alone"] = compile_alone(args.rounds, args.tools)
    for name, seconds in found.items():
        low, high = min(seconds), max(seconds)
        print(f"{name}: {1e3 * statistics.median(seconds):.1f} ms (from {1e3 * low:.1f} to {1e3 * high:.1f})")


if __name__ == "__main__":
    main()
