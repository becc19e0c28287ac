"""The router before two real engines, each in its own process: what happens to them shows in no answer."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from server_harness import NAME, PATIENCE, Server, running, until

SYSTEM = "You are a very patient assistant that answers at length, and says the same thing twice. " * 2


class Router:
    def __init__(self, *urls: str) -> None:
        command = [sys.executable, "-m", "headrace", "route", *urls, "--port", "0", "--health-timeout", "2"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        match = re.search(r"http://127\.0\.0\.1:\d+", self.process.stdout.readline())
        assert match, "the router did not start"
        self.url = match[0]
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.http.get("/v1/router/replicas").json()["replicas"]
        return found

    def figures(self) -> dict[str, float]:
        lines = self.http.get("/metrics").text.splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def ask(self, text: str, **fields: Any) -> httpx.Response:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        body = {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
        return self.http.post("/v1/chat/completions", json=body)


@contextmanager
def routing(*engines: Server) -> Iterator[Router]:
    router = Router(*(engine.url for engine in engines))
    try:
        until(lambda: all(row["state"] == "ready" and row["events"] for row in router.rows()), router.rows)
        yield router
    finally:
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(PATIENCE) == 0


@pytest.fixture(scope="module")
def engines(tiny_llama: Path) -> Iterator[tuple[Server, Server]]:
    with running(tiny_llama) as one, running(tiny_llama) as two:
        yield one, two


def test_prompts_go_where_they_are_cached(engines: tuple[Server, Server]) -> None:
    with routing(*engines) as router:
        first = router.ask("Hello")
        assert first.status_code == 200, first.text
        home = first.headers["x-headrace-replica"]
        until(lambda: router.rows()[int(home)]["blocks"] > 3)
        for turn in range(4):
            reply = router.ask(f"Hello again {turn}")
            assert reply.headers["x-headrace-replica"] == home
            assert int(reply.headers["x-headrace-cached-tokens"]) > 100
        figures = router.figures()
        expected, found = (
            figures[f"headrace_router_{name}_total"] for name in ("expected_cached_tokens", "cached_tokens")
        )
        assert expected <= found <= expected + 16 * 5, "the engine also copies a part of a block"


def test_answers_are_the_engines_own(engines: tuple[Server, Server]) -> None:
    with routing(*engines) as router:
        straight = engines[0].http.post(
            "/v1/completions", json={"model": NAME, "prompt": "Once", "temperature": 0, "max_tokens": 6}
        )
        body = {"model": NAME, "prompt": "Once", "temperature": 0, "max_tokens": 6}
        routed = router.http.post("/v1/completions", json=body)
        assert routed.json()["choices"] == straight.json()["choices"]
        client = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0)
        assert [model.id for model in client.models.list().data] == [NAME]
        messages: Any = [{"role": "user", "content": "Hi"}]
        whole = client.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=6)
        pieces = client.chat.completions.create(model=NAME, messages=messages, temperature=0, max_tokens=6, stream=True)
        joined = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        assert joined == whole.choices[0].message.content
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.chat.completions.create(model="other", messages=messages)
        with pytest.raises(openai.BadRequestError, match="temperature"):
            client.chat.completions.create(model=NAME, messages=messages, temperature=9)


@pytest.mark.parametrize("how", ["kill", "stop", "engine"])
def test_an_engine_lost_on_the_way_shows_in_no_answer(
    tiny_llama: Path, engines: tuple[Server, Server], how: str
) -> None:
    alone = {text: answer(engines[0], text) for text in map(str, range(6))}
    with running(tiny_llama) as victim, routing(engines[0], victim) as router, ThreadPoolExecutor(12) as pool:
        jobs = [(str(n % 6), n % 2 == 0, pool.submit(ask, router, str(n % 6), n % 2 == 0)) for n in range(60)]
        until(lambda: router.figures().get('headrace_router_placed_total{replica="1"}', 0) > 4)
        if how == "kill":
            victim.process.kill()
        elif how == "stop":
            victim.process.send_signal(signal.SIGSTOP)
        else:
            victim.engine.kill()
        wrong = [job.result() for text, stream, job in jobs if job.result() not in (alone[text], "one clear error")]
        assert not wrong
        errors = sum(job.result() == "one clear error" for _, _, job in jobs)
        assert errors <= sum(stream for _, stream, _ in jobs), "an answer that is not streamed is asked for elsewhere"
        assert ask(router, "1", False) == alone["1"]
        if how == "stop":
            until(lambda: router.rows()[1]["state"] == "ejected", router.rows)
            victim.process.send_signal(signal.SIGCONT)
        if how != "kill":
            until(lambda: router.rows()[1]["state"] == "ready" and router.rows()[1]["events"], router.rows)
            assert ask(router, "2", True) == alone["2"]
        until(lambda: all(row["requests"] == 0 for row in router.rows()), router.rows)
    until(lambda: free(engines[0]))


def ask(router: Router, text: str, stream: bool) -> str:
    """The answer's text, or `one clear error`: of a stream that had begun."""
    if not stream:
        reply = router.ask(text)
        assert reply.status_code == 200, reply.text
        content: str = reply.json()["choices"][0]["message"]["content"]
        return content
    found, error = "", False
    lines = [line[6:] for line in router.ask(text, stream=True).text.splitlines() if line.startswith("data: {")]
    for line in map(json.loads, lines):
        if "error" in line:
            assert line["error"]["code"] in ("engine_lost", "engine_unavailable"), line
            error = True
        else:
            assert not error, "nothing follows an error"
            found += line["choices"][0]["delta"].get("content") or ""
    return "one clear error" if error else found


def answer(engine: Server, text: str) -> str:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
    body = {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    found: str = engine.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    return found


def free(engine: Server) -> bool:
    """No block is held by a request."""
    state = engine.http.get("/v1/engine/state").json()
    return bool(state["blocks"]["held"] == 0 and state["running_count"] == 0 and state["waiting_count"] == 0)
