"""Engines in actors of a Ray cluster on this machine: killed, more and fewer, replaced, and no request is lost."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from server_harness import NAME, PATIENCE, until

pytest.importorskip("ray", reason="Ray is not installed: ci/ray.sh runs these where it is")
OPTIONS = "--replicas 2 --min-replicas 1 --max-replicas 3 --ray-address local --platform cpu --threads 1 --port 0"
SMALL = f"--num-blocks 200 --max-num-seqs 8 --max-num-batched-tokens 64 --served-model-name {NAME}"


class OnRay:
    def __init__(self, model: Path) -> None:
        command = [sys.executable, "-m", "headrace", "serve", str(model), *OPTIONS.split(), *SMALL.split()]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:\d+", self.process.stdout.readline())
        assert match, "it did not start"
        self.url = match[0]
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.http.get("/v1/router/replicas").json()["replicas"]
        return found

    def ready(self) -> list[dict[str, Any]]:
        return [row for row in self.rows() if row["state"] == "ready"]

    def group(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/v1/router/replicas").json()["group"]
        return found

    def ask(self, text: str, stream: bool = False) -> httpx.Response:
        messages = [{"role": "user", "content": text}]
        body = {"messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": True, "stream": stream}
        return self.http.post("/v1/chat/completions", json={"model": NAME, **body})

    @contextmanager
    def load(self, clients: int = 4) -> Iterator[None]:
        """Requests all the time; in the end each must have been answered, and in the same way."""
        over, faults, answers = threading.Event(), list[str](), dict[str, set[str]]()

        def client(number: int) -> None:
            while not over.is_set():
                reply = self.ask(f"client {number}")
                if reply.status_code != 200:
                    faults.append(reply.text)
                else:
                    content = reply.json()["choices"][0]["message"]["content"]
                    answers.setdefault(f"client {number}", set()).add(content)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not faults
        assert len(answers) == clients
        assert all(len(texts) == 1 for texts in answers.values()), answers


@pytest.fixture(scope="module")
def on_ray(tiny_llama: Path) -> Iterator[OnRay]:
    served = OnRay(tiny_llama)
    family = psutil.Process(served.process.pid).children(recursive=True)
    try:
        yield served
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(PATIENCE) == 0
        assert not psutil.wait_procs(family, 30)[1], "nothing stays behind"
    finally:
        served.process.kill()


def processes(row: dict[str, Any]) -> tuple[int, int]:
    """The engine's server, and the actor that holds it."""
    match = re.fullmatch(r"process (\d+) of actor (\d+) on .*", row["where"])
    assert match, row
    return int(match[1]), int(match[2])


@pytest.mark.parametrize("which", [0, 1])
def test_a_killed_replica_is_started_again(on_ray: OnRay, which: int) -> None:
    """`which`: its server, or the actor."""
    until(lambda: len(on_ray.ready()) == 2, on_ray.rows)
    with on_ray.load():
        victim = on_ray.ready()[0]
        psutil.Process(processes(victim)[which]).kill()
        number, restarts = victim["replica"], victim["restarts"]
        until(
            lambda: any(row["replica"] == number and row["restarts"] > restarts for row in on_ray.ready()), on_ray.rows
        )
        assert len(on_ray.rows()) == 2


def test_more_and_fewer(on_ray: OnRay) -> None:
    with on_ray.load():
        assert on_ray.http.post("/v1/router/scale", json={"replicas": 3}).status_code == 200
        until(lambda: len(on_ray.ready()) == 3, on_ray.rows)
        assert on_ray.http.post("/v1/router/scale", json={"replicas": 2}).status_code == 200
        until(lambda: len(on_ray.rows()) == 2, on_ray.rows)


def test_an_update_loses_nothing(on_ray: OnRay, capsys: pytest.CaptureFixture[str]) -> None:
    from headrace.cli.main import main

    until(lambda: len(on_ray.ready()) == 2, on_ray.rows)
    before = {processes(row) for row in on_ray.ready()}
    with on_ray.load():
        assert on_ray.http.post("/v1/router/update", json={}).status_code == 202
        until(lambda: on_ray.group()["update"]["state"] != "running", on_ray.rows)
        assert len(on_ray.ready()) == 2
    assert on_ray.group()["update"] == {"state": "done", "done": 2, "of": 2, "error": None}
    assert not before & {processes(row) for row in on_ray.ready()}
    assert main(["status", on_ray.url]) == 0
    shown = capsys.readouterr().out
    assert shown.count("of actor") == 2
    assert "update: done, 2 of 2 replaced" in shown
