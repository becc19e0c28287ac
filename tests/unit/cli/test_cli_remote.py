"""`RemoteSource`: answers from a running server."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.cli.main import main
from headrace.cli.remote_source import RemoteSource
from headrace.errors import ConfigError, EngineDead, InvalidRequest, Overloaded
from headrace.server_address import transport_fault

PARAMS = {"max_tokens": 7, "temperature": 0.0, "top_p": 1.0}


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, str | None, Any]] = []
        self.refusal: tuple[int, bytes] | None = None
        self.chunks: list[dict[str, Any]] = []
        self.state: dict[str, Any] = {}
        self.owner = "someone"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        models = {"data": [{"id": "first", "owned_by": self.server.owner}, {"id": "second"}]}
        self._answer(None, json.dumps(self.server.state if self.path == "/v1/engine/state" else models).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        events = [f"data: {json.dumps(chunk)}\n\n" for chunk in self.server.chunks]
        self._answer(body, "".join([": ping\n\n", *events, "data: [DONE]\n\n"]).encode())

    def _answer(self, body: Any, reply: bytes) -> None:
        self.server.requests.append((self.path, self.headers["Authorization"], body))
        status, reply = self.server.refusal or (200, reply)
        self.send_response(status)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


class UnixServer(Server):
    address_family = socket.AF_UNIX

    def __init__(self, path: Path) -> None:
        self.requests, self.refusal, self.chunks, self.state, self.owner = [], None, [], {}, "someone"
        ThreadingHTTPServer.__init__(self, str(path), Handler)  # type: ignore[arg-type]

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        return self.socket.accept()[0], ("client", 0)


def test_a_server_behind_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with UnixServer(path) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        server.chunks = [{"choices": [{"delta": {"content": "Hi"}}]}]
        for url in (f"unix:{path}", f"unix://{path}"):
            source = RemoteSource(url)
            assert source.header == f"first at unix:{path}"
            assert list(source.models()) == ["first", "second"]
            assert "".join(source.chat([{"role": "user", "content": "Hi"}], PARAMS)) == "Hi"
            source.close()
        server.shutdown()
        thread.join()
    with pytest.raises(ConfigError, match=r"^no answer from unix:"):
        RemoteSource(f"unix:{path}")
    with pytest.raises(ConfigError, match="unix:PATH"):
        RemoteSource("unix:")


def test_chat_streams_deltas(server: Server) -> None:
    server.chunks = [
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"delta": {"content": "Hé"}}]},
        {"choices": [{"delta": {"content": None}}]},
        {"choices": [{"delta": {"content": "llo"}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"completion_tokens": 4}},
    ]
    source = RemoteSource(server.url, "m", "key")
    assert "".join(source.chat([{"role": "user", "content": "hi"}], PARAMS)) == "Héllo"
    assert (source.tokens, source.finish_reason) == (4, "stop")
    ((path, key, body),) = server.requests
    assert (path, key) == ("/v1/chat/completions", "Bearer key")
    assert body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 7,
        "temperature": 0.0,
        "top_p": 1.0,
    }


def test_the_header_has_what_the_server_tells(server: Server) -> None:
    source = RemoteSource(server.url, "m")
    assert source.header == f"m at {server.url}"
    server.state = {"model": {"platform": "cpu", "dtype": "bfloat16", "max_model_len": 9}}
    assert source.header == f"m at {server.url}: cpu, bfloat16, 9 tokens of context"


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_first_model_is_used_if_none_is_named(server: Server, suffix: str) -> None:
    server.chunks = [{"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}]
    source = RemoteSource(server.url + suffix)
    assert "".join(source.complete("x", PARAMS | {"top_k": 3, "stop": ("z",)})) == "ab"
    assert [path for path, _, _ in server.requests] == ["/v1/models", "/v1/completions"]
    body = server.requests[1][2]
    assert (body["model"], body["prompt"], body["top_k"], body["stop"]) == ("first", "x", 3, ["z"])
    assert server.requests[1][1] is None


@pytest.mark.parametrize("model", [None, "first"])
@pytest.mark.parametrize(
    ("owner", "asked", "sent"),
    [
        ("someone", {}, {}),
        ("headrace", {}, {"whitespace": "compact"}),
        ("someone", {"whitespace": "flexible"}, {"whitespace": "flexible"}),
        ("headrace", {"whitespace": "flexible"}, {"whitespace": "flexible"}),
    ],
)
def test_only_our_servers_get_a_field_of_ours_that_nobody_asked_for(
    server: Server, model: str | None, owner: str, asked: dict[str, str], sent: dict[str, str]
) -> None:
    server.owner = owner
    form = {"json": {"type": "object"}}
    list(RemoteSource(server.url, model).complete("x", PARAMS | {"structured_outputs": {**form, **asked}}))
    assert server.requests[-1][2]["structured_outputs"] == {**form, **sent}
    paths = [path for path, _, _ in server.requests]
    assert paths == ["/v1/models", "/v1/completions"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, InvalidRequest), (401, InvalidRequest), (429, Overloaded), (503, Overloaded), (500, EngineDead)],
)
def test_refusals_keep_the_servers_message(server: Server, status: int, kind: type[Exception]) -> None:
    server.refusal = (status, json.dumps({"error": {"message": "because"}}).encode())
    with pytest.raises(kind, match="because"):
        list(RemoteSource(server.url, "m").complete("x", PARAMS))


def test_a_refusal_without_a_message_shows_its_status(server: Server) -> None:
    server.refusal = (404, b"<html>")
    with pytest.raises(InvalidRequest, match="404"):
        RemoteSource(server.url)


def test_an_error_in_the_stream_is_raised(server: Server) -> None:
    server.chunks = [{"choices": [{"text": "a"}]}, {"error": {"message": "engine lost"}}]
    pieces = RemoteSource(server.url, "m").complete("x", PARAMS)
    assert next(pieces) == "a"
    with pytest.raises(EngineDead, match="engine lost"):
        next(pieces)


def test_no_server() -> None:
    with Server() as gone:
        url = gone.url
    with pytest.raises(ConfigError, match="is the server running"):
        RemoteSource(url)


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), "SSL_CERT_FILE"),
        (httpx.RemoteProtocolError("Server disconnected without sending a response."), "https://"),
        (httpx.ReadTimeout(""), "ReadTimeout"),
    ],
)
def test_faults_of_tls_come_with_their_remedy(fault: httpx.TransportError, remedy: str) -> None:
    assert remedy in transport_fault(fault)
    assert ("https://" in transport_fault(fault)) == (remedy == "https://")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port"])
def test_invalid_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        RemoteSource(url, "m")


def test_generate_and_chat_through_a_server(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.chunks = [{"choices": [{"text": "yes"}]}]
    assert main(["generate", "is it?", "--url", server.url]) == 0
    assert capsys.readouterr().out == "yes\n"
    assert main(["generate", "other", "is it?", "--url", server.url, "--api-key", "k"]) == 0
    assert server.requests[-1][1:] == ("Bearer k", server.requests[-1][2])
    assert server.requests[-1][2]["model"] == "other"


def test_a_fault_is_told_without_the_systems_number() -> None:
    assert transport_fault(httpx.ConnectError("[Errno 111] Connection refused")) == "Connection refused"
    assert transport_fault(httpx.ConnectError("[Errno -2] Name or service not known")) == "Name or service not known"
