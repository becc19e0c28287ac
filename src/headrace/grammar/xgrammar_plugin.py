"""The plugin that offers the grammar backend xgrammar; loading it imports no library."""

from __future__ import annotations

import importlib.util

import pluggy

__all__ = ["headrace_grammar_backends"]

_hookimpl = pluggy.HookimplMarker("headrace")


@_hookimpl
def headrace_grammar_backends() -> dict[str, str]:
    if importlib.util.find_spec("xgrammar") is None:
        return {}
    return {"xgrammar": "headrace.grammar.xgrammar_backend:XgrammarBackend"}
