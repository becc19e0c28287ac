"""OpenAI's API over HTTP, in front of an engine client."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.server.app import create_app
    from headrace.server.lifecycle import run
    from headrace.server.several import run_several

__all__ = ["create_app", "run", "run_several"]

_MODULES = {"create_app": "app", "run": "lifecycle", "run_several": "several"}


def __getattr__(name: str) -> Any:
    # On first use: the router's processes read requests with modules of this package, and serve nothing.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
