#!/usr/bin/env python3
"""Time to first token of a prompt that is computed, against one whose blocks another engine has computed.

    python ci/transfer_speed.py --model smollm2 --connectors tcp,shm,nixl,mooncake

For each connector two servers are started: one that computes prompts, and one that takes their blocks. A round sends
the second one a prompt that it must compute, and another of the same length whose blocks it fetches. Printed are the
medians over the rounds, and of the ratio within a round.

With `--forms` a round has two prompts that one computes and the other answers: asked in turn, and both at once, so that
blocks are fetched while later ones are computed. The times begin with the first request.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx


@contextmanager
def server(args: argparse.Namespace, role: str, connector: str) -> Iterator[httpx.Client]:
    """A server of its own, which ends with the context."""
    command = [sys.executable, "-m", "headrace", "serve", args.model, "--role", role, "--kv-connector", connector]
    command += ["--port", "0", "--threads", str(args.threads), "--max-model-len", str(args.tokens + 64)]
    command += ["--num-blocks", str(4 * args.tokens // 16), "--kv-timeout", "60", *args.option]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://[\w.:]+", process.stdout.readline())
        assert found, f"the server did not start: {' '.join(command)}"
        with httpx.Client(base_url=found[0], timeout=600) as client:
            yield client
    finally:
        process.terminate()
        process.wait(60)


def first_token(client: httpx.Client, args: argparse.Namespace, prompt: list[int], given: object = None) -> float:
    """Seconds to the first token of a streamed answer."""
    body = {"prompt": prompt, "max_tokens": 2, "temperature": 0, "stream": True, "ignore_eos": True}
    if given is not None:
        body["kv_transfer_params"] = given
    began = time.perf_counter()
    with client.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            assert answer.status_code == 200, line
            if line.startswith("data:"):
                return time.perf_counter() - began
    raise AssertionError("no token came")


def hand_over(client: httpx.Client, prompt: list[int]) -> object:
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "kv_transfer_params": {"do_remote_decode": True}}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    given: object = answer.json()["kv_transfer_params"]
    return given


def in_turn(prefill: httpx.Client, decode: httpx.Client, args: argparse.Namespace, prompt: list[int]) -> float:
    """Seconds to the first token, if the second engine is asked when the first has answered."""
    began = time.perf_counter()
    given = hand_over(prefill, prompt)
    first_token(decode, args, prompt, given)
    return time.perf_counter() - began


def at_once(prefill: httpx.Client, decode: httpx.Client, args: argparse.Namespace, prompt: list[int]) -> float:
    """Seconds to the first token, if both are asked at once."""
    address = prefill.get("/v1/engine/role").json()["address"]
    given = {"do_remote_prefill": True, "remote_address": address, "patience": 60.0}
    with ThreadPoolExecutor(1) as pool:
        began = time.perf_counter()
        computed = pool.submit(hand_over, prefill, prompt)
        first_token(decode, args, prompt, given)
        seconds = time.perf_counter() - began
        computed.result()
    return seconds


def compare(args: argparse.Namespace, connector: str) -> dict[str, object]:
    """The two forms of a split request, in turns."""
    rng, found = random.Random(1), {"in turn": list[float](), "at once": list[float]()}
    with ExitStack() as stack:
        prefill = stack.enter_context(server(args, "prefill", connector))
        decode = stack.enter_context(server(args, "decode", connector))
        for turn in range(args.rounds + 1):
            for name, form in (("in turn", in_turn), ("at once", at_once))[:: 1 if turn % 2 else -1]:
                seconds = form(prefill, decode, args, [rng.randrange(1000, 30000) for _ in range(args.tokens)])
                if turn:  # The first round warms both up.
                    found[name].append(seconds)
    ratios = [one / other for one, other in zip(*found.values(), strict=True)]
    return {
        "connector": connector,
        **{name: round(statistics.median(times), 4) for name, times in found.items()},
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def measure(args: argparse.Namespace, connector: str) -> dict[str, object]:
    rng = random.Random(1)
    computed, fetched = [], []
    with ExitStack() as stack:
        prefill = stack.enter_context(server(args, "prefill", connector))
        decode = stack.enter_context(server(args, "decode", connector))
        for turn in range(args.rounds + 1):
            mine, others = ([rng.randrange(1000, 30000) for _ in range(args.tokens)] for _ in range(2))
            given = hand_over(prefill, others)
            # In turns, so that neither has the quieter moments.
            times = {}
            for kind in ("computed", "fetched")[:: 1 if turn % 2 else -1]:
                times[kind] = first_token(decode, args, *((mine,) if kind == "computed" else (others, given)))
            if turn:  # The first round warms both up.
                computed.append(times["computed"])
                fetched.append(times["fetched"])
        figures = decode.get("/metrics").text
    hits = re.search(r'headrace_tier_hits_total\{[^}]*tier="' + connector + r'"[^}]*\} ([\d.e+]+)', figures)
    fewest = (args.rounds + 1) * (args.tokens // 16 - 1)
    if hits is None or float(hits[1]) < fewest:
        raise SystemExit(f"{connector}: blocks were computed instead of fetched ({hits and hits[1]} of {fewest})")
    ratios = [one / other for one, other in zip(computed, fetched, strict=True)]
    return {
        "connector": connector,
        "computed": round(statistics.median(computed), 4),
        "fetched": round(statistics.median(fetched), 4),
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--connectors", default="tcp,shm", help="separated by commas")
    parser.add_argument("--tokens", type=int, default=4096, help="of each prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of each server")
    parser.add_argument("--option", action="append", default=[], help="a further flag of both servers")
    parser.add_argument("--forms", action="store_true", help="compare both engines in turn with both at once")
    args = parser.parse_args(argv)
    os.environ.setdefault("HEADRACE_KV_SECRET", secrets.token_hex(16))
    for connector in args.connectors.split(","):
        print(json.dumps((compare if args.forms else measure)(args, connector)), flush=True)


if __name__ == "__main__":
    main()
