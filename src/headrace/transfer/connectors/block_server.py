"""Serves a shelf on a listening socket, with a thread for each connection."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable

from headrace.errors import HeadraceError, TransferError
from headrace.transfer.connectors.connector import ConnectorSettings
from headrace.transfer.connectors.frames import Ask, Done, FramedSocket, Left, Located, Missing, Taken
from headrace.transfer.connectors.handshake import greet
from headrace.transfer.connectors.shelf import Shelf, ShelvedBlock

__all__ = ["BlockServer"]

_log = logging.getLogger(__name__)

HANDSHAKE = 5.0
"""Seconds that a client has to prove that it knows the secret."""
IDLE = 300.0
"""Seconds after which a connection that asks for nothing is closed."""
MOST_CONNECTIONS = 64
RUN = 64
"""Most blocks that are located at once."""
_PATIENCE = 0.1
"""Seconds after which a thread that waits for a block looks whether the server was closed."""


class BlockServer:
    """Accepts clients that know the secret and have the same model, and answers what they ask for."""

    def __init__(
        self,
        listener: socket.socket,
        settings: ConnectorSettings,
        shelf: Shelf,
        memory: Callable[[], bytes] | None = None,
        descriptor: int = -1,
    ) -> None:
        """`memory`: describes the shelf to clients that read it themselves; without it, blocks are sent.
        `descriptor`: a file that goes with each Welcome (over a Unix socket)."""
        self._listener, self._settings, self._shelf = listener, settings, shelf
        self._memory, self._descriptor = memory, descriptor
        self._links: set[FramedSocket] = set()
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, name="block-server", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for link in self._links:
                link.shut()
        with contextlib.suppress(OSError):
            # It wakes the thread that accepts, where close alone would not.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def connections(self) -> int:
        with self._lock:
            return len(self._links)

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                _log.warning("a connection could not be accepted: %s", error)
                time.sleep(_PATIENCE)
                continue
            link = FramedSocket(sock, str(address or "a process of this machine"))
            with self._lock:
                taken = not self._closed and len(self._links) < MOST_CONNECTIONS
                if taken:
                    self._links.add(link)
            if not taken:
                link.close()
                continue
            threading.Thread(target=self._serve, args=(link,), name="block-link", daemon=True).start()

    def _serve(self, link: FramedSocket) -> None:
        try:
            memory = b"" if self._memory is None else self._memory()
            greet(link, self._settings.identity, self._settings.secret, memory, _within(HANDSHAKE))
            if self._descriptor >= 0:
                socket.send_fds(link.socket, [b"m"], [os.dup(self._descriptor)])
            while not self._closed:
                ask = link.expect(Ask, _within(IDLE))
                self._answer(link, ask, _within(ask.timeout))
        except (HeadraceError, OSError) as error:
            _log.debug("%s: %s", link.peer, error)
        except Exception:
            _log.exception("the connection of %s ends", link.peer)
        finally:
            with self._lock:
                self._links.discard(link)
            link.close()

    def _answer(self, link: FramedSocket, ask: Ask, left: Left) -> None:
        at = 0
        while at < len(ask.hashes):
            first = self._take(ask.hashes[at], ask.patience, left)
            if first is None:
                link.send(Missing(), left)
                return
            run = [first]
            try:
                if self._memory is None:
                    link.send_block(self._shelf.sealed(first), left)
                else:
                    self._extend(run, ask.hashes[at + 1 : at + RUN])
                    link.send(Located(tuple(block.offset for block in run)), left)
                    link.expect(Taken, left)
            finally:
                for block in run:
                    self._shelf.give_back(block)
            at += len(run)
        link.send(Done(), left)

    def _extend(self, run: list[ShelvedBlock], hashes: tuple[bytes, ...]) -> None:
        """Add the blocks that follow, as far as they are there now."""
        for chain_hash in hashes:
            block = self._shelf.take(chain_hash)
            if block is None:
                return
            run.append(block)

    def _take(self, chain_hash: bytes, patience: float, left: Left) -> ShelvedBlock | None:
        while True:
            step = min(_PATIENCE, patience, left())
            block = self._shelf.take(chain_hash, step)
            if block is not None or self._closed:
                return block
            patience -= step
            if patience <= 0:
                return None


def _within(seconds: float) -> Left:
    end = time.monotonic() + seconds

    def left() -> float:
        remaining = end - time.monotonic()
        if remaining <= 0:
            raise TransferError(f"the deadline of {seconds:g} s has passed")
        return remaining

    return left
