"""Ids of requests, as clients and logs see them."""

from __future__ import annotations

import secrets

__all__ = ["new_request_id"]


def new_request_id(prefix: str) -> str:
    """Unguessable, so that nobody can name another's request."""
    return f"{prefix}-{secrets.token_hex(12)}"
