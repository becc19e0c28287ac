"""A real server process on loopback: the official client, signals, the first prompt."""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fork_server import ForkServer
from server_fakes import MODEL, ByteTokenizer, FakeClient

from headrace.config import Config
from headrace.errors import CheckpointError, ConfigError
from headrace.log_format import FIELDS
from headrace.server.lifecycle import serve
from headrace.server.listening import bind
from headrace.server.request_log import LineHeldBack

SCRIPT = Path(__file__).with_name("server_process.py")
PATIENCE = 300.0
"""Seconds; a generous limit for events that come at once, unless the machine is overloaded."""


@pytest.fixture(autouse=True)
def not_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `serve` does to the garbage collector is meant for a process of its own."""
    monkeypatch.setattr(gc, "freeze", lambda: None)


@cache
def forks() -> ForkServer:
    """Made with the first server; it ends with the tests."""
    server = ForkServer("server_process", folders=[SCRIPT.parent])
    atexit.register(server.close)
    return server


class Server:
    def __init__(self, **options: Any) -> None:
        command = [sys.executable, str(SCRIPT), json.dumps(options)]
        pipe = subprocess.PIPE
        self.process = forks().Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.url = self.line = ""

    def started(self) -> None:
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        match = re.search(r"(https?://[^/\s]+(?=\S*/v1 )|unix:\S+)", self.line)
        assert match, (self.line, self.process.stderr and self.process.stderr.read())
        self.url = match[0]

    def go(self) -> None:
        """Continue the streams that wait."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def stop(self) -> tuple[int, str]:
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        return code, self.process.stdout.read()

    def get(self, path: str) -> int:
        return httpx.get(f"{self.url}{path}", timeout=PATIENCE).status_code

    def stream(self, **body: Any) -> Iterator[str]:
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True, **body}
        with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=chat, timeout=PATIENCE) as response:
            assert response.status_code == 200, response.read()
            yield from (line for line in response.iter_lines() if line)


@contextmanager
def server(**options: Any) -> Iterator[Server]:
    running = Server(**options)
    try:
        running.started()
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


class Reader(threading.Thread):
    """Reads one stream to its end."""

    def __init__(self, source: Iterator[str]) -> None:
        super().__init__(daemon=True)
        self._source = source
        self.lines: list[str] = []
        self.begun = threading.Event()
        self.start()
        assert self.begun.wait(PATIENCE)

    def run(self) -> None:
        for line in self._source:
            self.lines.append(line)
            self.begun.set()

    def end(self) -> dict[str, Any]:
        """The last event before `[DONE]`."""
        self.join(PATIENCE)
        assert self.lines[-1] == "data: [DONE]"
        found: dict[str, Any] = json.loads(self.lines[-2][6:])
        return found


def until(condition: Callable[[], bool]) -> None:
    """Wait by counting iterations, so that an overloaded machine doesn't fail the test."""
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("did not happen within a minute")


def test_the_official_client():
    with server(server={"api_key": "k"}, engine={"drafts": [3, 2]}) as running:
        assert f"Headrace serves {MODEL} at {running.url}/v1" in running.line
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="k", max_retries=0)
        assert [model.id for model in client.models.list()] == [MODEL]
        assert client.models.retrieve(MODEL).id == MODEL
        messages: Any = [{"role": "user", "content": "Hi"}]
        whole = client.chat.completions.create(model=MODEL, messages=messages, logprobs=True, top_logprobs=1)
        assert whole.choices[0].message.content == "Hello"
        assert whole.to_dict()["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
        prediction: Any = {"type": "content", "content": [{"type": "text", "text": "Hello"}]}
        drafted = client.chat.completions.create(model=MODEL, messages=messages, prediction=prediction)
        assert drafted.choices[0].message.content == "Hello"
        assert drafted.usage is not None
        assert drafted.usage.completion_tokens_details is not None
        assert drafted.usage.completion_tokens_details.accepted_prediction_tokens == 3
        assert drafted.usage.completion_tokens_details.rejected_prediction_tokens == 2
        stream = client.chat.completions.create(
            model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
        assert last.to_dict()["usage"]["total_tokens"] == 8
        text = client.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=3, logprobs=1, echo=True)
        assert [choice.text for choice in text.choices] == ["aHel", "bHel"]
        pieces = client.completions.create(model=MODEL, prompt=[1, 2], stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == "Hello"
        with pytest.raises(openai.BadRequestError) as wrong:
            client.chat.completions.create(model=MODEL, messages=messages, extra_body={"guided_json": {}})
        assert wrong.value.param == "guided_json"
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="gpt", messages=messages)
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        running.process.send_signal(signal.SIGTERM)
        assert running.stop() == (0, "stopped True\n")


def test_sigterm_lets_a_stream_finish_and_refuses_the_rest():
    with server(server={"drain_timeout": 600}, engine={"reply": "x" * 60, "hold": 3}) as running:
        reader = Reader(running.stream())
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.get("/health") == 503)
        refused = httpx.post(f"{running.url}/v1/chat/completions", json={}, timeout=PATIENCE)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        running.go()
        assert running.stop() == (0, "stopped True\n")
        assert reader.end()["choices"][0]["finish_reason"] == "stop"


def test_a_stream_that_outlasts_the_drain_ends_with_an_error():
    with server(server={"drain_timeout": 0.2}, engine={"reply": "x" * 90, "hold": 3}) as running:
        reader = Reader(running.stream())
        running.process.send_signal(signal.SIGTERM)
        assert running.stop() == (0, "stopped True\n")
        assert reader.end()["error"]["code"] == "shutting_down"


def test_a_reader_of_the_events_does_not_delay_the_shutdown():
    """A router follows them as long as the engine is there."""
    with (
        server(server={"drain_timeout": 600}) as running,
        httpx.stream("GET", f"{running.url}/v1/engine/events", timeout=PATIENCE) as reply,
    ):
        assert reply.status_code == 200
        running.process.send_signal(signal.SIGTERM)
        assert running.stop() == (0, "stopped True\n")


def test_an_incomplete_body_does_not_delay_the_shutdown():
    with server(server={"drain_timeout": 0.2}) as running:
        address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
        with socket.create_connection(address, PATIENCE) as half, socket.create_connection(address, PATIENCE) as silent:
            half.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
            silent.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-")
            # Answered on a later connection, so that the half body has been seen.
            assert running.get("/version") == 200
            running.process.send_signal(signal.SIGTERM)
            assert running.stop() == (0, "stopped True\n")
            assert b"shutting_down" in half.recv(1000)
            assert silent.recv(1000) == b""


def test_a_second_signal_ends_it_at_once():
    options = {"server": {"drain_timeout": 600}, "engine": {"reply": "x" * 90, "hold": 3}, "at_once": 600}
    with server(**options) as running:
        reader = Reader(running.stream())
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.get("/health") == 503)
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGINT)
        assert running.stop() == (0, "stopped True\n")
        assert reader.end()["error"]["code"] == "shutting_down"


def test_a_hangup_reads_the_keys_again(tmp_path):
    file = tmp_path / "keys.yaml"
    file.write_text("keys: [{name: a, key: first}]")
    file.chmod(0o600)
    with server(server={"api_keys_file": str(file)}, first_prompt="Hi") as running:

        def status(key: str) -> int:
            headers = {"x-api-key": key}
            return httpx.get(f"{running.url}/version", headers=headers, timeout=PATIENCE).status_code

        assert running.process.stdout is not None
        assert [running.process.stdout.readline() for _ in range(3)][2] == "Hello\n"
        assert (status("first"), status("second")) == (200, 401)
        file.write_text("keys: [")
        running.process.send_signal(signal.SIGHUP)
        assert running.process.stderr is not None
        assert "the keys stay as they were" in running.process.stderr.readline()
        assert status("first") == 200
        file.write_text("keys: [{name: a, key: second}]")
        running.process.send_signal(signal.SIGHUP)
        until(lambda: status("second") == 200)
        assert status("first") == 401


def test_the_first_prompt_is_answered_in_the_terminal():
    with server(server={"api_key": "k"}, engine={"reply": "Blue."}, first_prompt="Which colour?") as running:
        assert running.process.stdout is not None
        lines = [running.process.stdout.readline() for _ in range(3)]
        assert lines == ["\n", "> Which colour?\n", "Blue.\n"]
        assert running.get("/health") == 200


def test_the_log_line_of_the_first_prompt_stands_below_its_answer(caplog):
    """Not behind its last word: the server's process logs it before the answer's reader has seen the end."""
    log = logging.getLogger("headrace.requests")
    caplog.set_level(logging.INFO, log.name)
    line = LineHeldBack()
    log.info("before its id is known", extra={FIELDS: {"id": "chatcmpl-1"}})
    line.id = "chatcmpl-1"
    log.info("own", extra={FIELDS: {"id": "chatcmpl-1"}})
    log.info("another's", extra={FIELDS: {"id": "chatcmpl-2"}})
    log.info("without fields")
    assert caplog.messages == ["before its id is known", "another's", "without fields"]
    line.release()
    log.info("later", extra={FIELDS: {"id": "chatcmpl-1"}})
    assert caplog.messages[3:] == ["own", "later"]
    assert log.filters == []


def test_a_taken_port_is_an_error_before_anything_loads():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="cannot listen"):
        bind("127.0.0.1", taken.getsockname()[1])


def test_a_port_that_another_takes_while_the_model_loads():
    with bind("127.0.0.1", 0) as mine, socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(mine.getsockname())
        other.listen()
        with pytest.raises(ConfigError, match="cannot listen"):
            asyncio.run(serve(Config(), FakeClient(), ByteTokenizer(), mine))


def test_an_engine_that_cannot_load_is_the_error():
    class Broken(FakeClient):
        async def start(self) -> None:
            raise CheckpointError("truncated", "m.gguf", "w")

    engine = Broken()
    with bind("127.0.0.1", 0) as listener, pytest.raises(CheckpointError, match="truncated"):
        asyncio.run(serve(Config(), engine, ByteTokenizer(), listener))
    assert engine.stopped


def test_a_signal_while_the_model_loads_ends_it():
    class Slow(FakeClient):
        async def start(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    engine = Slow()
    with bind("127.0.0.1", 0) as listener:
        assert asyncio.run(serve(Config(), engine, ByteTokenizer(), listener)) == 0
    assert engine.stopped


def test_a_port_that_is_bound_does_not_answer_yet():
    with bind("127.0.0.1", 0) as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname(), PATIENCE)
