"""Request ids, as shown to clients and in logs."""

from __future__ import annotations

import secrets

__all__ = ["new_request_id"]


def new_request_id(prefix: str) -> str:
    """A random id that cannot be guessed, so that one client cannot name another client's request."""
    return f"{prefix}-{secrets.token_hex(12)}"
