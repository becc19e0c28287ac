"""The base of connectors through a native library, which reads the other end's memory itself.

The library lives in a process of its own, with the shelf and the staging memory mapped: if it crashes or hangs, a
transfer fails and the process is started again, and the engine goes on. The messages between the ends, and the order
in which blocks stay in their places until they are taken, are those of the connector through shared memory.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import ClassVar

from headrace.errors import TransferError
from headrace.transfer.connectors.block_server import BlockServer
from headrace.transfer.connectors.connector import ConnectorSettings
from headrace.transfer.connectors.frames import Located, Taken
from headrace.transfer.connectors.library_process import LibraryProcess
from headrace.transfer.connectors.shm_connector import shared_memory
from headrace.transfer.connectors.stream_connector import PeerLink, StreamConnector
from headrace.transfer.connectors.tcp_connector import dial, host_and_port, listen_on
from headrace.transfer.connectors.tickets import Fetch

__all__ = ["NativeConnector"]


class NativeConnector(StreamConnector):
    """`listen` is HOST:PORT, where the ends find each other; the library takes further ports of its own."""

    name: ClassVar[str]
    library: ClassVar[str]
    """`module:attribute` of a `library_process.Library`."""

    def __init__(self, settings: ConnectorSettings) -> None:
        size = settings.slot_bytes
        shelf_file, shelf = shared_memory(size * max(settings.shelf_blocks, 1))
        staging_file, staging = shared_memory(size * settings.staging_blocks)
        self._files = (shelf_file, staging_file)
        super().__init__(settings, shelf, staging)
        listener, where = listen_on(settings)
        self._host = host_and_port(where)[0]
        self._starting = threading.Lock()
        self._process: LibraryProcess | None = None
        try:
            # A library that is not here is an error of the start, not of every transfer.
            self._running()
        except BaseException:
            listener.close()
            self._close_files()
            raise
        self.address = f"{self.name}:{where}"
        self._server = BlockServer(listener, settings, self.shelf, lambda: self._running().description)

    def close(self) -> None:
        if self._closed:
            return
        super().close()
        self._server.close()
        with self._starting:
            if self._process is not None:
                self._process.kill()
        self._close_files()

    def _dial(self, address: str, timeout: float) -> socket.socket:
        return dial(self.name, address, timeout)

    def _agreed(self, link: PeerLink, one: Fetch) -> None:
        process = self._running()
        link.reader = process, process.attach(link.memory, one.left)

    def _receive(self, link: PeerLink, one: Fetch) -> bool:
        frame = link.receive(one.left)
        if not isinstance(frame, Located):
            return not self._ended(frame, one, link)
        here = one.slots[one.received : one.received + len(frame.offsets)]
        if one.received + len(frame.offsets) > len(one.names) or len(here) < len(frame.offsets):
            raise TransferError(f"{link.peer} located more blocks than were asked for")
        assert isinstance(link.reader, tuple)
        process, peer = link.reader
        process.read(peer, list(frame.offsets), here, one.left)
        for _ in here:
            self._arrive(one)
        link.send(Taken(), one.left)
        return True

    def _running(self) -> LibraryProcess:
        """The library's process, started again if it has ended."""
        with self._starting:
            if self._closed:
                raise TransferError("the connector was closed")
            if self._process is None or not self._process.alive():
                self._process = LibraryProcess(self.library, self._host, self._slot_bytes, self._files)
            return self._process

    def _close_files(self) -> None:
        for file in self._files:
            os.close(file)
