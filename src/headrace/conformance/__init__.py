"""The conformance kit: tells a vendor in minutes whether a backend is right.

Subclass `Suite`, give it a `device` fixture and run pytest; or, for a platform that is installed as a plugin,
`headrace conformance NAME`. Tiers run in order and a later one is skipped once an earlier one has failed: contract, copies,
operators, kv, model, collectives, determinism, faults, loading. What a device does not declare is skipped with a reason; what it
declares must hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.conformance.report import Report
    from headrace.conformance.runner import Target, run
    from headrace.conformance.suite import Suite

__all__ = ["Report", "Suite", "Target", "run"]

_HOME = {"Report": "report", "Suite": "suite", "Target": "runner", "run": "runner"}


def __getattr__(name: str) -> Any:
    # pytest is a dependency of those who run the kit, not of those who serve.
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(f"headrace.conformance.{_HOME[name]}"), name)
    raise AttributeError(f"module 'headrace.conformance' has no attribute {name!r}")
