"""The connector within one process: the other end's shelf is copied from directly."""

from __future__ import annotations

import itertools
import threading

from headrace.errors import ConfigError, TransferError
from headrace.transfer.connectors.connector import ConnectorSettings
from headrace.transfer.connectors.shelf import ShelvedBlock
from headrace.transfer.connectors.tickets import Fetch, FetchingConnector
from headrace.transfer.identity import TransferRefused, check_identity

__all__ = ["MemoryConnector"]

_PREFIX = "memory:"
_WAIT = 0.05
"""Seconds after which a waiting thread looks whether its ticket is still wanted."""
_ends: dict[str, MemoryConnector] = {}
_lock = threading.Lock()
_numbers = itertools.count(1)


class MemoryConnector(FetchingConnector):
    """Ends of one process find each other by name: `listen` is the name, `memory:NAME` the address."""

    name = "memory"

    def __init__(self, settings: ConnectorSettings) -> None:
        size = settings.slot_bytes
        super().__init__(settings, memoryview(bytearray(size * settings.shelf_blocks)), None)
        with _lock:
            self.address = _PREFIX + (settings.listen or f"{next(_numbers)}")
            if self.address in _ends:
                raise ConfigError(f"{self.address} is used by another connector of this process: give another name")
            _ends[self.address] = self

    def close(self) -> None:
        super().close()
        with _lock:
            if _ends.get(self.address) is self:
                del _ends[self.address]

    def _pull(self, one: Fetch) -> None:
        order = one.order
        with _lock:
            other = _ends.get(order.address)
        if other is None:
            raise TransferError("no connector of this process has this address")
        if other.settings.secret != self.settings.secret:
            raise TransferRefused("it has another secret")
        check_identity(self.settings.identity, other.settings.identity, order.address, order.epoch)
        self._agree(one, other.settings.identity)
        for at, chain_hash in enumerate(one.names):
            block = self._wait_for(one, other, chain_hash)
            try:
                self._slot(one, at)[:] = other.shelf.sealed(block)
            finally:
                other.shelf.give_back(block)
            self._arrive(one)

    def _wait_for(self, one: Fetch, other: MemoryConnector, chain_hash: bytes) -> ShelvedBlock:
        patience = one.order.patience
        while True:
            step = min(_WAIT, patience, one.left())
            block = other.shelf.take(chain_hash, step)
            if other._closed:
                raise TransferError("the other end was closed")
            if block is not None:
                return block
            patience -= step
            if patience <= 0:
                raise TransferError(f"it does not have block {one.received} of those that were asked for")
