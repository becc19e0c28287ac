"""Where a server listens: TLS, a unix socket, IPv6; a prefix behind a proxy; and the page of the API."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_fakes import MODEL, Served, serve_fake, with_key
from test_server_process import PATIENCE, server, until

from headrace.config import Config, ServerConfig
from headrace.errors import ConfigError
from headrace.server.listening import Tls, base_url, bind, bound
from headrace.server.page_files import DOCS_PATHS

DATA = Path(__file__).parents[2] / "data" / "tls"
PAGE = Path(__file__).parents[3] / "src" / "headrace" / "server" / "docs_page"
CERTIFICATE, KEY = DATA / "cert.pem", DATA / "key.pem"


def trusting(certificate: Path) -> httpx.Client:
    return httpx.Client(verify=ssl.create_default_context(cafile=str(certificate)), timeout=PATIENCE)


def complete(client: httpx.Client, url: str) -> httpx.Response:
    return client.post(f"{url}/v1/completions", json={"model": MODEL, "prompt": "Hi"})


def test_tls_and_a_new_certificate(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(CERTIFICATE, certificate)
    shutil.copy(KEY, key)
    options = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    with server(server=options, first_prompt="Hi") as running:
        assert running.url.startswith("https://127.0.0.1:")
        assert running.process.stdout is not None
        assert [running.process.stdout.readline() for _ in range(3)][2] == "Hello\n"
        with trusting(CERTIFICATE) as client:
            assert complete(client, running.url).json()["choices"][0]["text"] == "Hello"
            with client.stream(
                "POST", f"{running.url}/v1/completions", json={"prompt": "Hi", "stream": True}
            ) as answer:
                assert answer.read().endswith(b"data: [DONE]\n\n")
        with (
            pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
            httpx.Client(timeout=PATIENCE) as client,
        ):
            complete(client, running.url)
        with httpx.Client(timeout=PATIENCE) as client, pytest.raises(httpx.HTTPError):
            complete(client, running.url.replace("https", "http"))
        for name, target in (("other_cert.pem", certificate), ("other_key.pem", key)):
            shutil.copy(DATA / name, target)
        running.process.send_signal(signal.SIGHUP)

        def renewed() -> bool:
            try:
                with trusting(DATA / "other_cert.pem") as client:
                    return client.get(f"{running.url}/health").status_code == 200
            except httpx.ConnectError:
                return False

        until(renewed)


def test_large_bodies_and_errors_over_tls() -> None:
    options = {"ssl_certfile": str(CERTIFICATE), "ssl_keyfile": str(KEY)}
    with server(server=options) as running, trusting(CERTIFICATE) as client:
        answer = client.post(f"{running.url}/v1/completions", json={"model": MODEL, "prompt": "x" * 2_000_000})
        assert answer.status_code == 400
        assert client.get(f"{running.url}/" + "x" * 20_000).status_code == 414


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("none.pem", None, r"--ssl-certfile: .*none\.pem cannot be read: No such file"),
        ("cert.pem", "none.pem", r"--ssl-keyfile: .*none\.pem cannot be read"),
        ("cert.pem", None, "cannot be used"),
        ("cert.pem", "other_key.pem", "KEY_VALUES_MISMATCH"),
        ("key.pem", "key.pem", "cannot be used"),
        ("cert.pem", "encrypted_key.pem", "the key is encrypted"),
    ],
)
def test_wrong_certificates_are_errors(certificate: str, key: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Tls(DATA / certificate, None if key is None else DATA / key)


def test_a_wrong_certificate_leaves_the_old_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(CERTIFICATE.read_bytes() + KEY.read_bytes())
    tls = Tls(both, None)
    both.write_text("nothing")
    tls.reload()
    assert "the certificate stays as it was: --ssl-certfile" in caplog.text


def test_a_key_needs_a_certificate() -> None:
    with pytest.raises(ValueError, match="--ssl-certfile"):
        ServerConfig(ssl_keyfile="k")


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "headrace.sock"
    with server(server={"uds": str(path)}, first_prompt="Hi") as running:
        assert running.line.startswith(f"Headrace serves {MODEL} at unix:{path}")
        assert running.process.stdout is not None
        assert [running.process.stdout.readline() for _ in range(3)][2] == "Hello\n"
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=PATIENCE) as client:
            assert complete(client, "http://server").json()["choices"][0]["text"] == "Hello"
            with client.stream("POST", "http://server/v1/completions", json={"prompt": "Hi", "stream": True}) as answer:
                assert answer.read().endswith(b"data: [DONE]\n\n")
        with pytest.raises(ConfigError, match="another server listens"), bound(ServerConfig(uds=str(path))):
            pass
        running.process.send_signal(signal.SIGTERM)
        assert running.stop()[0] == 0
    assert not path.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="claims are names of Linux's kernel")
@pytest.mark.parametrize("unix", [False, True])
def test_an_address_whose_server_does_not_listen_yet_is_taken(tmp_path: Path, unix: bool) -> None:
    path = tmp_path / "s"
    with bound(ServerConfig(uds=str(path)) if unix else ServerConfig(port=0)) as first:
        config = ServerConfig(uds=str(path)) if unix else ServerConfig(port=first.getsockname()[1])
        with pytest.raises(ConfigError, match=r"another server .*starts there"), bound(config):
            pass
        assert path.exists() == unix, "the first one keeps it"
        if not unix:
            with bound(ServerConfig(host="127.0.0.2", port=config.port)):
                pass
    with bound(config):
        pass


def test_a_socket_whose_server_has_ended_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.exists()
    with bound(ServerConfig(uds=str(path))) as listener:
        assert listener.getsockname() == str(path)
    assert not path.exists()
    path.write_text("data")
    with pytest.raises(ConfigError, match="is no socket"), bound(ServerConfig(uds=str(path))):
        pass
    assert path.read_text() == "data"
    for wrong in (tmp_path / "no" / "s", tmp_path / ("x" * 200)):
        with pytest.raises(ConfigError, match="--uds: cannot listen"), bound(ServerConfig(uds=str(wrong))):
            pass


def test_ipv6() -> None:
    with server(server={"host": "::1"}) as running:
        assert running.url.startswith("http://[::1]:")
        assert running.get("/health") == 200
    for host in ("::1", "[::1]"):
        with bind(host, 0) as listener:
            assert listener.family == socket.AF_INET6


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"host": "0.0.0.0"}, "http://127.0.0.1:{port}"),
        ({"host": "::"}, "http://[::1]:{port}"),
        ({"host": "[::1]"}, "http://[::1]:{port}"),
        ({"host": "127.0.0.1", "root_path": "/llm/"}, "http://127.0.0.1:{port}/llm"),
        ({"ssl_certfile": "c"}, "https://127.0.0.1:{port}"),
    ],
)
def test_urls(options: dict[str, Any], url: str) -> None:
    with bind("127.0.0.1", 0) as listener:
        assert base_url(ServerConfig(**options), listener) == url.format(port=listener.getsockname()[1])


# A prefix behind a proxy


def prefixed(prefix: str, key: str | None = None) -> Served:
    config = with_key(key)
    return serve_fake(config.model_copy(update={"server": config.server.model_copy(update={"root_path": prefix})}))


def get(served: Served, path: str, **headers: str) -> httpx.Response:
    return asyncio.run(served.http.get(f"http://server{path}", headers=headers))


def test_a_prefix_that_the_proxy_removes_or_leaves() -> None:
    served = prefixed("/a/llm")
    for start in ("", "/a/llm"):
        for path in ("/", "/docs", "/health", "/v1/models", "/metrics", "/page/main.js"):
            assert get(served, start + path).status_code == 200, path
        answer = asyncio.run(served.http.post(f"{start}/api/chat", json={"model": "no"}))
        assert isinstance(answer.json()["error"], str)
    assert get(served, "/a/llm/openapi.json").json()["servers"] == [{"url": "/a/llm"}]
    moved = get(served, "/a/llm")
    assert (moved.status_code, moved.headers["location"]) == (308, "/a/llm/")
    for wrong in ("/a/llmx/health", "/a/health", "/llm/health", "/a/llm/a/llm/health"):
        assert get(served, wrong).status_code == 404
    assert "servers" not in serve_fake().app.openapi()


def test_no_spelling_of_the_prefix_bypasses_the_key() -> None:
    served = prefixed("/llm", "k")
    for path in (
        "/llm/v1/models",
        "/llm//health",
        "/llm/llm/health",
        "/llm/%2e%2e/health",
        "/llm/openapi.json",
        "/llmhealth",
    ):
        assert get(served, path).status_code == 401, path
    assert get(served, "/llm/v1/models", **{"x-api-key": "k"}).status_code == 200
    assert get(served, "/llm/health").status_code == 200


@pytest.mark.parametrize("prefix", ["llm", "/a b", "//x", "/a//b", "/a?b", "http://x/y"])
def test_a_wrong_prefix_is_an_error(prefix: str) -> None:
    with pytest.raises(ValueError, match="/llm or /a/b"):
        Config.model_validate({"server": {"root_path": prefix}})


# The page of the API


def test_the_docs_need_neither_a_key_nor_another_host() -> None:
    served = serve_fake(with_key("k"))
    for path in DOCS_PATHS:
        answer = get(served, path)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert not re.search(r"https?://|//cdn|innerHTML|@import|url\(", answer.text)
    assert get(served, "/openapi.json").status_code == 401
    page = (PAGE / "index.html").read_text()
    for reference in re.findall(r'(?:src|href)="([^"#]+)"', page):
        if reference != "./":
            assert get(served, f"/{reference}", **{"x-api-key": "k"}).status_code == 200, reference
    ids = set(re.findall(r'\bid="([\w-]+)"', page))
    assert set(re.findall(r'byId\("([\w-]+)"\)', (PAGE / "docs.js").read_text())) <= ids


def test_the_document_has_what_the_page_shows() -> None:
    spec = serve_fake().app.openapi()
    text = (PAGE / "docs.js").read_text()
    for methods in spec["paths"].values():
        for operation in methods.values():
            assert operation["summary"]
    references = set(re.findall(r"#/components/schemas/(\w+)", str(spec)))
    assert references <= set(spec["components"]["schemas"])
    assert "spec.components.schemas" in text


def test_head_of_metrics() -> None:
    answer = asyncio.run(serve_fake().http.head("/metrics"))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
