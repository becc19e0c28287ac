"""OpenAI's API over HTTP, in front of an engine client."""

from __future__ import annotations

from headrace.server.app import create_app
from headrace.server.lifecycle import run
from headrace.server.several import run_several

__all__ = ["create_app", "run", "run_several"]
