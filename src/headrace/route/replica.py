"""One engine as the router knows it: its address, its health, its load, and what it says about itself."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from headrace.route.load_book import LoadBook
from headrace.route.upstream import Origin
from headrace.transfer.block_form import joins

__all__ = ["Facts", "Replica"]

_log = logging.getLogger(__name__)

_FAILURES = 2
"""Checks in a row that fail before an engine is ejected."""
_SUCCESSES = 2
"""Checks in a row that succeed before an ejected engine comes back."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine says about itself."""

    model: str
    path: str = ""
    layout: bytes = b""
    block_size: int = 16
    max_model_len: int = 1 << 20
    max_num_seqs: int = 64
    content: bytes = b""
    files: str = ""
    """Both: see `server.cache_forms.Contents`."""

    def fits(self, other: Facts) -> bool:
        """Whether engines take each other's blocks, as they are or converted."""
        if (self.layout, self.block_size) == (other.layout, other.block_size):
            return True
        return self.content != b"" and self.content == other.content and joins(self.block_size, other.block_size)


class Replica:
    """Thread: the event loop's.

    States: `new` (not heard of yet), `ready`, `busy` (it says that it takes no requests now: it drains or restarts its
    engine), `ejected` (it does not answer). Only a ready one gets requests; ejecting one ends those that it has.
    """

    def __init__(self, number: int, url: str, api_key: str | None = None) -> None:
        self.number = number
        self.url = url.rstrip("/")
        self.api_key = api_key
        self.origin = Origin(self.url)
        self.facts: Facts | None = None
        self.card: object = None
        """Its entry in the list of models."""
        self.role: str | None = None
        """`prefill`, `decode` or `both`, if it exchanges blocks with others."""
        self.connector: str | None = None
        """What moves its blocks."""
        self.kv_address: str | None = None
        """Where others fetch its blocks."""
        self.rests_until = 0.0
        """Monotonic seconds; until then it computes no prompts for others, because one was late."""
        self.agrees = True
        """The first tokens that it gave were those of the engines that answered."""
        self.load = LoadBook()
        self.state = "new"
        self.why = "it has not answered yet"
        """Why it is not ready."""
        self.held_back = False
        """An operator wants no new requests there."""
        self.ejections = 0
        self.silent_since: float | None = None
        """Since when no check was answered, in monotonic seconds, if the last one was not."""
        self.readied = asyncio.Event()
        """Set once it can get requests, for the first time."""
        self._failures = self._successes = 0

    @property
    def name(self) -> str:
        return self.origin.authority.decode()

    @property
    def usable(self) -> bool:
        return self.state == "ready" and not self.held_back and self.facts is not None

    def like(self, other: Replica) -> bool:
        """It is another engine, which gives the same answers: of the same model, with the same arithmetic."""
        if self is other or self.facts is None or other.facts is None or not self.facts.layout:
            return False
        return (self.facts.model, self.facts.layout) == (other.facts.model, other.facts.layout)

    def answered(self, busy: str | None = None) -> bool:
        """A check was answered; `busy`: why the engine takes no requests. True if it has come back."""
        self._failures = 0
        self.silent_since = None
        if busy is not None:
            self._change("busy" if self.state != "ejected" else "ejected", busy)
            self._successes = 0
            return False
        self._successes += 1
        if self.state == "ready" or (self.state == "ejected" and self._successes < _SUCCESSES):
            return False
        self._change("ready", "")
        return True

    def failed(self, why: str) -> bool:
        """A check or a request got no answer. True if the engine is ejected by this."""
        self._successes = 0
        self._failures += 1
        self.silent_since = self.silent_since or time.monotonic()
        if self.state in ("ejected", "new") or self._failures < _FAILURES:
            return False
        self.ejections += 1
        self._change("ejected", why)
        self.origin.abort(f"the engine does not answer: {why}")
        return True

    def _change(self, state: str, why: str) -> None:
        if state != self.state:
            level = logging.INFO if state == "ready" else logging.WARNING
            _log.log(level, "replica %d (%s) is %s%s", self.number, self.name, state, f": {why}" if why else "")
        self.state, self.why = state, why
