"""Models by name: the catalogue, and how their files are fetched and kept."""

from __future__ import annotations

__all__: list[str] = []
