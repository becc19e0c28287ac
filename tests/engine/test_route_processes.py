"""The router before two real engines, each in its own process: what happens to them shows in no answer."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from server_harness import NAME, PATIENCE, Server, engine_of, running, until

LONG = "You are a very patient assistant that answers at length, and says the same thing twice. " * 2
TEXTS = [str(number) for number in range(8)]
BROKEN = "one clear error"
PATIENT = (
    "import sys; from headrace.cli.main import main; from headrace.route import load_book, split_ask; "
    "split_ask._LEAST = split_ask._MOST_PATIENCE; load_book._SHARE = 0.0; sys.exit(main())"
)
"""The command; an engine that computes a prompt for another one may be held up, and one that was slow while it was lost
is no slower afterwards: otherwise the requests may all go to the other one, and nothing is left to lose."""


class Router:
    def __init__(self, *urls: str) -> None:
        command = [sys.executable, "-c", PATIENT, "route", *urls, "--port", "0", "--health-timeout", "2"]
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

    def ask(self, *texts: str, **fields: Any) -> httpx.Response:
        messages = [{"role": "user", "content": text} for text in texts]
        body = {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
        return self.http.post("/v1/chat/completions", json=body)


@contextmanager
def routing(*engines: Server) -> Iterator[Router]:
    router = Router(*(engine.url for engine in engines))
    try:
        until(
            lambda: all(row["state"] == "ready" and row["events"] and row["reads_prompts"] for row in router.rows()),
            router.rows,
        )
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
        first = router.ask(LONG, "Hello")
        assert first.status_code == 200, first.text
        home = first.headers["x-headrace-replica"]
        until(lambda: router.rows()[int(home)]["blocks"] > 3)
        for turn in range(4):
            reply = router.ask(LONG, f"Hello again {turn}")
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


def test_lost_engines_show_in_no_answer(tiny_llama: Path, engines: tuple[Server, Server]) -> None:
    """Its device's process is killed, its server is stopped and goes on, its server is killed: each while both work."""
    alone = {text: answer(engines[0], text) for text in TEXTS}
    with running(tiny_llama) as victim, routing(engines[0], victim) as router:

        def storm(strike: Callable[[], object]) -> None:
            before = placed(router)
            with ThreadPoolExecutor(8) as pool:
                jobs = [
                    (text, stream, pool.submit(ask, router, text, stream))
                    for text in TEXTS * 2
                    for stream in (True, False)
                ]
                until(lambda: placed(router) > before + 2)
                strike()
            for text, stream, job in jobs:
                assert job.result() == alone[text] or (stream and job.result() == BROKEN)
            assert ask(router, "1", False) == alone["1"]

        def back() -> bool:
            row = router.rows()[1]
            return bool(row["state"] == "ready" and row["events"])

        storm(lambda: engine_of(victim.process.pid).kill())
        until(back, router.rows)
        storm(lambda: victim.process.send_signal(signal.SIGSTOP))
        until(lambda: router.rows()[1]["state"] == "ejected", router.rows)
        victim.process.send_signal(signal.SIGCONT)
        until(back, router.rows)
        storm(victim.process.kill)
        until(lambda: all(row["requests"] == 0 for row in router.rows()), router.rows)
        assert router.rows()[1]["ejections"] == 2
    until(lambda: free(engines[0]))


def placed(router: Router) -> float:
    """Requests that the second engine has got."""
    return router.figures().get('headrace_router_placed_total{replica="1"}', 0)


def ask(router: Router, text: str, stream: bool) -> str:
    """The answer's text; BROKEN for a stream that had begun and ends with one clear error."""
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
    return BROKEN if error else found


def answer(engine: Server, text: str) -> str:
    messages = [{"role": "user", "content": text}]
    body = {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    found: str = engine.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    return found


def free(engine: Server) -> bool:
    """No block is held by a request."""
    state = engine.http.get("/v1/engine/state").json()
    return bool(state["blocks"]["held"] == 0 and state["running_count"] == 0 and state["waiting_count"] == 0)


def test_a_prompt_that_another_engine_computes(tiny_llama: Path, engines: tuple[Server, Server]) -> None:
    """One engine decodes a few sequences; a long prompt is computed by the other, and its answer is the same."""
    text = "a long prompt that is computed by one engine and answered by another; " * 5
    alone = answer(engines[0], text)
    groups = [{"transfer": {"role": role, "kv_connector": "shm"}} for role in ("prefill", "decode")]
    with (
        running(tiny_llama, groups[0]) as giver,
        running(tiny_llama, groups[1]) as taker,
        routing(giver, taker) as router,
    ):
        until(lambda: [row["role"] for row in router.rows()] == ["prefill", "decode"], router.rows)
        with ThreadPoolExecutor(8) as pool, taker.slow():
            busy = [pool.submit(router.ask, f"{n}", max_tokens=100, stream=True) for n in range(6)]
            until(lambda: router.rows()[1]["running"] >= 6, router.rows)
            whole = pool.submit(router.ask, text)
            until(lambda: router.figures()["headrace_router_splits_total"] == 1)
        reply = whole.result()
        assert [job.result().status_code for job in busy] == [200] * 6
        assert reply.headers["x-headrace-replica"] == "1"
        assert reply.json()["choices"][0]["message"]["content"] == alone
        assert int(reply.headers["x-headrace-cached-tokens"]) > 256, "its blocks came from the other engine"
        giver.process.kill()
        assert ask(router, text, False) == alone
    until(lambda: free(engines[0]))
