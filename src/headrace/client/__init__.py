"""Clients of the engine: requests in, outputs out, with the engine in this process or in a separate one."""

from __future__ import annotations

__all__: list[str] = []
