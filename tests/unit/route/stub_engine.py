"""An engine without a model: an HTTP server that answers at once, and fails as it is told. Also a program, for
measuring: `python stub_engine.py PORT TOKENS [TOKENIZER]`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httptools

PIECE = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
COMMENT = b": nothing yet\n\n"


def answer(status: int, body: bytes, kind: bytes = b"application/json", *more: bytes) -> bytes:
    head = b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\n" % (status, kind, len(body))
    return head + b"".join(line + b"\r\n" for line in more) + b"\r\n" + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n"
    b"x-headrace-cached-tokens: 16\r\n\r\n"
)
LAYOUT = bytes(16)
END = b"0\r\n\r\n"


@dataclass
class Got:
    """A request that the stub got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """The connection has ended."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Stub:
    """Behaves by `mode`: `ok`; `busy`, `draining` (503); `close` (without an answer), `hang` (no answer); `cut` (after
    `tokens` tokens), `comment` (a sign of life, then the end), `fault` (a sign of life, then an error), `invalid`,
    `taker` (no answer to a request that waits for blocks, the others at once)."""

    def __init__(self, model: str = "tiny", tokens: int = 4, mode: str = "ok", wait: float = 0.0) -> None:
        self.model, self.tokens, self.mode, self.wait = model, tokens, mode, wait
        self.gate: asyncio.Event | None = None
        """Requests are answered once it is set."""
        self.asked = asyncio.Event()
        """Set by the first POST."""
        self.giver: Stub | None = None
        """Requests that wait for blocks are answered once this one was asked, as blocks come no earlier."""
        self.role: str | None = None
        """In a group of engines that exchange blocks."""
        self.healthy: Callable[[], bool] = lambda: True
        self.got: list[Got] = []
        self.events: asyncio.Queue[bytes] | None = None
        """What `/v1/engine/events` sends; None: there is no such path."""
        self.opened = 0
        """Streams of events."""
        self.connections: set[_Connection] = set()
        self.port = 0

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Refuse connections, and end those that are open: a killed engine."""
        self._server.close()
        for one in list(self.connections):
            one.transport.abort()

    def silence(self) -> None:
        """From now on it answers no check of its health, and ends the connections of those that come."""

        def healthy() -> bool:
            for one in list(self.connections):
                one.transport.abort()
            return False

        self.healthy = healthy

    @property
    def posts(self) -> list[Got]:
        return [one for one in self.got if one.method == "POST"]


class _Connection(asyncio.Protocol):
    def __init__(self, stub: Stub) -> None:
        self.stub = stub
        self.parser = httptools.HttpRequestParser(self)
        self.transport: Any = None
        self.current: Got | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.stub.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.stub.connections.discard(self)
        if self.current is not None:
            self.current.closed.set()
        for task in self.tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.url, self.headers, self.body = b"", {}, bytearray()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        path = self.url.decode()
        self.current = Got(self.parser.get_method().decode(), path, self.headers, bytes(self.body))
        self.stub.got.append(self.current)
        if self.current.method == "POST":
            self.stub.asked.set()
        giver = self.stub.giver if b"do_remote_prefill" in self.body else None
        gates = [gate for gate in (self.stub.gate, giver and giver.asked) if gate is not None]
        if path == "/health":
            self._health()
        elif path == "/v1/models":
            card = {"id": self.stub.model, "object": "model", "max_model_len": 512}
            self.transport.write(answer(200, json.dumps({"object": "list", "data": [card]}).encode()))
        elif path == "/v1/engine/role":
            role = self.stub.role
            status = 404 if role is None else 200
            told = {"role": role, "connector": "tcp", "address": f"tcp:127.0.0.1:{self.stub.port}", "epoch": 1}
            self.transport.write(answer(status, json.dumps(told).encode()))
        elif path == "/v1/engine/events":
            self._events()
        elif path in ("/v1/router/replicas", "/v1/engine/state"):
            self.transport.write(answer(404, _error("no such route", "not_found")))
        elif self.stub.mode == "ok" and not self.stub.wait and not gates:
            self._write(self._whole() if b'"stream":true' not in self.body else self._streamed())
        else:
            self._start(self._later(gates))

    def _write(self, data: bytes) -> None:
        head = self.current is not None and self.current.method == "HEAD"
        self.transport.write(data.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if head else data)

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _health(self) -> None:
        mode = self.stub.mode
        if not self.stub.healthy():
            return
        if mode == "draining":
            self.transport.write(answer(503, _error("the server is shutting down", "shutting_down")))
        else:
            self.transport.write(answer(200, b'{"status":"ok"}'))

    def _events(self) -> None:
        if self.stub.events is None:
            self.transport.write(answer(404, _error("no such route", "not_found")))
            return
        self.stub.opened += 1
        self.transport.write(STREAM_HEAD)
        self._start(self._send_events(self.stub.events))

    async def _send_events(self, events: asyncio.Queue[bytes]) -> None:
        while True:
            self.transport.write(chunk(await events.get()))

    def _whole(self) -> bytes:
        text = "x" * self.stub.tokens
        body = {"choices": [{"index": 0, "message": {"content": text}}], "usage": {"prompt_tokens": 20}}
        return answer(200, json.dumps(body).encode(), b"application/json", b"x-headrace-cached-tokens: 16")

    def _streamed(self) -> bytes:
        return STREAM_HEAD + chunk(PIECE) * self.stub.tokens + chunk(DONE) + END

    async def _later(self, gates: list[asyncio.Event]) -> None:
        for gate in gates:
            await gate.wait()
        await self._answer()

    async def _answer(self) -> None:
        mode, write = self.stub.mode, self._write
        await asyncio.sleep(self.stub.wait)
        stream = b'"stream":true' in self.body
        if mode == "ok":
            write(self._whole() if not stream else self._streamed())
        elif mode in ("busy", "draining"):
            write(answer(503, _error("no room", "overloaded"), b"application/json", b"retry-after: 1"))
        elif mode == "taker" and b"do_remote_prefill" not in self.body:
            write(self._whole() if not stream else self._streamed())
        elif mode == "close":
            self.transport.abort()
        elif mode == "cut":
            if stream:
                write(STREAM_HEAD + chunk(PIECE) * self.stub.tokens)
            else:
                write(self._whole()[:-5])
            await asyncio.sleep(0.02)
            self.transport.close()
        elif mode == "comment":
            write(STREAM_HEAD + chunk(COMMENT))
            await asyncio.sleep(0.02)
            self.transport.close()
        elif mode == "fault":
            write(STREAM_HEAD + chunk(COMMENT))
            await asyncio.sleep(0.02)
            write(chunk(b"data: " + _error("the engine was lost", "engine_unavailable") + b"\n\n") + END)
        elif mode == "invalid":
            write(answer(400, _error("max_tokens must be at least 1", "invalid_value")))
        elif mode == "slow":
            write(STREAM_HEAD)
            while True:
                write(chunk(PIECE))
                await asyncio.sleep(0.02)


def contents(seq: int = 0, epoch: int = 5, runs: Any = (), path: str = "/nowhere", **more: Any) -> bytes:
    """The event with which a stream of events begins."""
    data = {
        "epoch": epoch,
        "seq": seq,
        "model": "tiny",
        "path": path,
        "layout": LAYOUT.hex(),
        "block_size": 4 if path == "/nowhere" else 16,
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "runs": list(runs),
        **more,
    }
    return f"event: contents\ndata: {json.dumps(data)}\n\n".encode()


def _error(message: str, code: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "server_error", "param": None, "code": code}}).encode()


async def _main(port: int, tokens: int, tokenizer: str | None) -> None:
    stub = Stub(tokens=tokens)
    if tokenizer is not None:
        stub.events = asyncio.Queue()
        stub.events.put_nowait(contents(path=tokenizer))
    await stub.start(port)
    print(stub.url, flush=True)
    while True:
        await asyncio.sleep(5)
        stub.got.clear()
        if stub.events is not None:
            stub.events.put_nowait(b'event: load\ndata: {"running": 0, "waiting": 0}\n\n')


if __name__ == "__main__":
    import uvloop

    uvloop.run(_main(int(sys.argv[1]), int(sys.argv[2]), (sys.argv[3:] or [None])[0]))
