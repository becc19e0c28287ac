"""A source of answers: a running server with OpenAI's API."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from headrace.cli.command_options import with_whitespace
from headrace.cli.pieces import Pieces
from headrace.errors import ConfigError, EngineDead, HeadraceError, InvalidRequest, Overloaded, excerpt
from headrace.event_stream import event_data
from headrace.server_address import no_answer, server_address, transport_fault

__all__ = ["RemoteSource"]

_TIMEOUT = 300.0
"""Seconds without a received byte, at most."""


class RemoteSource:
    """A `text_sources.TextSource`."""

    is_remote = True

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None) -> None:
        """`model`: default is the first that the server lists."""
        self._url = url
        address = server_address(url)
        self._base, self._shown = address.url, address.shown
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._client = httpx.Client(headers=headers, timeout=_TIMEOUT, **address.options)
        self._tokens: int | None = None
        self._finish: str | None = None
        self._owners: dict[str, str] = {}
        self._model = model or self.models()[0]

    @property
    def header(self) -> str:
        return f"{self._model} at {self._shown}{self._engine()}"

    @property
    def tokens(self) -> int | None:
        return self._tokens

    @property
    def finish_reason(self) -> str | None:
        return self._finish

    def complete(self, prompt: str, params: Mapping[str, Any]) -> Pieces:
        for choice in self._choices("/v1/completions", {"prompt": prompt, **params}):
            yield choice.get("text") or ""

    def chat(self, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> Pieces:
        for choice in self._choices("/v1/chat/completions", {"messages": list(messages), **params}):
            yield choice.get("delta", {}).get("content") or ""

    def close(self) -> None:
        self._client.close()

    def models(self) -> Sequence[str]:
        with self._request("GET", "/v1/models", None) as response:
            listed = json.loads(response.read())["data"]
            self._owners = {str(entry["id"]): str(entry.get("owned_by")) for entry in listed}
            if not self._owners:
                raise LookupError("no model is listed")
            return list(self._owners)

    def _is_ours(self) -> bool:
        """As far as the server says so in its list of models, as routers of ours do too."""
        if not self._owners:
            with contextlib.suppress(InvalidRequest):
                self.models()
        return "headrace" in self._owners.values()

    def _engine(self) -> str:
        """Platform, dtype and context, if the server tells them: only ours does."""
        with contextlib.suppress(HeadraceError), self._request("GET", "/v1/engine/state", None) as response:
            model = json.loads(response.read())["model"]
            return f": {model['platform']}, {model['dtype']}, {model['max_model_len']} tokens of context"
        return ""

    def _choices(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        # Other servers refuse fields that only our server has: send only the values that the user gave.
        given = {name: value for name, value in body.items() if value not in (None, ())}
        if "structured_outputs" in given and self._is_ours():
            given = dict(with_whitespace(given))
        self._tokens = self._finish = None
        asked = {"model": self._model, "stream": True, "stream_options": {"include_usage": True}, **given}
        with self._request("POST", path, asked) as response:
            for data in event_data(response.iter_bytes()):
                chunk = json.loads(data)
                if "error" in chunk:
                    raise EngineDead(str(chunk["error"].get("message", chunk["error"])))
                if (usage := chunk.get("usage")) is not None:
                    self._tokens = usage.get("completion_tokens")
                for choice in chunk.get("choices", ()):
                    self._finish = choice.get("finish_reason") or self._finish
                    yield choice

    @contextlib.contextmanager
    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> Iterator[httpx.Response]:
        """Send a request. Leaving the block closes the answer, which aborts a request that still runs."""
        try:
            with self._client.stream(method, self._base + path, json=body) as response:
                if response.status_code != 200:
                    raise _refusal(response)
                yield response
        except httpx.TransportError as error:
            raise ConfigError(no_answer(self._shown, transport_fault(error))) from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"--url {self._url}: the answer is not in the form of OpenAI's API: {excerpt(error)}"
            ) from error


def _refusal(response: httpx.Response) -> HeadraceError:
    raw = response.read()
    try:
        message = str(json.loads(raw)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"the server answers {response.status_code} {response.reason_phrase}"
    if response.status_code in (429, 503):
        return Overloaded(message)
    return InvalidRequest(message) if response.status_code < 500 else EngineDead(message)
