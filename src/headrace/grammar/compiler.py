"""Compiles grammars on a thread of its own, and remembers them by content, failures too."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.core.matcher import Matcher
from headrace.errors import HeadraceError, InvalidRequest
from headrace.grammar.backend import CompiledGrammar, GrammarBackend
from headrace.types import Constraint

__all__ = ["GrammarCompiler"]

_KEPT = 256
"""Grammars remembered, the least recently used forgotten first."""


class GrammarCompiler:
    """Any thread may ask; everything else happens on one thread, so that neither the loop nor the server waits."""

    def __init__(self, make_backend: Callable[[], GrammarBackend]) -> None:
        """`make_backend` is called on the thread, at the first grammar: it reads the vocabulary."""
        self._make_backend = make_backend
        self._backend: GrammarBackend | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-grammar")
        self._known: OrderedDict[bytes, CompiledGrammar | InvalidRequest] = OrderedDict()

    def matchers(self, constraint: Constraint, count: int) -> Future[list[Matcher]]:
        """A matcher for each of `count` sequences. The future raises InvalidRequest for what cannot be enforced."""
        return self._thread.submit(self._matchers, constraint, count)

    def close(self) -> None:
        """Forget what waits. Twice is harmless."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _matchers(self, constraint: Constraint, count: int) -> list[Matcher]:
        compiled = self._compiled(constraint)
        return [compiled.matcher() for _ in range(count)]

    def _compiled(self, constraint: Constraint) -> CompiledGrammar:
        key = _key(constraint)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._compile(constraint)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        if isinstance(known, InvalidRequest):
            raise InvalidRequest(str(known), constraint.field, known.code)
        return known

    def _compile(self, constraint: Constraint) -> CompiledGrammar | InvalidRequest:
        if self._backend is None:
            self._backend = self._make_backend()
        try:
            return self._backend.compile(constraint)
        except InvalidRequest as error:
            return error
        except HeadraceError:
            raise
        except Exception as error:
            # A library's own fault is the request's end and nobody else's.
            return InvalidRequest(
                f"the constraint cannot be compiled: {type(error).__name__}", "response_format", "invalid_constraint"
            )


def _key(constraint: Constraint) -> bytes:
    parts = (constraint.kind, constraint.text, constraint.whitespace, str(constraint.strict))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
