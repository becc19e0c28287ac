"""Who sends a request. The middleware puts the caller into the scope; routes and answers read it there."""

from __future__ import annotations

import time
from typing import Any

from starlette.types import Scope

from headrace.keys.key_ring import ANYONE, Caller

__all__ = ["CALLER", "admit_prompt", "caller_of", "charge", "own_salt", "owner_of"]

CALLER = "headrace.caller"
"""The scope's entry. No client can set one; a call from within has one from the start."""


def caller_of(scope: Scope) -> Caller:
    found: Any = scope.get(CALLER, ANYONE)
    assert isinstance(found, Caller)
    return found


def owner_of(scope: Scope) -> str:
    """The name under which the server stores what this client asks it to keep."""
    return caller_of(scope).name


def own_salt(scope: Scope, given: str) -> str:
    """The salt of a request's cached prefixes. `given`: the request's own; empty: none."""
    salt = caller_of(scope).salt
    return f"{salt}.{given}" if salt else given


def admit_prompt(scope: Scope, tokens: int) -> None:
    """Charge the client's key for a prompt, before it is computed. Raises RateLimited."""
    limiter = caller_of(scope).limiter
    if limiter is not None:
        limiter.admit_prompt(tokens, time.monotonic())


def charge(scope: Scope, tokens: int) -> None:
    """Charge the client's key for tokens that have been computed."""
    limiter = caller_of(scope).limiter
    if limiter is not None:
        limiter.charge(tokens, time.monotonic())
