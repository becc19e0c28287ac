"""Servers as places where programs run."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator

import httpx

from headrace.errors import ConfigError, excerpt
from headrace.lang.openai_bodies import KINDS
from headrace.lang.plan_endpoint import PlanBackend

__all__ = ["Server", "server"]

_TIMEOUT = 600.0
"""Seconds without a received byte, at most."""


class Server:
    """A server, for `on=`. `kind` is `headrace`, `vllm` or `openai`; None: as the server's list of models says."""

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        kind: str | None = None,
        plans: bool | None = None,
        concurrency: int = 64,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if kind is not None and kind not in KINDS:
            raise ConfigError(f"`kind` is one of {', '.join(KINDS)}, got {excerpt(kind)}")
        self._base = _address(url)
        self._model, self._key, self._kind, self._plans = model, api_key, kind, plans
        self._concurrency, self._transport = concurrency, transport
        self._priority: int | None = None

    def with_priority(self, priority: int) -> Server:
        """The same server, for requests of this priority."""
        found = copy.copy(self)
        found._priority = priority
        return found

    @contextlib.asynccontextmanager
    async def open_backend(self) -> AsyncIterator[PlanBackend]:
        headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        limits = httpx.Limits(max_connections=self._concurrency)
        timeout = httpx.Timeout(_TIMEOUT, pool=None)
        async with httpx.AsyncClient(
            headers=headers,
            timeout=timeout,
            limits=limits,
            transport=self._transport,
            base_url=self._base,
            # Without TLS there is nothing to verify; reading the certificates takes longer than a short run.
            verify=not self._base.startswith("http://"),
        ) as client:
            backend = PlanBackend(client, self._base, self._model, self._kind, self._plans)
            backend.priority = self._priority
            if backend.runs_plans is False:
                await backend.connect()
            yield backend


def server(
    url: str,
    model: str | None = None,
    *,
    api_key: str | None = None,
    kind: str | None = None,
    plans: bool | None = None,
    concurrency: int = 64,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Server:
    """A server with OpenAI's API, for `on=`. `model`: default is the first that it lists. At most `concurrency`
    requests are sent at once. `plans`: the server runs whole plans (`/v1/programs`); None: if it can, as Headrace does.
    `transport` is httpx's, for tests. Raises ConfigError for a wrong address."""
    return Server(url, model, api_key=api_key, kind=kind, plans=plans, concurrency=concurrency, transport=transport)


def _address(url: str) -> str:
    """The server's base URL, without a `/v1` at its end. Raises ConfigError."""
    try:
        found = httpx.URL(url if "://" in url else f"http://{url}")
    except (httpx.InvalidURL, ValueError, TypeError) as error:
        raise ConfigError(f"{excerpt(url)}: {error}") from error
    if found.scheme not in ("http", "https") or not found.host:
        raise ConfigError(f"{excerpt(url)}: give a server as http://HOST:PORT")
    return str(found).rstrip("/").removesuffix("/v1")
