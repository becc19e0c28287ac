"""Models by name: the catalogue, and fetching and caching of model files."""

from __future__ import annotations

__all__: list[str] = []
