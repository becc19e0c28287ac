"""The address of the server that is measured."""

from __future__ import annotations

import httpx

from headrace.errors import ConfigError

__all__ = ["endpoint_address", "unreachable"]


def endpoint_address(url: str) -> str:
    """Without a `/v1` at its end. Raises ConfigError."""
    try:
        found = httpx.URL(url if "://" in url else f"http://{url}")
    except (httpx.InvalidURL, ValueError) as error:
        raise ConfigError(f"--url {url}: {error}: give it as http://HOST:PORT") from error
    if found.scheme not in ("http", "https") or not found.host:
        raise ConfigError(f"--url {url}: give it as http://HOST:PORT")
    return str(found).rstrip("/").removesuffix("/v1")


def unreachable(url: str, why: str) -> ConfigError:
    """Nothing answers there."""
    return ConfigError(f"no answer from {url} ({why}); is the server running? `headrace serve` starts one")
