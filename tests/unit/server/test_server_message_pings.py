"""Streams of Anthropic's API while nothing comes: events that keep the connection open."""

from __future__ import annotations

import asyncio

import pytest
from server_wire import request, wired


def test_an_idle_stream_gets_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.server.heartbeat._INTERVAL", 0.001)

    async def wait() -> bytes:
        async with wired(reply="Hello", hold=0) as wire:
            line = await wire.open()
            messages = [{"role": "user", "content": "Hi"}]
            await line.send(request("/v1/messages", stream=True, max_tokens=70, messages=messages, prompt=None))
            text = b""
            while b"event: ping" not in text:
                text += await asyncio.wait_for(line.reader.read(1000), 300)
            wire.engine.go.set()
            while not text.endswith(b"0\r\n\r\n"):
                text += await asyncio.wait_for(line.reader.read(1000), 300)
            return text

    text = asyncio.run(wait())
    assert text.index(b'event: ping\ndata: {"type":"ping"}\n\n') < text.index(b"event: message_start")
    assert b"event: message_stop" in text
