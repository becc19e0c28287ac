"""Two engines that compute prompts and two that answer, each a process, behind a router; what may be between them; and
many kinds of requests."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from server_harness import NAME, PATIENCE, Server, until

from headrace.server.listening import bind

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "transfer"))
from chaos_proxy import Change, ChaosProxy

PREFILL, DECODE = (0, 1), (2, 3)
"""Numbers of the engines."""
_ERRORS = {"engine_lost", "engine_unavailable", "no_engine", "aborted", "shutting_down"}
_SENTENCE = "It was a bright cold day in April, and the clocks were striking thirteen. "
_KINDS = ("greedy", "seeded", "chat", "stream", "lines", "constrained")
_AT_ONCE = 12


@dataclass(frozen=True)
class Asked:
    """A request."""

    kind: str
    text: str
    leaves: bool = False
    """Its client leaves after the first piece."""

    @property
    def streams(self) -> bool:
        return self.leaves or self.kind in ("stream", "lines")

    @property
    def chat(self) -> bool:
        return self.kind in ("chat", "stream")

    def body(self, salt: str) -> dict[str, Any]:
        more: dict[str, Any] = {"max_tokens": 12, "cache_salt": salt}
        if self.kind != "constrained":
            more |= {"ignore_eos": True}
        if self.kind in ("greedy", "lines", "chat"):
            more |= {"temperature": 0}
        elif self.kind == "constrained":
            more |= {"temperature": 0, "structured_outputs": {"regex": "[a-z]{4,8} [0-9]{3}"}}
        else:
            more |= {"temperature": 1.0, "top_p": 0.9, "seed": len(self.text)}
        if self.kind == "seeded":
            more |= {"logprobs": 2}
        prompt = {"messages": [{"role": "user", "content": self.text}]} if self.chat else {"prompt": self.text}
        return {"model": NAME, **prompt, **more, **({"stream": True} if self.streams else {})}

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"


def mixed(count: int, length: int, seed: int = 0) -> list[Asked]:
    """Requests of every kind, two in three with a prompt of `length` characters and more."""
    draw = random.Random(seed)
    long = [f"{n}: {_SENTENCE * (length // len(_SENTENCE) + 1)}" for n in range(4)]
    texts = [*long, "Once", "Hello there"]
    return [Asked(draw.choice(_KINDS), draw.choice(texts), draw.random() < 0.1) for _ in range(count)]


class Switch:
    """What a proxy does to a connection, which may change at any time."""

    def __init__(self) -> None:
        self.now: Change = _unchanged

    def __call__(self, at: int, data: bytes) -> bytes | None:
        return self.now(at, data)


def _unchanged(at: int, data: bytes) -> bytes:
    return data


def damaged(at: int, data: bytes) -> bytes:
    """A bit of every piece that is more than a greeting."""
    if len(data) < 1000:
        return data
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    return bytes(changed)


def cut(at: int, data: bytes) -> bytes | None:
    """Connections end within their first blocks."""
    return data if at < 20_000 else None


def delayed(at: int, data: bytes) -> bytes:
    time.sleep(0.05)
    return data


class Group:
    """Engines 0 and 1 have the role prefill, 2 and 3 decode. The router meets the former through proxies, and so do
    those who fetch their blocks."""

    def __init__(self, model: Path, folder: Path, options: dict[str, dict[str, Any]], length: int) -> None:
        """`length`: characters of long prompts."""
        self.model, self.folder, self.options, self.length = model, folder, options, length
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "secret").write_text("between us\n")
        self._reserved = [bind("127.0.0.1", 0) for _ in range(6)]
        self._ports = [one.getsockname()[1] for one in self._reserved]
        self.servers = [self._server(number) for number in range(4)]
        self.line = Switch()
        """Between those who give blocks and those who fetch them."""
        self._blocks = [ChaosProxy(self._ports[4 + number], self.line) for number in PREFILL]
        self._http = [ChaosProxy(self._ports[number], self._readdress(number)) for number in PREFILL]
        for one in self.servers:
            one.started()
        self.router = self.new_router()
        self._expected: dict[Asked, object] = {}
        self._salts = 0

    def close(self) -> None:
        self.router.kill()
        for proxy in (*self._blocks, *self._http):
            proxy.close()
        for server in self.servers:
            server.end()
        for one in self._reserved:
            one.close()

    def restart(self, number: int) -> None:
        """A server that was killed, at its address."""
        self.servers[number].end()
        self.servers[number] = self._server(number)
        self.servers[number].started()

    def new_router(self) -> GroupRouter:
        urls = [f"http://127.0.0.1:{proxy.port}" for proxy in self._http]
        return GroupRouter([*urls, *(self.servers[number].url for number in DECODE)])

    def _server(self, number: int) -> Server:
        transfer: dict[str, Any] = {"role": "prefill" if number in PREFILL else "decode", "kv_shelf": 1 << 25}
        transfer |= {"kv_secret_file": str(self.folder / "secret"), "kv_timeout": 2.0}
        options = dict(self.options)
        if number in PREFILL:
            transfer["kv_listen"] = f"127.0.0.1:{self._ports[4 + number]}"
        else:
            disk = f"{self.folder / 'disk'}:64MB"
            options["cache"] = {**options.get("cache", {}), "kv_disk": disk}
        return Server(self.model, {**options, "transfer": transfer}, port=self._ports[number])

    def _readdress(self, number: int) -> Change:
        """What an engine says of itself, with the proxy's address in place of its own: both have as many digits."""
        own, other = (b"tcp:127.0.0.1:%d" % port for port in (self._ports[4 + number], self._blocks[number].port))
        assert len(own) == len(other)
        return lambda at, data: data.replace(own, other)

    # Requests

    def expected(self, asked: Asked) -> object:
        """A single engine's answer: the same for any salt, and whether it is streamed or not."""
        known = self._expected.get(asked)
        if known is None:
            body = {**asked.body("alone"), "stream": False}
            reply = self.servers[DECODE[0]].http.post(asked.path, json=body)
            assert reply.status_code == 200, reply.text
            known = self._expected[asked] = _choice(reply.json())
        return known

    def storm(self, requests: Sequence[Asked], strike: Callable[[], object] = lambda: None) -> Counter[str]:
        """Send all, some at a time, and `strike` when some have been sent. How they ended; none ends with anything but
        the single engine's answer, or one clear error. Requests of one storm share some prefixes."""
        for asked in set(requests):
            self.expected(asked)
        self._salts += 1
        router, before = self.router, self.router.placed()
        with ThreadPoolExecutor(_AT_ONCE) as pool, httpx.Client(timeout=PATIENCE, trust_env=False) as http:
            jobs: list[Future[str]] = [
                pool.submit(self._ask, http, router, asked, f"{self._salts}-{at % 5}")
                for at, asked in enumerate(requests)
            ]
            until(lambda: router.placed() > before + len(requests) // 4)
            strike()
            return Counter(job.result() for job in jobs)

    def _ask(self, http: httpx.Client, router: GroupRouter, asked: Asked, salt: str) -> str:
        try:
            if asked.streams:
                return self._stream(http, router, asked, salt)
            reply = http.post(router.url + asked.path, json=asked.body(salt))
        except httpx.TransportError:
            assert router.killed
            return "router lost"
        if reply.status_code != 200:
            assert reply.json()["error"]["code"] in _ERRORS, reply.text
            return "error"
        assert _choice(reply.json()) == self.expected(asked), (asked, reply.text)
        return "answer"

    def _stream(self, http: httpx.Client, router: GroupRouter, asked: Asked, salt: str) -> str:
        text, finish, failed = "", None, False
        expected: Any = self.expected(asked)
        with http.stream("POST", router.url + asked.path, json=asked.body(salt)) as reply:
            if reply.status_code != 200:
                assert json.loads(reply.read())["error"]["code"] in _ERRORS
                return "error"
            for line in reply.iter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                assert not failed, "nothing follows an error"
                if "error" in event:
                    assert event["error"]["code"] in _ERRORS, line
                    failed = True
                    continue
                (choice,) = event["choices"]
                text += choice["delta"].get("content") or "" if asked.chat else choice["text"]
                finish = choice["finish_reason"] or finish
                if asked.leaves and text:
                    assert expected[0].startswith(text)
                    return "left"
        if failed:
            assert expected[0].startswith(text)
            return "broken"
        assert (text, finish) == expected[:2], asked
        return "answer"

    # States

    def settled(self, *without: int) -> None:
        """Every engine answers, and nothing holds a block."""
        for number, server in enumerate(self.servers):
            if number not in without:
                until(lambda server=server: _free(server), lambda number=number: f"engine {number}")
        until(lambda: all(row["requests"] == 0 for row in self.router.rows()), self.router.rows)

    def ready(self) -> None:
        """The router sends requests to every engine again."""
        until(self.router.ready, self.router.rows)

    def figure(self, number: int, name: str) -> float:
        return self.servers[number].figures().get(name, 0.0)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Engines that answer cannot write a file any more."""
        engines = [self.servers[number].engine for number in DECODE]
        before = [engine.rlimit(psutil.RLIMIT_FSIZE) for engine in engines]
        for engine, (_, most) in zip(engines, before, strict=True):
            engine.rlimit(psutil.RLIMIT_FSIZE, (64, most))
        yield
        for engine, limits in zip(engines, before, strict=True):
            engine.rlimit(psutil.RLIMIT_FSIZE, limits)


class GroupRouter:
    """`headrace route`, before all engines of a group."""

    def __init__(self, urls: Sequence[str]) -> None:
        command = [sys.executable, "-m", "headrace", "route", *urls, "--port", "0", "--split", "always"]
        command += ["--health-timeout", "2"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:\d+", self._process.stdout.readline())
        assert match, "the router did not start"
        self.url, self.killed = match[0], False
        self._http = httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)
        until(self.ready, self.rows)

    def kill(self) -> None:
        self.killed = True
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()
        self._http.close()

    def ready(self) -> bool:
        rows = self.rows()
        roles = [row["role"] for row in rows] == ["prefill", "prefill", "decode", "decode"]
        return roles and all(row["state"] == "ready" and row["events"] and row["reads_prompts"] for row in rows)

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._http.get("/v1/router/replicas").json()["replicas"]
        return found

    def figures(self) -> dict[str, float]:
        lines = self._http.get("/metrics").text.splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def placed(self) -> float:
        """Requests that were sent to engines that answer."""
        if self.killed:
            return 0.0
        figures = self.figures()
        return sum(figures.get(f'headrace_router_placed_total{{replica="{number}"}}', 0.0) for number in DECODE)

    def split(self) -> float:
        return self.figures()["headrace_router_splits_total"]


def _choice(answer: dict[str, Any]) -> tuple[str, str, object]:
    (choice,) = answer["choices"]
    text: str = choice["message"]["content"] if "message" in choice else choice["text"]
    return text, choice["finish_reason"], choice.get("logprobs")


def _free(server: Server) -> bool:
    try:
        state = server.http.get("/v1/engine/state").json()
        return bool(state["blocks"]["held"] == 0 and state["running_count"] == 0 and state["waiting_count"] == 0)
    except (httpx.TransportError, KeyError):
        return False
