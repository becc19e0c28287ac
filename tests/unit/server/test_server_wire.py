"""Bytes on a socket: half requests, offers of other protocols, transfer codings."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from server_wire import Line, Wire, request, wired

from headrace.server import descriptor_watch, receive_timeout
from headrace.server.descriptor_watch import DescriptorWatch
from headrace.server.receive_timeout import BODY, HEAD, ReceiveTimeout

WHOLE = request(max_tokens=3)
HEAD_END = WHOLE.index(b"\r\n\r\n") + 4


def on_wire(test: Callable[[Wire], Awaitable[None]], **engine: Any) -> None:
    async def main() -> None:
        async with wired(**engine) as wire:
            await test(wire)

    asyncio.run(main())


def hurry(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Very short times from now on."""
    for name in names or ("HEAD_TIME", "BODY_PAUSE", "BODY_TIME"):
        monkeypatch.setattr(receive_timeout, name, 0.02)


async def used(wire: Wire) -> Line:
    """A connection that has had an answer: the time for the head of its first request is over."""
    line = await wire.open()
    await line.send(WHOLE)
    assert (await line.answer()).status == 200
    return line


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_a_connection_that_sends_nothing_is_closed(monkeypatch, sent):
    hurry(monkeypatch)

    async def test(wire: Wire) -> None:
        line = await wire.open()
        await line.send(sent)
        assert await line.closed() == b""
        assert not wire.server.server_state.connections

    on_wire(test)


@pytest.mark.parametrize("at", [1, HEAD_END - 1, HEAD_END, HEAD_END + 5, len(WHOLE) - 1])
def test_half_a_request_is_refused_in_time(monkeypatch, at):
    hurry(monkeypatch, *(("HEAD_TIME",) if at < HEAD_END else ("BODY_PAUSE", "BODY_TIME")))

    async def test(wire: Wire) -> None:
        answer = await wire.ask(WHOLE[:at])
        assert (answer.status, answer.code) == (408, "request_timeout")
        assert answer.headers["connection"] == "close"
        assert ("body" if at >= HEAD_END else "head") in answer.json["error"]["message"]
        assert not wire.engine.requests
        assert not wire.context.inflight

    on_wire(test)


def test_half_a_second_request_is_refused_too(monkeypatch):
    async def test(wire: Wire) -> None:
        line = await used(wire)
        hurry(monkeypatch)
        await line.send(WHOLE + WHOLE[:10])
        assert (await line.answer()).status == 200
        assert (await line.answer()).status == 408

    on_wire(test)


def test_a_refused_body_that_never_ends_is_closed(monkeypatch):
    async def test(wire: Wire) -> None:
        line = await wire.open()
        await line.send(b"POST /nothing HTTP/1.1\r\nContent-Length: 100\r\n\r\nx")
        assert (await line.answer()).status == 404
        hurry(monkeypatch, "BODY_PAUSE")
        (connection,) = wire.server.server_state.connections
        await asyncio.sleep(receive_timeout.BODY_PAUSE)
        connection._patience._look()  # type: ignore[union-attr]
        assert await line.closed() == b""

    on_wire(test)


def test_long_answers_outlast_the_times_of_requests(monkeypatch):
    async def test(wire: Wire) -> None:
        line = await used(wire)
        hurry(monkeypatch)
        wire.engine.hold = 1
        await line.send(WHOLE)
        await asyncio.sleep(0.1)
        wire.engine.go.set()
        assert (await line.answer()).json["choices"][0]["text"] == "Hel"

    on_wire(test)


def test_a_request_may_come_byte_by_byte():
    async def test(wire: Wire) -> None:
        pieces = [WHOLE[i : i + 1] for i in range(len(WHOLE))]
        assert (await wire.ask(*pieces)).status == 200

    on_wire(test)


def test_the_shutdown_does_not_wait_for_readers(caplog):
    async def test(wire: Wire) -> None:
        line = await wire.open()
        await line.send(request(stream=True, max_tokens=90))
        await line.reader.readuntil(b"data: ")
        assert wire.context.inflight == 1
        wire.server.abort_unread()
        await line.closed()
        while wire.context.inflight:
            await asyncio.sleep(0)
        assert wire.engine.closed

    on_wire(test, reply="x" * 80, hold=3)
    assert not caplog.records


class Clock:
    """An event loop's clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Any:
        timer = (self.now + delay, call)
        self.timers.append(timer)

        class Handle:
            cancel = staticmethod(lambda: self.timers.remove(timer) if timer in self.timers else None)

        return Handle

    def turn(self, seconds: float) -> None:
        self.now += seconds
        for timer in [t for t in self.timers if t[0] <= self.now]:
            self.timers.remove(timer)
            timer[1]()


def clocked(busy: bool = False) -> tuple[Clock, ReceiveTimeout, list[str]]:
    clock, over = Clock(), list[str]()
    return clock, ReceiveTimeout(clock, lambda awaited: busy, over.append), over  # type: ignore[arg-type]


def test_a_slow_upload_is_accepted_while_pieces_come():
    clock, waiting, over = clocked()
    for _ in range(25):
        waiting.wait_for(BODY)
        clock.turn(20)
    assert not over
    clock.turn(20)
    assert over == [BODY]
    assert not clock.timers


def test_bodies_and_heads_have_time_limits():
    for awaited, bound in ((BODY, receive_timeout.BODY_TIME), (HEAD, receive_timeout.HEAD_TIME)):
        clock, waiting, over = clocked()
        while not over:
            waiting.wait_for(awaited)
            clock.turn(1)
        assert bound <= clock.now <= bound + 1


def test_the_server_does_not_count_its_own_time():
    clock, waiting, over = clocked(busy=True)
    waiting.wait_for(BODY)
    for _ in range(100):
        clock.turn(100)
    assert not over
    waiting.wait_for(None)
    assert not clock.timers


OFFERS = [
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n",
    "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n",
    "Upgrade: TLS/1.0\r\nConnection: keep-alive, Upgrade\r\n",
]


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("at", [0, 30, HEAD_END, -7])
def test_an_offer_to_upgrade_is_ignored(offer, at, caplog):
    async def test(wire: Wire) -> None:
        raw = request(headers=offer, max_tokens=3)
        line = await wire.open()
        for _ in range(2):
            for piece in (raw[:at], raw[at:]):
                await line.send(piece)
                await asyncio.sleep(0)
            answer = await line.answer()
            assert answer.status == 200
            assert answer.json["choices"][0]["text"] == "Hel"
        chunked = b"POST /v1/completions HTTP/1.1\r\n" + offer.encode() + b"Transfer-Encoding: chunked\r\n\r\n"
        await line.send(chunked + b'10\r\n{"prompt": "Hi",\r\n10\r\n "max_tokens":1}\r\n0\r\n\r\n')
        assert (await line.answer()).json["choices"][0]["text"] == "H"
        await line.send(b"GET /version HTTP/1.1\r\n" + offer.encode() + b"\r\n")
        assert (await line.answer()).status == 200

    with caplog.at_level(logging.DEBUG):
        on_wire(test)
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


def test_an_offer_does_not_hide_an_invalid_request():
    async def test(wire: Wire) -> None:
        bad = b"POST / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: gzip\r\n\r\n"
        assert (await wire.ask(bad)).status == 501
        assert (await wire.ask(b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n")).status == 400

    on_wire(test)


@pytest.mark.parametrize(
    "coding", [b"gzip", b"gzip, chunked", b"deflate", b"identity", b"Chunked\r\nTransfer-Encoding: gzip"]
)
def test_transfer_codings_are_refused(coding):
    async def test(wire: Wire) -> None:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: " + coding
        answer = await wire.ask(head + b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        assert answer.status in (400, 501)
        assert answer.code in ("unsupported_transfer_encoding", "invalid_http")
        assert not wire.context.inflight
        assert wire.context.metrics.errors == {}

    on_wire(test)


def test_exhausted_descriptors_are_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(descriptor_watch, "_limit", lambda: 5)

    async def test(wire: Wire) -> None:
        for _ in range(3):
            assert (await wire.ask(WHOLE)).status == 200

    on_wire(test)
    (line,) = caplog.records
    assert "file descriptors" in line.getMessage()


def test_descriptor_errors_of_the_event_loop_are_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(descriptor_watch, "_limit", lambda: 1000)
    watch, other = DescriptorWatch(), list[dict]()

    class Loop:
        default_exception_handler = staticmethod(other.append)

    def fail(number: int) -> None:
        watch.handle(Loop(), {"message": "m", "exception": OSError(number, "e")})  # type: ignore[arg-type]

    for _ in range(3):
        fail(errno.EMFILE)
    assert len(caplog.records) == 1
    fail(errno.EPIPE)
    assert len(other) == 1
    watch.opened(900)
    fail(errno.ENFILE)
    assert len(caplog.records) == 1
    # Enough were free in between: this is another lack.
    watch.opened(20)
    fail(errno.ENFILE)
    assert len(caplog.records) == 2


@pytest.mark.parametrize("sent", [b"a" * 2**14, b"?x=" + b"a" * 2**20])
def test_a_target_that_is_too_long_is_refused(sent):
    async def test(wire: Wire) -> None:
        answer = await wire.ask(b"GET /" + sent + b" HTTP/1.1\r\n\r\n")
        assert (answer.status, answer.code) == (414, "target_too_long")
        assert answer.headers["connection"] == "close"
        assert (await wire.ask(b"GET /" + b"a" * (2**14 - 1) + b" HTTP/1.1\r\n\r\n")).status == 404

    on_wire(test)
