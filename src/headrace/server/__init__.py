"""OpenAI's API over HTTP, in front of an engine client."""

from __future__ import annotations

from headrace.server.app import create_app
from headrace.server.lifecycle import run

__all__ = ["create_app", "run"]
