"""The engine as its users see it: requests in, outputs out, with the engine in this process or in one of its own."""

from __future__ import annotations

__all__: list[str] = []
