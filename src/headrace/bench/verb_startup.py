"""From `headrace serve` to the first token, part by part: start the server, ask it one thing, stop it."""

from __future__ import annotations

import argparse
import http.client
import json
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from headrace.errors import EngineDead

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a start may take")
    parser.add_argument("options", nargs="*", help="passed to `headrace serve`, after --")


def run(args: argparse.Namespace) -> int:
    runs = [_once(args.model, args.options, args.limit) for _ in range(args.runs)]
    table = Table(title=f"start-up of {args.model}, seconds, {args.runs} runs")
    for column in ("part", "min", "median", "max"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for part in runs[0]:
        values = [found[part] for found in runs if part in found]
        table.add_row(part, *(f"{f(values):.3f}" for f in (min, statistics.median, max)))
    Console().print(table)
    return 0


def _once(model: str, options: Sequence[str], limit: float) -> dict[str, float]:
    """Seconds from process start, by milestone."""
    port = _free_port()
    command = [sys.executable, "-m", "headrace.cli.main", "serve", model, "--port", str(port), *options]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            _wait(server, port, start + limit)
            parts = {"port open": time.perf_counter() - start}
            name = _get_model(port)
            _first_token(port, name)
            parts["first token"] = time.perf_counter() - start
        finally:
            server.send_signal(signal.SIGTERM)
            output = server.communicate(timeout=60)[0]
    found = re.findall(r"^(?:start-up: )?(\w[\w ]*): (\d+\.\d+) s$", output, re.MULTILINE)
    return {f"  {name}": float(value) for name, value in found} | parts


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(server: subprocess.Popen[str], port: int, deadline: float) -> None:
    while time.perf_counter() < deadline:
        if server.poll() is not None:
            raise EngineDead(f"the server ended with {server.returncode} before it was ready")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.005)
    raise EngineDead("the server was not ready in time; raise --limit")


def _get_model(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/v1/models")
    name: str = json.load(connection.getresponse())["data"][0]["id"]
    return name


def _first_token(port: int, name: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = json.dumps({"model": name, "prompt": "The river", "max_tokens": 1, "temperature": 0})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise EngineDead(f"the first request failed: HTTP {response.status} {response.read(300)!r}")
    response.read()
