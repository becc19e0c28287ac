"""The base of connectors whose ends talk over a stream socket: connections, and the order of messages on them."""

from __future__ import annotations

import socket
import threading
from abc import abstractmethod

from headrace.errors import TransferError
from headrace.transfer.connectors.connector import ConnectorSettings
from headrace.transfer.connectors.frames import Ask, Done, FramedSocket, Missing
from headrace.transfer.connectors.handshake import introduce
from headrace.transfer.connectors.tickets import Fetch, FetchingConnector
from headrace.transfer.identity import Identity

__all__ = ["PeerLink", "StreamConnector"]

IDLE_LINKS = 4
"""Connections to one address that are kept for the next tickets."""


class PeerLink(FramedSocket):
    """A connection that both ends have agreed on."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        super().__init__(sock, peer)
        self.identity: Identity | None = None
        """The server's."""
        self.memory = b""
        """The server's description of its shelf."""
        self.reader: object = None
        """A subclass's access to that memory."""


class StreamConnector(FetchingConnector):
    """A ticket has a connection to itself; one that has answered a ticket in full is kept for another."""

    def __init__(self, settings: ConnectorSettings, shelf: memoryview, staging: memoryview | None) -> None:
        super().__init__(settings, shelf, staging)
        self._idle: dict[str, list[PeerLink]] = {}
        self._idle_lock = threading.Lock()

    def close(self) -> None:
        super().close()
        with self._idle_lock:
            for links in self._idle.values():
                for link in links:
                    self._drop(link)
            self._idle.clear()

    @abstractmethod
    def _dial(self, address: str, timeout: float) -> socket.socket:
        """Connect to an address. Raises OSError and TransferError."""

    def _agreed(self, link: PeerLink, one: Fetch) -> None:
        """Called for a new connection, after the handshake."""

    def _drop(self, link: PeerLink) -> None:
        """Called for a connection that is not used any more."""
        link.close()

    @abstractmethod
    def _receive(self, link: PeerLink, one: Fetch) -> bool:
        """Receive what comes next of a ticket's blocks. False: it was Missing or Done."""

    def _pull(self, one: Fetch) -> None:
        link = self._reused(one) or self._connected(one)
        good = False
        try:
            self._interruptible(one, link.shut)
            assert link.identity is not None
            self._agree(one, link.identity)
            link.send(Ask(tuple(one.names), one.order.patience, one.left()), one.left)
            while self._receive(link, one):
                pass
            good = True
        finally:
            self._interruptible(one, None)
            if good and not one.cancelled:
                self._keep(one.order.address, link)
            else:
                self._drop(link)
        if one.received < len(one.names):
            raise TransferError(f"it does not have block {one.received} of those that were asked for")

    def _ended(self, frame: object, one: Fetch, link: PeerLink) -> bool:
        """True if the frame ends the answer. Raises TransferError if it does not belong here."""
        if isinstance(frame, Missing) or (isinstance(frame, Done) and one.received == len(one.names)):
            return True
        raise TransferError(f"{link.peer} sent {type(frame).__name__} where a block is due")

    def _connected(self, one: Fetch) -> PeerLink:
        order = one.order
        try:
            sock = self._dial(order.address, one.left())
        except OSError as error:
            one.left()  # It may be the deadline that has passed.
            raise TransferError(f"it cannot be reached: {error}") from error
        link = PeerLink(sock, "the other end")
        try:
            self._interruptible(one, link.shut)
            settings = self.settings
            link.identity, link.memory = introduce(link, settings.identity, settings.secret, order.epoch, one.left)
            self._agreed(link, one)
        except BaseException:
            link.close()
            raise
        return link

    def _reused(self, one: Fetch) -> PeerLink | None:
        """A connection that is open and was agreed with the process that the order means."""
        order = one.order
        while True:
            with self._idle_lock:
                links = self._idle.get(order.address)
                link = links.pop() if links else None
            if link is None:
                return None
            if _alive(link.socket) and (
                order.epoch is None or link.identity is None or order.epoch == link.identity.epoch
            ):
                return link
            self._drop(link)

    def _keep(self, address: str, link: PeerLink) -> None:
        with self._idle_lock:
            links = self._idle.setdefault(address, [])
            if not self._closed and len(links) < IDLE_LINKS:
                links.append(link)
                return
        self._drop(link)


def _alive(sock: socket.socket) -> bool:
    """Nothing has arrived on a connection where nothing is due, not even its end."""
    sock.setblocking(False)
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
