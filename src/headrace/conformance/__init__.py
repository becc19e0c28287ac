"""The conformance kit: shows a vendor in minutes whether a backend is right.

Subclass `Suite`, give it a `device` fixture and run pytest; or, for a platform that is installed as a plugin, run
`headrace conformance NAME`. Tiers run in order, and later ones are skipped after one has failed: contract, copies,
operators, kv, model, collectives, determinism, faults, loading. Capabilities that a device does not declare are skipped
with a reason; declared ones must hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.conformance.kit_report import KitReport
    from headrace.conformance.kit_runner import KitTarget, run
    from headrace.conformance.suite import Suite

__all__ = ["KitReport", "KitTarget", "Suite", "run"]

_MODULES = {"KitReport": "kit_report", "KitTarget": "kit_runner", "Suite": "suite", "run": "kit_runner"}


def __getattr__(name: str) -> Any:
    # Imported on demand: only the kit needs pytest, serving doesn't.
    if name in _MODULES:
        import importlib

        return getattr(importlib.import_module(f"headrace.conformance.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'headrace.conformance' has no attribute {name!r}")
