#!/usr/bin/env python3
"""Runs a real Prometheus against a server over the fake engine: it scrapes, the rules load and evaluate, and every
expression of the dashboard is answered. Needs `prometheus` on the PATH."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml

ROOT = Path(__file__).parent.parent
OPS = ROOT / "ops"
PATIENCE = 120.0
"""Seconds."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def until(reached: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if found := reached():
                return found
        except httpx.TransportError:
            pass
        time.sleep(0.25)
    raise SystemExit(f"{what} did not happen within {PATIENCE:.0f} seconds")


def main() -> int:
    script = ROOT / "tests" / "unit" / "server" / "server_process.py"
    port = free_port()
    options = json.dumps({"server": {"port": port}})
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([sys.executable, str(script), options], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        prometheus = None
        try:
            url = f"http://127.0.0.1:{port}"
            until(lambda: httpx.get(f"{url}/health").status_code == 200, "the server's start")
            listen = free_port()
            prometheus = subprocess.Popen(command(Path(folder), port, listen), stderr=subprocess.DEVNULL)
            return check(url, f"http://127.0.0.1:{listen}/api/v1")
        finally:
            for process in (prometheus, server):
                if process is not None:
                    process.terminate()
                    process.wait(30)


def command(folder: Path, target: int, listen: int) -> list[str]:
    """Prometheus with the shipped configuration, for another target and without waiting ten seconds for each scrape."""
    config = yaml.safe_load((OPS / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{target}"]}]
    config["rule_files"] = [str(OPS / "prometheus" / "rules.yml")]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    options = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": f"127.0.0.1:{listen}",
    }
    return ["prometheus", *(f"--{name}={value}" for name, value in options.items())]


def check(server: str, api: str) -> int:
    def ask(expression: str) -> list[Any]:
        answer = httpx.get(f"{api}/query", params={"query": expression}, timeout=10)
        body = answer.json()
        if body["status"] != "success":
            raise SystemExit(f"{expression}: {body.get('error')}")
        found: list[Any] = body["data"]["result"]
        return found

    until(lambda: ask('up{job="headrace"} == 1'), "a scrape")
    for turn in range(8):
        for stream in (True, False):
            body = {"prompt": f"Hello {turn}", "max_tokens": 5, "stream": stream}
            httpx.post(f"{server}/v1/completions", json=body, timeout=30).raise_for_status()
        httpx.get(f"{server}/no/such/route")
        time.sleep(0.5)
    until(lambda: ask("rate(headrace_generation_tokens_total[5m]) > 0"), "a rate")
    groups = httpx.get(f"{api}/rules", timeout=10).json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    until(lambda: ask("headrace:generation_tokens:rate5m"), "the evaluation of the rules")
    wrong = [rule["name"] for rule in rules if rule["health"] == "err"]
    empty = list[str]()
    board = json.loads((OPS / "grafana" / "headrace.json").read_text())
    count = 0
    for panel in board["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "1m").replace("$job", "headrace")
            expression = re.sub(r"\$instance\b", ".*", expression)
            count += 1
            if not ask(expression):
                empty.append(f"{panel['title']}: {expression}")
    print(f"Prometheus evaluates {len(rules)} rules, and answers {count} expressions of the dashboard")
    for text in (*(f"rule {name} fails" for name in wrong), *(f"no series for {text}" for text in empty)):
        print(text)
    return 1 if wrong or empty else 0


if __name__ == "__main__":
    sys.exit(main())
