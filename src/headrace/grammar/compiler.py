"""Compiles grammars off the step loop, within a time limit, and caches them by content, failures too."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from headrace.core.matcher import Matcher
from headrace.errors import HeadraceError, InvalidRequest, Overloaded, PluginError
from headrace.grammar.backend import CompiledGrammar, GrammarBackend
from headrace.grammar.dormant import with_reasoning
from headrace.types import Constraint

__all__ = ["GrammarCompiler"]

_CAPACITY = 256
"""Cached grammars; the least recently used is evicted first."""
_SECONDS = 2.0
"""Wall time of one compilation."""
_MOST_OVERDUE = 4
"""Compilations past their time that may still run. A thread cannot be stopped; the library's limits end it at some
time."""

_STACK = 512 << 20
"""Bytes of address space for a compilation's stack: the library recurses along chains of references and rules, and a
grammar
of the longest text that is accepted must not overflow it. Memory is used only as far as the stack grows."""
_stack_lock = threading.Lock()

_Result = CompiledGrammar | InvalidRequest


class _Compilation(threading.Thread):
    """One grammar on a daemon thread, so that neither the next grammar nor the end of the process waits for it."""

    def __init__(self, backend: GrammarBackend, constraint: Constraint) -> None:
        super().__init__(name="headrace-grammar", daemon=True)
        self._backend, self._constraint = backend, constraint
        self.result: _Result | None = None

    def run(self) -> None:
        try:
            self.result = self._backend.compile(self._constraint)
        except InvalidRequest as error:
            self.result = error
        # A library's own fault, a panic of native code included, ends this request alone.
        except BaseException as error:
            self.result = _refusal(f"cannot be compiled: {type(error).__name__}")


class GrammarCompiler:
    """Any thread may call it. A cached grammar is there at once; others are compiled one after another, so that a slow
    one delays those behind it by its time limit at most."""

    def __init__(self, make_backend: Callable[[], GrammarBackend], seconds: float = _SECONDS) -> None:
        """`make_backend` is called off the caller's thread, for the first grammar: it reads the vocabulary."""
        self._make_backend = make_backend
        self._seconds = seconds
        self._backend: GrammarBackend | None = None
        self._queue = ThreadPoolExecutor(1, thread_name_prefix="headrace-grammars")
        self._cache: OrderedDict[bytes, _Result] = OrderedDict()
        self._lock = threading.Lock()
        """Held for the cache and while matchers are made: compiled grammars are used by one thread at a time."""
        self._overdue: list[_Compilation] = []

    def matchers(self, constraint: Constraint, count: int) -> Future[list[Matcher]]:
        """A matcher for each of `count` sequences. The future raises InvalidRequest for what cannot be enforced or
        takes
        too long to compile, Overloaded while too many compilations are overdue, PluginError if the backend fails."""
        found = self._cached(_key(constraint))
        if found is None:
            return self._queue.submit(self._compile_matchers, constraint, count)
        done: Future[list[Matcher]] = Future()
        try:
            done.set_result(self._make_matchers(found, constraint, count))
        except HeadraceError as error:
            done.set_exception(error)
        return done

    def close(self) -> None:
        """Drop what waits. Twice is harmless."""
        self._queue.shutdown(wait=False, cancel_futures=True)

    def _cached(self, key: bytes) -> _Result | None:
        with self._lock:
            found = self._cache.get(key)
            if found is not None:
                self._cache.move_to_end(key)
            return found

    def _compile_matchers(self, constraint: Constraint, count: int) -> list[Matcher]:
        key = _key(constraint)
        # It may have been compiled while this request waited.
        found = self._cached(key)
        if found is None:
            found = self._compile(constraint)
            self._store(key, found)
        return self._make_matchers(found, constraint, count)

    def _make_matchers(self, found: _Result, constraint: Constraint, count: int) -> list[Matcher]:
        if isinstance(found, InvalidRequest):
            raise InvalidRequest(str(found), constraint.field, found.code)
        try:
            with self._lock:
                return [with_reasoning(found.matcher(), constraint) for _ in range(count)]
        except Exception as error:
            raise PluginError(f"the grammar backend failed: {type(error).__name__}: {error}") from error

    def _store(self, key: bytes, result: _Result) -> None:
        with self._lock:
            self._cache[key] = result
            if len(self._cache) > _CAPACITY:
                self._cache.popitem(last=False)

    def _compile(self, constraint: Constraint) -> _Result:
        backend = self._opened()
        self._overdue = [one for one in self._overdue if one.is_alive()]
        if len(self._overdue) >= _MOST_OVERDUE:
            raise Overloaded("grammars that take long are being compiled: try again later", retry_after=5)
        compilation = _Compilation(backend, constraint)
        _start(compilation)
        compilation.join(self._seconds)
        if compilation.result is None:
            self._overdue.append(compilation)
            return _refusal(f"takes more than {self._seconds:g} s to compile: make it smaller")
        return compilation.result

    def _opened(self) -> GrammarBackend:
        if self._backend is None:
            try:
                self._backend = self._make_backend()
            except HeadraceError:
                raise
            except Exception as error:
                raise PluginError(f"the grammar backend cannot be set up: {type(error).__name__}: {error}") from error
        return self._backend


def _start(compilation: _Compilation) -> None:
    # The size is the process's own setting, for threads that start from now on.
    with _stack_lock:
        before = threading.stack_size(_STACK)
        try:
            compilation.start()
        finally:
            threading.stack_size(before)


def _refusal(why: str) -> InvalidRequest:
    return InvalidRequest(f"the constraint {why}", "response_format", "invalid_constraint")


def _key(constraint: Constraint) -> bytes:
    parts = (constraint.kind, constraint.text, constraint.whitespace, str(constraint.strict))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
