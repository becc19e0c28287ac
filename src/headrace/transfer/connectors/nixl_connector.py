"""The connector through NIXL (extra `nixl`): UCX chooses between RDMA, shared memory and TCP."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.errors import ConfigError, TransferError
from headrace.transfer.connectors.native_connector import NativeConnector

__all__ = ["NixlConnector", "NixlLibrary"]


class NixlConnector(NativeConnector):
    name = "nixl"
    library = f"{__name__}:NixlLibrary"


class _Shelf(msgspec.Struct, frozen=True, array_like=True):
    """Another process's shelf."""

    metadata: bytes
    address: int
    slots: int


class _Peer:
    def __init__(self, name: Any, slots: Any) -> None:
        self.name, self.slots = name, slots


class NixlLibrary:
    """Calls of NIXL's agent; it is not thread-safe by default, and has one thread here."""

    def open(self, host: str, shelf: memoryview, staging: memoryview, slot_bytes: int) -> bytes:
        try:
            from nixl._api import nixl_agent, nixl_agent_config
        except ImportError as error:
            raise ConfigError(f"the connector nixl needs a library: pip install 'headrace[nixl]' ({error})") from error
        self._slot_bytes = slot_bytes
        self._agent = nixl_agent(f"headrace-{os.urandom(8).hex()}", nixl_agent_config(backends=["UCX"]))
        # A backend that cannot be loaded is only warned about.
        if "UCX" not in self._agent.backends:
            raise ConfigError(f"NIXL has no backend UCX here, but {', '.join(self._agent.backends) or 'none'}")
        first, here = _address(shelf), _address(staging)
        areas = [(first, len(shelf), 0, "shelf"), (here, len(staging), 0, "staging")]
        self._memory = shelf, staging, self._agent.register_memory(areas, "DRAM")
        self._staging = self._slots("NIXL_INIT_AGENT", here, len(staging) // slot_bytes)
        return msgspec.msgpack.encode(_Shelf(self._agent.get_agent_metadata(), first, len(shelf) // slot_bytes))

    def attach(self, description: bytes) -> _Peer:
        shelf = msgspec.msgpack.decode(description, type=_Shelf)
        name = self._agent.add_remote_agent(shelf.metadata)
        # The first transfer would take hundreds of milliseconds more.
        self._agent.make_connection(name)
        return _Peer(name, self._slots(name, shelf.address, shelf.slots))

    def start(self, peer: _Peer, there: Sequence[int], here: Sequence[int]) -> Any:
        import numpy as np

        read = self._agent.make_prepped_xfer(
            "READ",
            self._staging,
            (np.array(here) // self._slot_bytes).astype("i4"),
            peer.slots,
            (np.array(there) // self._slot_bytes).astype("i4"),
        )
        try:
            self._check(self._agent.transfer(read))
        except Exception:
            self._release(read)
            self._forget(peer)
            raise
        return read, peer

    def done(self, read: Any) -> bool:
        handle, peer = read
        try:
            ended = self._check(self._agent.check_xfer_state(handle))
        except Exception:
            self._release(handle)
            self._forget(peer)
            raise
        if ended:
            self._release(handle)
        return ended

    def _slots(self, owner: Any, address: int, count: int) -> Any:
        import numpy as np

        size = self._slot_bytes
        rows = [(address + at * size, size, 0) for at in range(count)]
        return self._agent.prep_xfer_dlist(owner, np.array(rows, np.uint64), "DRAM")

    def _check(self, state: str) -> bool:
        if state == "ERR":
            raise TransferError("NIXL reports that the transfer has failed")
        return state == "DONE"

    def _release(self, handle: Any) -> None:
        with contextlib.suppress(Exception):
            self._agent.release_xfer_handle(handle)

    def _forget(self, peer: _Peer) -> None:
        with contextlib.suppress(Exception):
            self._agent.remove_remote_agent(peer.name)


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
