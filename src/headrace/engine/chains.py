"""Requests that go on where others end: the loop adds them itself, between two steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from headrace.core.matcher import Matcher
from headrace.errors import HeadraceError
from headrace.types import Constraint, Delta, Request

__all__ = ["Chains"]

Matchers = Future[list[Matcher]] | None
Compile = Callable[[Constraint], Matchers]


@dataclass(slots=True)
class _Link:
    """A sequence that another request goes on with."""

    request: Request
    then: Request
    matchers: Matchers
    """Of `then`, which are compiled in the meantime."""
    tokens: list[int] = field(default_factory=list)

    def next(self, end: Delta) -> Request | None:
        """The request that goes on; None: the text may have ended within the last token."""
        tokens = self.tokens
        if end.stop_token is not None:
            if end.stop_token not in self.request.eos_token_ids + self.request.then_after:
                return None
            tokens = tokens[:-1]
        before, then = (*self.request.prompt, *tokens), self.then
        return replace(
            then, prompt=before + then.prompt, params=then.params.behind(len(before)), extends=self.request.id
        )


class Chains:
    """Sequences with a `then`, until they end."""

    def __init__(self, admit: Callable[[Request, Matchers], None], compiled: Compile) -> None:
        """`admit` adds a request with its grammar; it may raise a HeadraceError."""
        self._admit, self._compiled = admit, compiled
        self._links: dict[str, _Link] = {}
        self._begun: list[Request] = []

    def __len__(self) -> int:
        return len(self._links)

    def begin(self, requests: Iterable[Request]) -> None:
        """Watch the sequences of a request that was added."""
        for request in requests:
            then = request.then
            if then is not None:
                try:
                    matchers = None if then.constraint is None else self._compiled(then.constraint)
                except HeadraceError:
                    continue  # The client sends it itself, and gets the error.
                self._links[request.id] = _Link(request, then, matchers)

    def drop(self, ids: Iterable[str]) -> None:
        """Let nothing go on with these sequences."""
        for one in ids if self._links else ():
            self._links.pop(one, None)

    def follow(self, deltas: Sequence[Delta]) -> None:
        """Begin what goes on with the sequences that have ended, and note that in their deltas."""
        for delta in deltas if self._links else ():
            link = self._links.get(delta.request_id)
            if link is None:
                continue
            link.tokens += delta.token_ids
            if delta.finish_reason is None:
                continue
            del self._links[delta.request_id]
            request = link.next(delta) if delta.finish_reason in ("stop", "length") else None
            if request is None:
                continue
            if not delta.went_on:
                try:
                    self._admit(request, link.matchers)
                except HeadraceError:
                    continue
                delta.went_on = True
            self._begun.append(request)
            self.begin([request])

    def take_begun(self) -> list[Request]:
        """The requests that have begun since the last call."""
        begun, self._begun = self._begun, []
        return begun
