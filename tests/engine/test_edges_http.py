"""HTTP from unusual clients, on a real connection: framing, limits and methods."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest
from server_harness import PATIENCE, Server

import headrace

POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"


def port(server: Server) -> int:
    return int(server.url.rsplit(":", 1)[1])


def exchange(server: Server, data: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes, read until the server closes: status, headers, and the body as it came over the wire."""
    with socket.create_connection(("127.0.0.1", port(server)), PATIENCE) as connection:
        received = b""
        try:
            connection.sendall(data)
            while piece := connection.recv(65536):
                received += piece
        except ConnectionError:
            pass  # What was answered before the rest of an endless request came in.
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split(" ")[1]), headers, body


def request(head: bytes, **body: Any) -> bytes:
    raw = json.dumps({"prompt": "Hi", "max_tokens": 3, "temperature": 0, "ignore_eos": True, **body}).encode()
    return head + b"content-length: %d\r\n\r\n" % len(raw) + raw


@pytest.mark.parametrize("keep", [b"", b"connection: keep-alive\r\n"])
def test_a_stream_to_an_old_client_has_no_chunks(narrow, keep):
    head = b"POST /v1/completions HTTP/1.0\r\n" + keep
    status, headers, body = exchange(narrow, request(head, stream=True))
    assert status == 200
    assert "transfer-encoding" not in headers
    assert headers["connection"] == "close"
    lines = [line for line in body.decode().split("\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    whole = exchange(narrow, request(head))
    text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines[:-1])
    assert json.loads(whole[2])["choices"][0]["text"] == text


def test_a_body_in_chunks(narrow):
    raw = request(b"").partition(b"\r\n\r\n")[2]
    halves = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (raw[:7], raw[7:]))
    status, _, body = exchange(narrow, POST + b"transfer-encoding: chunked\r\n\r\n" + halves + b"0\r\n\r\n")
    assert (status, len(json.loads(body)["choices"])) == (200, 1)


@pytest.mark.parametrize(
    "data",
    [
        b"GET /\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT elsewhere:80 HTTP/1.1\r\nhost: x\r\n\r\n",
        POST + b"content-length: -5\r\n\r\n",
        POST + b"content-length: 99999999999999999999999\r\n\r\n",
        POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 50,
        b"\x00" * 100,
    ],
)
def test_invalid_http_is_refused_in_the_error_form(narrow, data):
    status, headers, body = exchange(narrow, data)
    assert status == 400
    assert headers["content-type"] == "application/json"
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("line", [b"x: " + b"a" * 1000, b"x: a"], ids=["long", "short"])
def test_headers_without_end_are_refused(narrow, line):
    endless = b"GET /health HTTP/1.1\r\nhost: x\r\n" + (line + b"\r\n") * (2**21 // len(line))
    status, headers, body = exchange(narrow, endless)
    assert (status, headers["connection"]) == (431, "close")
    assert json.loads(body)["error"]["code"] == "headers_too_large"
    assert narrow.http.get("/health").status_code == 200


def test_invalid_http_ends_the_stream_before_it(narrow):
    kept = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"
    raw = request(kept, max_tokens=200, stream=True) + b"\x00" * 100
    with socket.create_connection(("127.0.0.1", port(narrow)), PATIENCE) as connection:
        connection.sendall(raw)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    assert b'"code":"invalid_http"' in received
    assert b"[DONE]" not in received
    assert narrow.http.get("/health").status_code == 200


def test_long_headers_within_the_limit_and_many_requests_on_one_connection(narrow):
    headers = {"x-trace": "a" * 30_000}
    for _ in range(5):
        assert narrow.http.get("/health", headers=headers).status_code == 200


def test_requests_in_a_row_are_answered_in_order(narrow):
    one = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
    status, _, body = exchange(narrow, one * 3 + b"GET /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert status == 200
    assert [body.count(b"HTTP/1.1 200"), body.count(b"HTTP/1.1 404")] == [2, 1]


def test_methods(narrow):
    for path in ("/health", "/v1/models", "/metrics"):
        head = narrow.http.head(path)
        assert (head.status_code, head.content) == (200, b"")
        assert narrow.http.get(path).status_code == 200
    wrong = narrow.http.get("/v1/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert narrow.http.head("/v1/completions").status_code == 405
    assert "GET" in narrow.http.delete("/v1/models").headers["allow"]


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=x"]
)
def test_the_declared_type_does_not_matter(narrow, kind):
    headers = {} if kind is None else {"content-type": kind}
    raw = json.dumps({"prompt": "Hi", "max_tokens": 1})
    assert narrow.http.post("/v1/completions", content=raw, headers=headers).status_code == 200


@pytest.mark.parametrize("host", [b"evil.example", b"\xff[:::a@b/", b""])
def test_a_forged_host_changes_nothing(narrow, host):
    status, headers, _ = exchange(narrow, b"GET /v1/models/ HTTP/1.1\r\nhost: %s\r\nconnection: close\r\n\r\n" % host)
    assert (status, "location" in headers) == (404, False)


@pytest.mark.parametrize("size", [17 * 2**20, 40 * 2**20])
def test_a_body_that_is_too_large_is_refused_while_it_is_sent(narrow, size):
    response = narrow.http.post("/v1/completions", content=(b" " * 2**16 for _ in range(size >> 16)))
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
    assert narrow.complete(max_tokens=1).status_code == 200


def test_only_the_api_listens_and_messages_are_never_pickles(narrow):
    """The engine is reached through unix sockets alone, and what decodes its messages cannot run code."""
    own = psutil.Process(narrow.process.pid)
    listening = [c for c in own.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert [(c.laddr.ip, c.laddr.port) for c in listening] == [("127.0.0.1", port(narrow))]
    assert not [c for c in narrow.engine.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    sources = list(Path(headrace.__file__).parent.rglob("*.py"))
    loaded = re.compile(r"^\s*(import|from) (pickle|cloudpickle|dill|marshal|shelve)\b|torch\.load\(", re.MULTILINE)
    assert len(sources) > 100
    assert [path.name for path in sources if loaded.search(path.read_text())] == []
