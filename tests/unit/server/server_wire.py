"""A server on a real socket, in the test's own event loop, and clients that write bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from server_fakes import MODEL, FakeClient, serve_fake

from headrace.config import Config
from headrace.server.app import create_app_for
from headrace.server.context import Context
from headrace.server.descriptor_watch import DescriptorWatch
from headrace.server.http_server import HttpServer, make_server

PATIENCE = 300.0
"""Seconds; a generous limit for events that come at once, unless the machine is overloaded."""


@dataclass
class Wire:
    engine: FakeClient
    context: Context
    server: HttpServer
    port: int

    async def open(self) -> Line:
        return Line(*await asyncio.open_connection("127.0.0.1", self.port))

    async def ask(self, *pieces: bytes) -> Answer:
        """One request in these pieces, and its answer."""
        line = await self.open()
        for piece in pieces:
            await line.send(piece)
        answer = await line.answer()
        line.writer.close()
        return answer


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        found: str = self.json["error"]["code"]
        return found


@dataclass
class Line:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)
        first, *lines = head.decode().split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return Answer(int(first.split()[1]), headers, await asyncio.wait_for(self._body(headers), PATIENCE))

    async def _body(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return await self.reader.readexactly(int(headers["content-length"]))
        body = b""
        while headers.get("transfer-encoding") == "chunked" and (size := int(await self.reader.readline(), 16)) >= 0:
            body += await self.reader.readexactly(size)
            await self.reader.readline()
            if not size:
                break
        return body

    async def closed(self) -> bytes:
        """The bytes received until the server closes the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE)
        except ConnectionResetError:
            return b""


def request(path: str = "/v1/completions", headers: str = "", body: bytes | None = None, **fields: Any) -> bytes:
    """A POST with a body of JSON."""
    raw = json.dumps({"model": MODEL, "prompt": "Hi", **fields}).encode() if body is None else body
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


@asynccontextmanager
async def wired(config: Config | None = None, **engine: Any) -> AsyncIterator[Wire]:
    served = serve_fake(config, **engine)
    context: Context = served.app.state.context
    server = make_server(create_app_for(context), DescriptorWatch())
    loop = asyncio.get_running_loop()
    kind: Any = server.config.http_protocol_class
    listening = await loop.create_server(lambda: kind(server.config, server.server_state, {}), "127.0.0.1", 0)
    try:
        yield Wire(served.engine, context, server, listening.sockets[0].getsockname()[1])
    finally:
        listening.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # type: ignore[union-attr]
        for task in list(server.server_state.tasks):
            task.cancel()
        await asyncio.sleep(0)
