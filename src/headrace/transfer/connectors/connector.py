"""The contract of connectors. One connector is one end: it gives blocks from its shelf, and fetches from other ends.

A fetch is a *ticket*. It has one owner (a thread of the connector), one deadline, and ends exactly once: as `sealed`,
when all of its blocks have arrived, or as `failed`, with the reason. Blocks that arrived before a failure are valid,
because each is checked against its seal: a ticket's blocks are always the first ones of what was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from headrace.transfer.connectors.shelf import Shelf
from headrace.transfer.identity import Identity
from headrace.transfer.sealed import HEADER_BYTES

__all__ = ["Arrival", "Connector", "ConnectorSettings", "MakeConnector", "Order", "Prefix"]


@dataclass(frozen=True)
class ConnectorSettings:
    """What a connector is made of."""

    identity: Identity
    secret: bytes = b""
    """Both ends must have the same."""
    listen: str = ""
    """Where to listen, in the connector's own form. Empty: where only processes of this machine reach it."""
    shelf_blocks: int = 0
    """Blocks that the shelf holds; 0: this end only fetches."""
    staging_blocks: int = 256
    """Most blocks of all tickets that were not released. A ticket that finds no room waits, within its deadline."""
    lease: float = 30.0
    """Seconds for which a block on the shelf is not replaced by another."""

    @property
    def slot_bytes(self) -> int:
        """Bytes of a sealed block."""
        return HEADER_BYTES + self.identity.block_bytes


class Prefix(NamedTuple):
    """The tokens that blocks hold, for an end whose blocks have other names."""

    tokens: Sequence[int]
    """From the first block of the chain on."""
    given: int
    """The other end has full blocks of so many of them at most."""
    adapter: str = ""
    salt: str = ""


class Order(NamedTuple):
    """The blocks to fetch."""

    address: str
    """The other end's `address`."""
    hashes: Sequence[bytes]
    """Chain hashes of consecutive blocks (`transfer/chain.py`)."""
    timeout: float
    """Seconds until the ticket has ended, whatever the other end does."""
    patience: float = 0.0
    """Seconds for which the other end may wait for a block that it does not have yet."""
    epoch: int | None = None
    """The other end's epoch; None: any."""
    prefix: Prefix | None = None
    """None: blocks that would have to be converted are refused. The other end's blocks may end earlier than ours: a
    ticket of converted blocks is sealed with all that it can give."""


class Arrival(NamedTuple):
    """The state of a ticket."""

    ticket: int
    blocks: int
    """How many of the first blocks have arrived and are valid."""
    state: Literal["moving", "sealed", "failed"]
    reason: str = ""
    """Why it failed."""


class Connector(Protocol):
    """One end. `fetch`, `poll`, `blocks` and `release` are called by one thread and never wait."""

    @property
    def name(self) -> str: ...

    @property
    def address(self) -> str:
        """Where other ends reach this one, to pass on as it is."""

    @property
    def shelf(self) -> Shelf:
        """The blocks that other ends may fetch. Any thread may call it."""

    def fetch(self, order: Order) -> int:
        """Begin to fetch; returns the ticket. Of more blocks than `staging_blocks`, the first are fetched."""

    def poll(self) -> list[Arrival]:
        """The tickets whose state has changed since the last call."""

    def blocks(self, ticket: int) -> list[memoryview]:
        """The payloads that have arrived for a ticket. They stay valid after `release`, and nobody changes them."""

    def release(self, ticket: int) -> None:
        """End a ticket that has not ended, and let others use its place. The ticket is unknown after that."""

    def close(self) -> None:
        """Stop to serve, end all tickets, give everything back. Calling it twice is harmless."""


MakeConnector = Callable[[ConnectorSettings], Connector]
"""Raises ConfigError if it cannot be made here: a library that is missing, an address that cannot be used."""
