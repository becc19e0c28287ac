"""A running server that speaks OpenAI's API."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from headrace.cli.pieces import Pieces
from headrace.errors import ConfigError, EngineDead, HeadraceError, InvalidRequest, Overloaded

__all__ = ["RemoteSource"]

_TIMEOUT = 300.0
"""Seconds without a byte."""


class RemoteSource:
    """A `sources.Source`."""

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None) -> None:
        """Without a `model` the first that the server names."""
        address = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = address.port
        except ValueError as error:
            raise ConfigError(f"--url {url}: {error}") from error
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(f"--url {url}: give it as http://HOST:PORT")
        self._host, self._port, self._tls = address.hostname, port, address.scheme == "https"
        self._base = address.path.rstrip("/").removesuffix("/v1")
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._model = model or self._first_model()

    def complete(self, prompt: str, params: Mapping[str, Any]) -> Pieces:
        for choice in self._choices("/v1/completions", {"prompt": prompt, **params}):
            yield choice.get("text") or ""

    def chat(self, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> Pieces:
        for choice in self._choices("/v1/chat/completions", {"messages": list(messages), **params}):
            yield choice.get("delta", {}).get("content") or ""

    def close(self) -> None:
        """Nothing is held between two answers."""

    def _first_model(self) -> str:
        with self._ask("GET", "/v1/models", None) as response:
            return str(json.loads(response.read())["data"][0]["id"])

    def _choices(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        # Other servers don't know what is ours: say only what was asked for.
        said = {name: value for name, value in body.items() if value not in (None, (), 0) or name == "temperature"}
        with self._ask("POST", path, {"model": self._model, "stream": True, **said}) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        raise EngineDead(str(chunk["error"].get("message", chunk["error"])))
                    yield from chunk.get("choices", ())

    @contextlib.contextmanager
    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Iterator[http.client.HTTPResponse]:
        """Leaving closes the connection, which aborts what still runs."""
        kind = http.client.HTTPSConnection if self._tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_TIMEOUT)
        try:
            connection.request(method, self._base + path, None if body is None else json.dumps(body), self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise _refusal(response)
            yield response
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or error or type(error).__name__
            raise ConfigError(f"--url {self._url}: no answer ({why}); is the server running?") from error
        finally:
            connection.close()


def _refusal(response: http.client.HTTPResponse) -> HeadraceError:
    raw = response.read()
    try:
        message = str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the server answers {response.status} {response.reason}"
    if response.status in (429, 503):
        return Overloaded(message)
    return InvalidRequest(message) if response.status < 500 else EngineDead(message)
