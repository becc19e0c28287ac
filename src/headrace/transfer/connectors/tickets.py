"""The part of a connector that fetches: tickets, their threads, deadlines and staging memory."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headrace.errors import HeadraceError, TransferError
from headrace.transfer.block_form import Converter
from headrace.transfer.connectors.connector import Arrival, ConnectorSettings, Order
from headrace.transfer.connectors.conversions import converted
from headrace.transfer.connectors.shelf import Shelf
from headrace.transfer.identity import Identity, TransferRefused, interchangeable
from headrace.transfer.sealed import HEADER_BYTES, Seal, check_payload

__all__ = ["Fetch", "FetchingConnector"]

_log = logging.getLogger(__name__)

AT_ONCE = 8
"""Tickets that move at the same time; others wait for their turn, within their deadlines."""
GRACE = 0.25
"""Seconds after its deadline at which a ticket fails even if its thread does not come back."""


@dataclass(slots=True, eq=False)
class Fetch:
    """A ticket, as its thread sees it."""

    ticket: int
    order: Order
    end: float
    """Monotonic seconds."""
    names: Sequence[bytes]
    """The blocks to ask for: those of the order, or the other end's from which those are made."""
    layout_id: bytes
    slot_bytes: int
    """Of the other end's sealed blocks."""
    converter: Converter | None = None
    """Makes the order's blocks; None: they are those that arrive."""
    received: int = 0
    """How many of `names` have arrived."""
    slots: list[int] = field(default_factory=list)
    """Offsets in the staging memory, one for each block."""
    buffers: list[memoryview] = field(default_factory=list)
    """Sealed blocks, or what is to become one, if there is no staging memory."""
    payloads: list[memoryview] = field(default_factory=list)
    """Of the order's blocks that are there."""
    reported: int = -1
    reason: str | None = None
    """Why it failed; empty: it is sealed; None: it moves."""
    told: bool = False
    """The caller knows that it has ended."""
    cancelled: bool = False
    interrupt: Callable[[], None] | None = None
    """Wakes the thread where it waits."""
    released: bool = False
    running: bool = True

    @property
    def arrived(self) -> int:
        return len(self.payloads)

    def left(self) -> float:
        """Seconds until the deadline. Raises TransferError after it, and after the ticket was released."""
        left = self.end - time.monotonic()
        if self.cancelled:
            raise TransferError("the ticket was released")
        if left <= 0:
            raise TransferError(f"its deadline of {self.order.timeout:g} s has passed")
        return left


class FetchingConnector(ABC):
    """The base of connectors in this package: a subclass moves the blocks of one ticket, on a thread of its own."""

    def __init__(self, settings: ConnectorSettings, shelf: memoryview, staging: memoryview | None) -> None:
        """`staging`: where blocks arrive, if the transport only reaches some memory."""
        self.settings = settings
        identity = settings.identity
        self._slot_bytes = settings.slot_bytes
        self._shelf = Shelf(shelf, settings.slot_bytes, identity.layout_id, identity.epoch, settings.lease)
        self._staging = staging
        self._free = [at * self._slot_bytes for at in range(settings.staging_blocks)]
        self._lock = threading.Condition()
        self._turns = threading.Semaphore(AT_ONCE)
        self._tickets: dict[int, Fetch] = {}
        self._last = 0
        self._closed = False

    @property
    def shelf(self) -> Shelf:
        return self._shelf

    def fetch(self, order: Order) -> int:
        cut = order._replace(hashes=tuple(order.hashes[: self.settings.staging_blocks]))
        layout, end = self.settings.identity.layout_id, time.monotonic() + order.timeout
        with self._lock:
            self._last += 1
            one = self._tickets[self._last] = Fetch(self._last, cut, end, cut.hashes, layout, self._slot_bytes)
        try:
            threading.Thread(target=self._run, args=(one,), name=f"fetch-{one.ticket}", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                one.running, one.reason = False, f"no thread can be started: {error}"
        return one.ticket

    def poll(self) -> list[Arrival]:
        now, found = time.monotonic(), []
        with self._lock:
            for one in self._tickets.values():
                if one.reason is None and now > one.end + GRACE:
                    one.reason = (
                        f"its deadline of {one.order.timeout:g} s has passed, and the transport does not answer"
                    )
                    self._cancel(one)
                if one.told or (one.reason is None and one.reported == one.arrived):
                    continue
                one.reported, one.told = one.arrived, one.reason is not None
                found.append(_state(one))
        return found

    def blocks(self, ticket: int) -> list[memoryview]:
        with self._lock:
            one = self._tickets[ticket]
            return list(one.payloads)

    def release(self, ticket: int) -> None:
        with self._lock:
            one = self._tickets.pop(ticket, None)
            if one is None:
                return
            one.released = True
            self._cancel(one)
            self._reclaim(one)

    def close(self) -> None:
        self._shelf.close()
        with self._lock:
            self._closed = True
            for one in self._tickets.values():
                self._cancel(one)
            self._lock.notify_all()

    def staging_free(self) -> int:
        """Blocks of staging memory that no ticket holds."""
        with self._lock:
            return len(self._free)

    # For subclasses

    @abstractmethod
    def _pull(self, one: Fetch) -> None:
        """Move the blocks of a ticket, in order, into `_slot(one, at)`, and report each with `_arrive`. Raises
        HeadraceError or OSError. It ends at the ticket's deadline, and soon after `interrupt` was called."""

    def _agree(self, one: Fetch, theirs: Identity) -> None:
        """Must be called when the other end is known, before it is asked for `one.names`: blocks that are others there
        are converted. Raises TransferError."""
        ours = self.settings.identity
        if interchangeable(ours, theirs):
            return
        if self._staging is not None and theirs.block_size != ours.block_size:
            raise TransferRefused(
                f"it has the block_size {theirs.block_size} and this engine {ours.block_size}, and this connector "
                "moves blocks of one size: give both the same block_size, or use the connector tcp or shm"
            )
        if self._staging is not None and theirs.block_bytes != ours.block_bytes:
            raise TransferRefused(
                f"its blocks have {theirs.block_bytes} bytes and those of this engine {ours.block_bytes}, and this "
                "connector moves blocks of one size: use the connector tcp or shm"
            )
        one.names, one.converter = converted(one.order, ours, theirs)
        one.layout_id, one.slot_bytes = theirs.layout_id, HEADER_BYTES + theirs.block_bytes

    def _slot(self, one: Fetch, at: int) -> memoryview:
        """Memory for the ticket's sealed block `at`, the next to arrive or one after it."""
        if self._staging is None:
            while len(one.buffers) <= at:
                one.buffers.append(memoryview(bytearray(one.slot_bytes)))
            return one.buffers[at]
        return self._staging[one.slots[at] : one.slots[at] + self._slot_bytes]

    def _arrive(self, one: Fetch) -> None:
        """Check the next block of a ticket, whose bytes are in place, and count it. Raises BrokenSeal and
        TransferError."""
        slot = self._slot(one, one.received)
        header, payload = Seal.unpack(slot), slot[HEADER_BYTES:]
        header.expect(one.layout_id, one.names[one.received], one.slot_bytes - HEADER_BYTES)
        check_payload(header, payload)
        if one.converter is not None:
            payloads = one.converter.take(payload)
            if one.buffers:
                one.buffers[one.received] = memoryview(b"")
        else:
            # Staging memory will be written again.
            payloads = [payload if self._staging is None else memoryview(bytes(payload))]
        with self._lock:
            one.left()
            one.received += 1
            one.payloads += payloads

    def _interruptible(self, one: Fetch, interrupt: Callable[[], None] | None) -> None:
        """Set the function that wakes the ticket's thread. Raises TransferError if the ticket has been cancelled."""
        with self._lock:
            one.interrupt = interrupt
            if interrupt is not None:
                one.left()

    # Parts

    def _run(self, one: Fetch) -> None:
        turn = False
        try:
            turn = self._turns.acquire(timeout=one.left())
            one.left()
            self._take_slots(one)
            self._pull(one)
            reason = "" if one.received == len(one.names) else "the transport ended early"
        except (HeadraceError, OSError) as error:
            reason = str(error) or type(error).__name__
        except Exception as error:
            _log.exception("a transfer from %s failed", one.order.address)
            reason = f"{type(error).__name__}: {error}"
        if turn:
            self._turns.release()
        with self._lock:
            one.interrupt, one.running = None, False
            if one.reason is None:
                one.reason = reason and f"{one.order.address}: {reason}"
            self._reclaim(one)

    def _take_slots(self, one: Fetch) -> None:
        need = len(one.order.hashes)
        with self._lock:
            while len(self._free) < need:
                self._lock.wait(one.left())
            one.left()
            one.slots = [self._free.pop() for _ in range(need)]

    def _cancel(self, one: Fetch) -> None:
        one.cancelled = True
        if one.interrupt is not None:
            one.interrupt()
        self._lock.notify_all()

    def _reclaim(self, one: Fetch) -> None:
        """Take the memory of a ticket back: the caller does not read it any more, and no transport writes to it."""
        if one.released and not one.running:
            self._free += one.slots
            one.slots, one.buffers = [], []
            self._lock.notify_all()


def _state(one: Fetch) -> Arrival:
    if one.reason is None:
        return Arrival(one.ticket, one.arrived, "moving")
    return Arrival(one.ticket, one.arrived, "failed" if one.reason else "sealed", one.reason)
