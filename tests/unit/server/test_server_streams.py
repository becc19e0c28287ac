"""Streams as proxies and browsers see them: headers, comments, line ends, and pages of other origins."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from server_fakes import MODEL, events, fault, serve_fake
from server_wire import request, wired

from headrace.config import Config, ServerConfig
from headrace.server import heartbeat
from headrace.server.stream_form import event

PAGE = "https://chat.example"
KEY = "sk-secret"


def test_streams_are_not_buffered_by_proxies():
    for response in (asyncio.run(serve_fake().complete(stream=True)), asyncio.run(serve_fake().chat(stream=True))):
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["cache-control"] == "no-cache"
    assert "x-accel-buffering" not in asyncio.run(serve_fake().complete()).headers


LINE_ENDS = "a\u2028b\u2029c\u0085d\ve\ff\x1cg\x1dh\x1ei\rj\nk"


def test_no_text_ends_a_line_of_a_stream():
    data = event({"text": LINE_ENDS, "é": "😀"}).decode()
    assert len(data.splitlines()) == 2
    assert json.loads(data[6:]) == {"text": LINE_ENDS, "é": "😀"}
    for response in (
        asyncio.run(serve_fake(reply=LINE_ENDS).complete(stream=True, max_tokens=50)),
        asyncio.run(serve_fake(reply=LINE_ENDS).chat(stream=True)),
    ):
        choices = [choice for chunk in events(response) for choice in chunk["choices"]]
        assert "".join(c.get("text") or c.get("delta", {}).get("content") or "" for c in choices) == LINE_ENDS
        assert all(line.startswith("data: ") for line in response.text.splitlines() if line)


@pytest.mark.parametrize("hold", [0, 3])
def test_an_idle_stream_gets_comments(hold, monkeypatch):
    monkeypatch.setattr(heartbeat, "_INTERVAL", 0.005)

    async def main() -> None:
        async with wired(reply="Hello", hold=hold) as wire:
            line = await wire.open()
            await line.send(request(max_tokens=50, stream=True))
            text = b""
            while text.count(heartbeat.COMMENT) < 3:
                text += await asyncio.wait_for(line.reader.read(1000), 300)
            assert b"x-accel-buffering: no" in text
            wire.engine.go.set()
            while not text.endswith(b"0\r\n\r\n"):
                text += await asyncio.wait_for(line.reader.read(1000), 300)
            lines = [part for part in text.decode().splitlines() if part.startswith("data: ")]
            assert lines[-1] == "data: [DONE]"
            assert "".join(json.loads(part[6:])["choices"][0]["text"] for part in lines[:-1]) == "Hello"

    asyncio.run(main())


def test_an_error_after_a_comment_is_an_event(monkeypatch):
    monkeypatch.setattr(heartbeat, "_INTERVAL", 0.005)

    async def main() -> None:
        async with wired(reply="Hello", hold=0, fail_after=0) as wire:
            line = await wire.open()
            await line.send(request(stream=True))
            text = b""
            while heartbeat.COMMENT not in text:
                text += await asyncio.wait_for(line.reader.read(1000), 300)
            wire.engine.go.set()
            while not text.endswith(b"0\r\n\r\n"):
                text += await asyncio.wait_for(line.reader.read(1000), 300)
            assert b'"code":"engine_unavailable"' in text
            assert b"data: [DONE]" in text

    asyncio.run(main())


def test_an_active_stream_gets_no_comment(monkeypatch):
    monkeypatch.setattr(heartbeat, "_INTERVAL", 0.0)
    written = 0

    async def write() -> None:
        nonlocal written
        written += 1

    async def main() -> None:
        quiet = heartbeat.Heartbeat(write)
        for _ in range(50):
            quiet.sent = True
            await asyncio.sleep(0)
        assert written == 0
        await quiet.stop()
        for _ in range(10):
            await asyncio.sleep(0)
        assert written == 0

    asyncio.run(main())


def config(origins: str | None, key: str | None = None) -> Config:
    return Config.model_validate({"server": {"cors_origin": origins, "api_key": key}})


def ask(origins: str | None, method: str, path: str, key: str | None = None, **more: Any) -> httpx.Response:
    served = serve_fake(config(origins, key), **more.pop("engine", {}))
    headers = {"origin": PAGE, **more.pop("headers", {})}
    return asyncio.run(served.http.request(method, path, headers=headers, **more))


ASKS = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, content-type"}


@pytest.mark.parametrize("origins", [PAGE, f"http://a.example, {PAGE}", "*"])
def test_a_preflight_request_needs_no_key(origins):
    for path in ("/v1/chat/completions", "/nothing"):
        response = ask(origins, "OPTIONS", path, KEY, headers=ASKS)
        assert response.status_code == 204
        assert response.headers["access-control-allow-origin"] == ("*" if origins == "*" else PAGE)
        assert "POST" in response.headers["access-control-allow-methods"]
        assert response.headers["access-control-allow-headers"] == ASKS["access-control-request-headers"]
        assert response.content == b""


def test_only_allowed_origins_are_answered():
    for origins in (None, "https://other.example", f"{PAGE}.evil", f"{PAGE}:8443"):
        asked = ask(origins, "OPTIONS", "/v1/chat/completions", KEY, headers=ASKS)
        assert asked.status_code == 401
        answer = ask(origins, "POST", "/v1/completions", json={"prompt": "Hi"})
        assert answer.status_code == 200
        for response in (asked, answer):
            assert not [name for name in response.headers if name.startswith("access-control")]
    # OPTIONS alone is no question of a browser's.
    assert ask(PAGE, "OPTIONS", "/v1/completions", KEY).status_code == 401


def test_every_answer_to_a_page_can_be_read():
    body = {"model": MODEL, "prompt": "Hi"}
    for status, response in (
        (200, ask(PAGE, "POST", "/v1/completions", json=body)),
        (200, ask(PAGE, "POST", "/v1/completions", json={**body, "stream": True})),
        (400, ask(PAGE, "POST", "/v1/completions", json={**body, "n": 0})),
        (401, ask(PAGE, "POST", "/v1/completions", KEY, json=body)),
        (404, ask(PAGE, "GET", "/nothing")),
        (405, ask(PAGE, "GET", "/v1/completions")),
        (500, ask(PAGE, "POST", "/v1/completions", json=body, engine={"refuse": KeyError("x")})),
    ):
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == PAGE
        assert response.headers["vary"] == "origin"
        assert "x-request-id" in response.headers["access-control-expose-headers"]
        if status > 200:
            fault(response, status)


@pytest.mark.parametrize("origin", ["", "chat.example", "https://chat.example/", "https://a.example,", "* *"])
def test_invalid_origins_are_refused(origin):
    with pytest.raises(ValidationError, match="is no origin"):
        ServerConfig(cors_origin=origin)
