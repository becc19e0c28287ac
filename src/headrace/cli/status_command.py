"""Show the engines behind an address: `headrace status [URL]`. A router has one line for each replica, a server one for
itself."""

from __future__ import annotations

import argparse
import json
from typing import Any

from headrace.cli.address_options import add_address, chosen_address
from headrace.errors import ConfigError, EngineDead

__all__ = ["configure", "run"]

_PATIENCE = 5.0
"""Seconds for one answer."""
_COLUMNS = ("replica", "state", "role", "model", "waiting", "running", "requests", "restarts", "url", "where")
_TITLES = {"requests": "IN-FLIGHT"}
"""Of columns that are not titled by their name: those that the router has sent and that have not ended."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_address(parser, "of a router or a server, or unix:PATH")
    parser.add_argument("--api-key", metavar="KEY", help="default: HEADRACE_API_KEY")
    parser.add_argument("--json", action="store_true", help="for programs")


def run(args: argparse.Namespace) -> int:
    """Returns 1 if no engine can take requests."""
    from headrace.environment import read_environment

    key = (args.api_key or read_environment().api_key or "").strip() or None
    url, option = chosen_address(args)
    status = _read(url, key, option)
    print(json.dumps(status, indent=2) if args.json else "\n".join(_lines(status)))
    return 0 if any(row["state"] == "ready" for row in status["replicas"]) else 1


def _read(url: str, key: str | None, option: str) -> dict[str, Any]:
    """As `/v1/router/replicas` answers; a single server's own row is made from what it answers. `option`: that gave the
    address, for messages. Raises EngineDead and ConfigError."""
    import httpx

    from headrace.server_address import no_answer, server_address, transport_fault

    at = server_address(url, option=option)
    address = at.shown
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    try:
        with httpx.Client(base_url=at.url, headers=headers, timeout=_PATIENCE, **at.options) as http:
            answer = http.get("/v1/router/replicas")
            if answer.status_code == 401:
                raise ConfigError(f"{address} wants an API key: give --api-key, or set HEADRACE_API_KEY")
            if answer.status_code == 404:
                return {"group": None, "replicas": [_server_row(http, address)]}
            answer.raise_for_status()
            found: dict[str, Any] = answer.json()
            if not all("state" in row for row in found["replicas"]):
                raise ValueError("a replica has no state")
            return found
    except httpx.TransportError as error:
        raise EngineDead(no_answer(address, transport_fault(error))) from None
    except httpx.HTTPStatusError as error:
        raise EngineDead(f"{address} answers {error.response.status_code}, and not as a Headrace server does") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError, AttributeError) as error:
        raise EngineDead(f"{address} does not answer as a Headrace server does: {transport_fault(error)}") from None


def _server_row(http: Any, address: str) -> dict[str, Any]:
    """The row of a server without a router."""
    health = http.get("/health")
    models = http.get("/v1/models").json().get("data") or [{}]
    role = http.get("/v1/engine/role")
    state = http.get("/v1/engine/state")
    figures = state.json() if state.status_code == 200 else {}
    return {
        "replica": 0,
        "state": "ready" if health.status_code == 200 else "busy",
        "why": "" if health.status_code == 200 else health.json().get("error", {}).get("message", ""),
        "role": role.json().get("role") if role.status_code == 200 else None,
        "model": ", ".join(str(one.get("id")) for one in models),
        "waiting": figures.get("waiting_count"),
        "running": figures.get("running_count"),
        "url": address,
    }


def _lines(status: dict[str, Any]) -> list[str]:
    """A table, and below it why an engine takes no requests, and what an update does."""
    table = [[_TITLES.get(name, name.upper()) for name in _COLUMNS]]
    table += [["-" if row.get(name) is None else str(row[name]) for name in _COLUMNS] for row in status["replicas"]]
    used = [at for at in range(len(_COLUMNS)) if any(row[at] != "-" for row in table[1:])]
    widths = {at: max(len(row[at]) for row in table) for at in used}
    lines = ["  ".join(row[at].ljust(widths[at]) for at in used).rstrip() for row in table]
    lines += [f"replica {row['replica']}: {row['why']}" for row in status["replicas"] if row.get("why")]
    group = status.get("group")
    if group is not None:
        bounds = "" if group["least"] == group["most"] else f", from {group['least']} to {group['most']} by the load"
        lines.append(f"{group['wanted']} wanted{bounds}")
    update = None if group is None else group["update"]
    if update is not None:
        error = f": {update['error']}" if update["error"] else ""
        lines.append(f"update: {update['state']}, {update['done']} of {update['of']} replaced{error}")
    return lines
