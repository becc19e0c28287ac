"""What the router costs and what it gains, measured in one run on this machine.

    python ci/route_speed.py cost [--rate 500] [--seconds 8]     the router's time per request, before a stub engine
    python ci/route_speed.py gain [--model DIR] [--sessions 24]  hit rate and TTFT against round robin, four engines

`cost`: a stub answers at once, so what is left is the router. Its processor time comes from the kernel's counters (of
its own process and of the one that renders templates), its delay from the same requests sent to the stub itself.
`gain`: both policies in turn, each with fresh engines, over the same conversations.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).parents[1]
STUB = ROOT / "tests" / "unit" / "route" / "stub_engine.py"
WORDS = "the mill wheel turns while water runs down the race and the miller waits for more grain".split()


def start(stack: ExitStack, *command: str) -> tuple[subprocess.Popen[str], str]:
    """A process that prints its address, and the address."""
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    assert process.stdout is not None
    match = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
    assert match, f"{command} did not start"
    return process, match[0]


# Cost


def processor_seconds(pid: int) -> float:
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in family)


async def load(url: str, rate: float, seconds: float, bodies: list[bytes]) -> list[float]:
    """Send requests at fixed times over kept connections. Returns the seconds of each."""
    host, port = url.removeprefix("http://").split(":")
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    times: list[float] = []

    async def one(body: bytes, at: float) -> None:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        reader, writer = idle.pop() if idle else await asyncio.open_connection(host, int(port))
        began = time.perf_counter()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        match = re.search(rb"content-length: (\d+)", head)
        assert head.startswith(b"HTTP/1.1 200"), head
        assert match, head
        await reader.readexactly(int(match[1]))
        times.append(time.perf_counter() - began)
        idle.append((reader, writer))

    first = time.perf_counter() + 0.1
    await asyncio.gather(*(one(bodies[n % len(bodies)], first + n / rate) for n in range(int(rate * seconds))))
    for _, writer in idle:
        writer.close()
    return times


def conversation(draw: random.Random, words: int) -> bytes:
    turns = [{"role": "system", "content": "You are a helpful assistant."}]
    for at in range(3):
        text = " ".join(draw.choices(WORDS, k=words // 3))
        turns.append({"role": ("user", "assistant")[at % 2], "content": text})
    return json.dumps({"model": "tiny", "messages": turns, "max_tokens": 8}).encode()


def cost(args: argparse.Namespace) -> None:
    draw = random.Random(1)
    bodies = [conversation(draw, args.words) for _ in range(200)]
    with ExitStack() as stack:
        stubs = [start(stack, str(STUB), "0", "8", *tokenizer(args))[1] for _ in range(2)]
        router, url = start(stack, "-m", "headrace", "route", *stubs, "--port", "0")
        for _ in range(2):  # The second time everything is warm.
            direct = asyncio.run(load(stubs[0], args.rate, args.seconds / 2, bodies))
            before = processor_seconds(router.pid)
            own = psutil.Process(router.pid).cpu_times()
            routed = asyncio.run(load(url, args.rate, args.seconds / 2, bodies))
            used = processor_seconds(router.pid) - before
            after = psutil.Process(router.pid).cpu_times()
        mine = after.user + after.system - own.user - own.system
        print(f"{args.rate:g} requests/s, prompts of about {args.words} words, {len(routed)} requests")
        print(
            f"router's processor time per request: {1000 * mine / len(routed):.3f} ms own process, "
            f"{1000 * used / len(routed):.3f} ms with the renderer of templates"
        )
        for name, times in (("stub itself", direct), ("through the router", routed)):
            cuts = statistics.quantiles(times, n=100)
            print(f"{name}: p50 {1000 * cuts[49]:.3f} ms, p99 {1000 * cuts[98]:.3f} ms")
        added = statistics.median(routed) - statistics.median(direct)
        print(f"added at the median: {1000 * added:.3f} ms")


def tokenizer(args: argparse.Namespace) -> list[str]:
    """The stub says where a tokenizer is, so that the router reads prompts as it does before an engine."""
    return [] if args.model is None else [str(Path(args.model).resolve())]


# Gain


def tiny_model(folder: Path) -> Path:
    sys.path[:0] = [str(ROOT / "tests" / "engine"), str(ROOT / "tests")]
    import tiny_models
    from server_harness import make_model

    make_model(folder)
    tiny_models.save(
        "llama", folder, vocab_size=260, max_position_embeddings=2048, num_hidden_layers=4, hidden_size=128
    )
    return folder


def gain(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Path(args.model) if args.model else tiny_model(Path(folder))
        for policy in ("round robin", "headrace") * args.rounds:
            print(f"{policy:<12}", *measure(policy, model, args), flush=True)


def measure(policy: str, model: Path, args: argparse.Namespace) -> list[str]:
    options = ["--threads", "1", "--num-blocks", str(args.blocks), "--served-model-name", "tiny", "--port", "0"]
    with ExitStack() as stack:
        engines = [start(stack, "-m", "headrace", "serve", str(model), *options)[1] for _ in range(args.engines)]
        urls = engines
        if policy == "headrace":
            urls = [start(stack, "-m", "headrace", "route", *engines, "--port", "0")[1]]
            wait_for_events(urls[0])
        began = time.perf_counter()
        first, cached, prompt = asyncio.run(talk(urls, args))
        took = time.perf_counter() - began
    cuts = statistics.quantiles(first, n=100)
    return [
        f"requests {len(first)}",
        f"hit rate {cached / prompt:.1%}",
        f"TTFT mean {1000 * statistics.mean(first):.1f} ms, p50 {1000 * cuts[49]:.1f}, p99 {1000 * cuts[98]:.1f}",
        f"in {took:.1f} s",
    ]


def wait_for_events(url: str) -> None:
    while not all(
        row["events"] and row["reads_prompts"] for row in httpx.get(f"{url}/v1/router/replicas").json()["replicas"]
    ):
        time.sleep(0.05)


async def talk(urls: list[str], args: argparse.Namespace) -> tuple[list[float], int, int]:
    """Conversations with shared system prompts, a few at a time; turns go to the engines in turn, or to the router."""
    draw = random.Random(7)
    systems = [" ".join(draw.choices(WORDS, k=60)) for _ in range(6)]
    turn = 0
    first: list[float] = []
    cached = prompt = 0
    places = asyncio.Semaphore(args.concurrency)

    async def session(http: httpx.AsyncClient, seed: int) -> None:
        nonlocal turn, cached, prompt
        mine = random.Random(seed)
        messages: list[dict[str, Any]] = [{"role": "system", "content": mine.choice(systems)}]
        async with places:
            for _ in range(args.turns):
                messages.append({"role": "user", "content": " ".join(mine.choices(WORDS, k=12))})
                url = urls[turn % len(urls)]
                turn += 1
                body = {
                    "model": "tiny",
                    "messages": messages,
                    "max_tokens": 12,
                    "temperature": 0,
                    "ignore_eos": True,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                }
                began, text, usage, seen = time.perf_counter(), "", None, False
                async with http.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
                    assert reply.status_code == 200, await reply.aread()
                    async for line in reply.aiter_lines():
                        if line.startswith("data: {"):
                            if not seen:
                                first.append(time.perf_counter() - began)
                                seen = True
                            event = json.loads(line[6:])
                            usage = event.get("usage") or usage
                            text += "".join(one["delta"].get("content") or "" for one in event["choices"])
                assert usage is not None
                cached += usage["prompt_tokens_details"]["cached_tokens"]
                prompt += usage["prompt_tokens"]
                messages.append({"role": "assistant", "content": text})

    async with httpx.AsyncClient(timeout=120, trust_env=False) as http:
        await asyncio.gather(*(session(http, seed) for seed in range(args.sessions)))
    return first, cached, prompt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("cost")
    one.add_argument("--rate", type=float, default=500)
    one.add_argument("--seconds", type=float, default=8)
    one.add_argument("--words", type=int, default=150)
    one.add_argument("--model", help="a folder with a tokenizer; without one, texts are compared")
    one.set_defaults(run=cost)
    two = verbs.add_parser("gain")
    two.add_argument("--model", help="default: a tiny random model")
    two.add_argument("--engines", type=int, default=4)
    two.add_argument("--blocks", type=int, default=600, help="of each engine's cache")
    two.add_argument("--sessions", type=int, default=24)
    two.add_argument("--turns", type=int, default=5)
    two.add_argument("--concurrency", type=int, default=4)
    two.add_argument("--rounds", type=int, default=2)
    two.set_defaults(run=gain)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
