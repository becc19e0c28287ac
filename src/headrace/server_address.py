"""The address of a running server as people write it: http://HOST:PORT, https://HOST:PORT or unix:PATH."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import httpx

from headrace.errors import ConfigError

__all__ = ["ServerAddress", "http_address", "no_answer", "server_address", "transport_fault"]


class ServerAddress(NamedTuple):
    url: str
    """What requests are made of."""
    shown: str
    uds: str | None = None
    """The file of a unix socket."""

    @property
    def options(self) -> dict[str, Any]:
        """For `httpx.Client`."""
        return {} if self.uds is None else {"transport": httpx.HTTPTransport(uds=self.uds)}


def transport_fault(error: Exception) -> str:
    """Why a server gave no answer, in one line, with the remedy where TLS is the reason."""
    why = re.sub(r"^\[Errno -?\d+\] ", "", " ".join(str(error).split())) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in why:
        why += "; to trust a certificate of your own, set SSL_CERT_FILE to its file"
    elif isinstance(error, httpx.RemoteProtocolError) and "disconnected" in why:
        why += "; a server with TLS has an address with https://"
    return why


def no_answer(url: str, why: str) -> str:
    """What is said of an address where nothing answers, with the remedy. `why`: as of `transport_fault`."""
    return f"no answer from {url} ({why}); is the server running? `headrace serve` starts one"


def server_address(url: str, option: str = "--url ") -> ServerAddress:
    """Without a `/v1` at its end. `option`: that gave it, for messages; empty for an argument. Raises ConfigError."""
    if url.startswith("unix:"):
        # unix:/tmp/s, unix:///tmp/s and unix:s name files.
        path = url.removeprefix("unix:")
        path = path[2:] if path.startswith("///") else path
        if not path:
            raise ConfigError(f"{option}{url}: give the file of the socket, as unix:PATH")
        return ServerAddress("http://server", f"unix:{path}", path)
    base = http_address(url, option, "http://HOST:PORT, or unix:PATH")
    return ServerAddress(base, base)


def http_address(url: str, option: str = "--url ", forms: str = "http://HOST:PORT") -> str:
    """The same where a unix socket is not served. `forms`: that are taken, for messages. Raises ConfigError."""
    try:
        found = httpx.URL(url if "://" in url else f"http://{url}")
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"{option}{url}: {error}: give it as {forms}") from error
    if found.scheme not in ("http", "https") or not found.host:
        raise ConfigError(f"{option}{url}: give it as {forms}")
    return str(found).rstrip("/").removesuffix("/v1")
