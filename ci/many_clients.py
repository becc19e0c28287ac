#!/usr/bin/env python3
"""What a crowd of clients costs a normal one: its time per output token alone and beside them, in turns, the processor
time of the server for each of its tokens, and the server's memory.

    ci/many_clients.py [--model smollm2] [--idle 1000] [--slow 200] [--rounds 6]

Idle clients keep a connection open after a request. Slow clients are of three kinds: they send a body byte by byte,
read a large answer a few bytes at a time, or don't read the stream that they asked for. None of them has work for the
engine while the normal client is measured. Exits with 1 if the median of the rounds' ratios exceeds 1.05, or if the
memory grows from the second crowd to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import httpx
import psutil

_MOST_RATIO = 1.05
_MOST_GROWTH = 16 * 2**20
"""Bytes that the server may grow by after the second crowd."""
_TOKENS = 96
_ANSWERS = 3
"""Answers of one round."""


@dataclass(frozen=True)
class Place:
    host: str
    port: int


# The crowd, which runs in a process of its own


async def crowd(place: Place, idle: int, slow: int) -> None:
    """Print a line when everybody is connected and no one has work for the engine; ends with standard input."""
    ready = asyncio.Semaphore(0)
    kinds = (slow_sender, slow_reader, forgetful)
    clients = [idle_client(place, ready) for _ in range(idle)]
    clients += [kinds[at % len(kinds)](place, ready) for at in range(slow)]
    # Not all at once: the backlog of a socket is short.
    tasks = []
    for at in range(0, len(clients), 50):
        tasks += [asyncio.create_task(client) for client in clients[at : at + 50]]
        await asyncio.sleep(0.02)
    for _ in clients:
        await ready.acquire()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()
    lost = [one for one in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(one, Exception)]
    print(json.dumps({"lost": len(lost), "first": repr(lost[0]) if lost else ""}), flush=True)


async def connect(place: Place, small: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    made = socket.socket()
    made.setblocking(False)
    if small:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await asyncio.get_running_loop().sock_connect(made, (place.host, place.port))
    return await asyncio.open_connection(sock=made, limit=4096)


def head(method: str, path: str, body: bytes = b"") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def idle_client(place: Place, ready: asyncio.Semaphore) -> None:
    """Connects again whenever the server has closed its connection."""
    first = True
    while True:
        reader, writer = await connect(place)
        writer.write(head("GET", "/version"))
        await reader.readuntil(b"\r\n\r\n")
        if first:
            ready.release()
            first = False
        while await reader.read(4096):
            pass
        writer.close()


async def slow_sender(place: Place, ready: asyncio.Semaphore) -> None:
    first = True
    while True:
        _, writer = await connect(place)
        body = json.dumps({"prompt": "x" * 400, "max_tokens": 1}).encode()
        writer.write(head("POST", "/v1/completions", body)[: -len(body)])
        if first:
            ready.release()
            first = False
        with contextlib.suppress(ConnectionError):
            # Never complete: the server ends it.
            for at in range(len(body) - 1):
                writer.write(body[at : at + 1])
                await writer.drain()
                await asyncio.sleep(0.5)
        writer.close()


async def slow_reader(place: Place, ready: asyncio.Semaphore) -> None:
    reader, writer = await connect(place, small=True)
    writer.write(head("GET", "/openapi.json"))
    await reader.readexactly(64)
    ready.release()
    while await reader.read(16):
        await asyncio.sleep(0.5)
    # The server ends no connection whose client reads.
    await asyncio.Event().wait()
    writer.close()


async def forgetful(place: Place, ready: asyncio.Semaphore) -> None:
    """Asks for a stream and reads nothing after its head; by then the answer is complete in the server's buffers."""
    reader, writer = await connect(place, small=True)
    body = json.dumps({"prompt": "Hi", "max_tokens": 8, "stream": True}).encode()
    writer.write(head("POST", "/v1/completions", body))
    await reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(3)
    ready.release()
    await asyncio.Event().wait()
    writer.close()


# The measurement


def tpot(client: httpx.Client, url: str) -> float:
    """Seconds per output token of one streamed answer."""
    body = {"prompt": "Once upon a time", "max_tokens": _TOKENS, "stream": True, "ignore_eos": True, "temperature": 0}
    at = list[float]()
    with client.stream("POST", f"{url}/v1/completions", json=body, timeout=600) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                at.append(time.perf_counter())
    return (at[-1] - at[0]) / (len(at) - 1)


@contextlib.contextmanager
def beside(place: Place, idle: int, slow: int):
    numbers = ["--idle", str(idle), "--slow", str(slow)]
    command = [sys.executable, __file__, "--crowd", place.host, str(place.port), *numbers]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line == "ready\n", line
        yield
    finally:
        process.stdin.close()
        print("  crowd:", process.stdout.readline().strip(), flush=True)
        process.wait(60)


@dataclass
class Answers:
    """What one round measured: medians of its answers."""

    tpot: float
    processor: float
    """Seconds of the server's process per token."""


def ask(client: httpx.Client, url: str, server: psutil.Process) -> Answers:
    before = sum(server.cpu_times()[:2])
    times = [tpot(client, url) for _ in range(_ANSWERS)]
    return Answers(statistics.median(times), (sum(server.cpu_times()[:2]) - before) / (_ANSWERS * _TOKENS))


def measure(place: Place, server: psutil.Process, idle: int, slow: int, rounds: int) -> int:
    url = f"http://{place.host}:{place.port}"
    alone, crowded, held = list[Answers](), list[Answers](), list[int]()
    with httpx.Client() as client:
        tpot(client, url)
        for turn in range(rounds):
            alone.append(ask(client, url, server))
            with beside(place, idle, slow):
                crowded.append(ask(client, url, server))
                held.append(server.memory_info().rss)
            print(f"round {turn + 1}: server holds {held[-1] / 2**20:.0f} MiB beside the crowd", flush=True)
    ratios = [there.tpot / here.tpot for here, there in zip(alone, crowded, strict=True)]
    report = {
        "idle": idle,
        "slow": slow,
        "tpot_ms_alone": [round(one.tpot * 1000, 2) for one in alone],
        "tpot_ms_crowded": [round(one.tpot * 1000, 2) for one in crowded],
        "ratio": round(statistics.median(ratios), 4),
        "server_us_per_token_alone": round(statistics.median(one.processor for one in alone) * 1e6, 1),
        "server_us_per_token_crowded": round(statistics.median(one.processor for one in crowded) * 1e6, 1),
        "memory_mib": [round(size / 2**20, 1) for size in held],
    }
    print(json.dumps(report))
    return 0 if statistics.median(ratios) <= _MOST_RATIO and held[-1] - held[min(1, rounds - 1)] <= _MOST_GROWTH else 1


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--slow", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1, help="of the engine: the rest is for the clients")
    parser.add_argument("--crowd", nargs=2, metavar=("HOST", "PORT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    if args.crowd:
        asyncio.run(crowd(Place(args.crowd[0], int(args.crowd[1])), args.idle, args.slow))
        return 0
    place = Place("127.0.0.1", free_port())
    options = ["--port", str(place.port), "--threads", str(args.threads), "--kv-memory", "256MiB"]
    command = [sys.executable, "-m", "headrace.cli.main", "serve", args.model, *options]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout.readline().startswith("Headrace serves"), "the server did not start"
        return measure(place, psutil.Process(server.pid), args.idle, args.slow, args.rounds)
    finally:
        server.terminate()
        server.wait(60)


if __name__ == "__main__":
    sys.exit(main())
