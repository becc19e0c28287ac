"""The connector through Mooncake's transfer engine (extra `mooncake`), over TCP or what `MC_*` variables choose."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from headrace.errors import ConfigError, TransferError
from headrace.transfer.connectors.native_connector import NativeConnector

__all__ = ["MooncakeConnector", "MooncakeLibrary", "joined"]

_AT_ONCE = 4
"""Reads at the same time: a call returns when its read has ended."""


class MooncakeConnector(NativeConnector):
    name = "mooncake"
    library = f"{__name__}:MooncakeLibrary"


class _Shelf(msgspec.Struct, frozen=True, array_like=True):
    """Another process's shelf."""

    name: str
    address: int


class MooncakeLibrary:
    """Calls of Mooncake's transfer engine. It reports failures by numbers below 0."""

    def open(self, host: str, shelf: memoryview, staging: memoryview, slot_bytes: int) -> bytes:
        protocol = "rdma" if os.environ.get("MC_FORCE_TCP") == "0" else "tcp"
        if protocol == "tcp":
            os.environ["MC_FORCE_TCP"] = "1"
        os.environ.setdefault("MC_LOG_LEVEL", "WARNING")
        try:
            from mooncake.engine import TransferEngine
        except ImportError as error:
            raise ConfigError(
                f"the connector mooncake needs a library: pip install 'headrace[mooncake]', and the system's "
                f"libibverbs, libnl-3 and libnl-route-3 ({error})"
            ) from error
        self._slot_bytes, self._staging, self._shelf = slot_bytes, _address(staging), _address(shelf)
        self._memory = shelf, staging
        self._engine = TransferEngine()
        if code := self._engine.initialize(host, "P2PHANDSHAKE", protocol, ""):
            raise ConfigError(f"Mooncake's transfer engine cannot start at {host}: error {code}")
        for address, memory in ((self._shelf, shelf), (self._staging, staging)):
            if code := self._engine.register_memory(address, len(memory)):
                raise ConfigError(f"Mooncake cannot register {len(memory)} bytes: error {code}")
        self._threads = ThreadPoolExecutor(_AT_ONCE)
        return msgspec.msgpack.encode(_Shelf(f"{host}:{self._engine.get_rpc_port()}", self._shelf))

    def attach(self, description: bytes) -> _Shelf:
        return msgspec.msgpack.decode(description, type=_Shelf)

    def start(self, peer: _Shelf, there: Sequence[int], here: Sequence[int]) -> Future[int]:
        runs = joined(there, here, self._slot_bytes)
        local, remote = [self._staging + run[1] for run in runs], [peer.address + run[0] for run in runs]
        sizes = [run[2] for run in runs]
        return self._threads.submit(self._engine.batch_transfer_sync_read, peer.name, local, remote, sizes)

    def done(self, read: Future[int]) -> bool:
        if not read.done():
            return False
        if code := read.result():
            raise TransferError(f"Mooncake reports that the transfer has failed: error {code}")
        return True


def joined(there: Sequence[int], here: Sequence[int], size: int) -> list[tuple[int, int, int]]:
    """(offset there, offset here, bytes) of slots of `size` bytes, with those joined that follow each other on both
    sides: each costs as much as 64 KiB."""
    runs: list[tuple[int, int, int]] = []
    for far, near in zip(there, here, strict=True):
        if runs and (far, near) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1] = (*runs[-1][:2], runs[-1][2] + size)
        else:
            runs.append((far, near, size))
    return runs


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
