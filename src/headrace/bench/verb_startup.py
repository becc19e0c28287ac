"""Time from `headrace serve` to the first token, with and without packed weights cached by an earlier start: start the
server, send one request, stop it."""

from __future__ import annotations

import argparse
import resource
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import httpx

from headrace.bench.bench_report import BenchReport, ReportTable, add_outputs, facts, publish
from headrace.bench.plots import Bar, bars
from headrace.bench.process_cost import largest_peak
from headrace.errors import EngineDead

__all__ = ["configure", "run"]

_COLD = ("--packed-cache", "0")
_TIMEOUT = 300.0
"""Seconds that an answer may take."""
_SAVED = 2.0
"""Seconds that the first server keeps running, in which it writes its packed weights to the cache."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="starts of each kind")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a start may take")
    parser.add_argument("--options", default="", help='for `headrace serve`, as --options="--threads 1"')
    add_outputs(parser, "start-up")


def run(args: argparse.Namespace) -> int:
    given = shlex.split(args.options)
    args.progress("first start")
    _once(args.model, given, args.limit, _SAVED)
    ways = {"with": given, "without": [*given, *_COLD]}
    # Alternating, so that other load on the machine affects both in the same way.
    rounds = []
    for number in range(args.runs):
        args.progress("starts", number, args.runs)
        rounds.append({way: _once(args.model, options, args.limit) for way, options in ways.items()})
    found = {way: {part: [one[way][0][part] for one in rounds] for part in rounds[0][way][0]} for way in ways}
    peaks = {way: max(one[way][1] for one in rounds) for way in ways}
    publish(args, _report(args, found, peaks, _packed_bytes()))
    return 0


def _packed_bytes() -> int:
    """Size of the packed weights that were read or written last, which are this model's; 0 if none are cached."""
    # Late: it imports torch, which no other part of this verb needs.
    from headrace.checkpoints.packed.cache import directory_of, kept

    entries = kept(directory_of())
    return entries[-1].size if entries else 0


def _report(
    args: argparse.Namespace, found: Mapping[str, Mapping[str, Sequence[float]]], peaks: Mapping[str, int], packed: int
) -> BenchReport:
    lines = [(way, part, values) for way, parts in found.items() for part, values in parts.items()]
    rows = [(way, part, *(f"{f(values):.3f}" for f in (min, statistics.median, max))) for way, part, values in lines]
    entries = [
        Bar(f"{way}: {part}", statistics.median(values), (min(values), max(values))) for way, part, values in lines
    ]
    columns = ("cached packed weights", "until", "min", "median", "max")
    table = ReportTable(f"start-up of {args.model}, seconds from the start of the process", columns, rows, words=2)
    ratios = {
        part: statistics.median(found["without"][part]) / statistics.median(values)
        for part, values in found["with"].items()
    }
    shown = [(part, f"{ratio:.2f}") for part, ratio in ratios.items()]
    gain = ReportTable("gain from cached weights: without over with, medians", ("until", "ratio"), shown)
    sizes = [(way, f"{peak / 1e6:.0f}", f"{packed / 1e6:.0f}" if packed else "–") for way, peak in peaks.items()]
    memory = ReportTable(
        "peak memory until the first token, MB", ("cached packed weights", "engine", "packed weights"), sizes
    )
    plot = bars(entries, f"seconds, median with the shortest and the longest of {args.runs}")
    data = {"model": args.model, "seconds": found, "ratios": ratios, "peak_bytes": peaks, "packed_bytes": packed}
    return BenchReport(
        args.label, data, [table, gain, memory], [plot], facts() | {"model": args.model, "options": args.options}
    )


def _once(model: str, options: Sequence[str], limit: float, linger: float = 0.0) -> tuple[dict[str, float], int]:
    """(Seconds from process start by milestone, with the processor seconds of all its processes until their end; peak
    memory of the engine's process until the first token, in bytes)."""
    port = _free_port()
    command = [sys.executable, "-m", "headrace", "serve", model, "--port", str(port), *options]
    start, used = time.perf_counter(), _processor_seconds()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        try:
            _wait(server, port, start + limit)
            parts = {"port open": time.perf_counter() - start}
            _first_token(port, _get_model(port))
            parts["first token"] = time.perf_counter() - start
            peak = largest_peak(server.pid)
            time.sleep(linger)
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
    return parts | {"the end, of processors": _processor_seconds() - used}, peak


def _processor_seconds() -> float:
    """Processor seconds of this process's children that have ended, and of their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(server: subprocess.Popen[str], port: int, deadline: float) -> None:
    while time.perf_counter() < deadline:
        if server.poll() is not None:
            lines = (server.stderr.read() if server.stderr is not None else "").strip().splitlines()
            last = lines[-1] if lines else f"it ended with {server.returncode}"
            raise EngineDead(f"the server was never ready: {last}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.005)
    raise EngineDead("the server was not ready in time; raise --limit")


def _get_model(port: int) -> str:
    name: str = httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=_TIMEOUT).json()["data"][0]["id"]
    return name


def _first_token(port: int, name: str) -> None:
    body = {"model": name, "prompt": "The river", "max_tokens": 1, "temperature": 0}
    response = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=_TIMEOUT)
    if response.status_code != 200:
        raise EngineDead(f"the first request failed: HTTP {response.status_code} {response.text[:300]!r}")
