"""The type of a streamed answer."""

from __future__ import annotations

from collections.abc import Generator

__all__ = ["Pieces"]

Pieces = Generator[str, None, None]
"""Pieces of text, in order. Closing it early aborts the request."""
