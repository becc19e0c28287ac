"""`headrace serve` with several replicas of a tiny model, as a user starts it, under requests all the time."""

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
from server_harness import NAME, PATIENCE

SMALL = (
    f"--platform cpu --threads 1 --port 0 --num-blocks 200 --max-num-seqs 8 --max-num-batched-tokens 64 "
    f"--served-model-name {NAME}"
)


class Replicated:
    def __init__(self, model: Path, options: str) -> None:
        command = [sys.executable, "-m", "headrace", "serve", str(model), *options.split(), *SMALL.split()]
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


@contextmanager
def replicated(model: Path, options: str) -> Iterator[Replicated]:
    """In the end it drains and ends by itself, with all its processes."""
    served = Replicated(model, options)
    try:
        yield served
        family = psutil.Process(served.process.pid).children(recursive=True)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(PATIENCE) == 0
        assert not psutil.wait_procs(family, 60)[1], "nothing stays behind"
    finally:
        served.process.kill()


def actor_processes(row: dict[str, Any]) -> tuple[int, int]:
    """The engine's server, and the actor that holds it."""
    match = re.fullmatch(r"process (\d+) of actor (\d+) on .*", row["where"])
    assert match, row
    return int(match[1]), int(match[2])
