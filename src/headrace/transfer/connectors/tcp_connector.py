"""The connector over TCP: sealed blocks as frames, received straight into their place."""

from __future__ import annotations

import ipaddress
import mmap
import socket

from headrace.errors import ConfigError, TransferError
from headrace.transfer.connectors.block_server import BlockServer
from headrace.transfer.connectors.connector import ConnectorSettings
from headrace.transfer.connectors.stream_connector import PeerLink, StreamConnector
from headrace.transfer.connectors.tickets import Fetch

__all__ = ["TCPConnector", "anonymous_memory", "host_and_port", "listen_on"]

_BUFFER = 4 << 20
"""Bytes of a socket's buffers."""


class TCPConnector(StreamConnector):
    """`listen` is HOST:PORT, the loopback address and a free port by default; the address is `tcp:HOST:PORT`."""

    name = "tcp"

    def __init__(self, settings: ConnectorSettings) -> None:
        super().__init__(settings, anonymous_memory(settings.slot_bytes * settings.shelf_blocks), None)
        listener, where = listen_on(settings)
        self.address = f"{self.name}:{where}"
        self._server = BlockServer(listener, settings, self.shelf)

    def close(self) -> None:
        super().close()
        self._server.close()

    def _dial(self, address: str, timeout: float) -> socket.socket:
        return dial(self.name, address, timeout)

    def _receive(self, link: PeerLink, one: Fetch) -> bool:
        into = self._slot(one, one.received) if one.received < len(one.names) else None
        frame = link.receive(one.left, into)
        if frame is not None:
            return not self._ended(frame, one, link)
        self._arrive(one)
        return True


def anonymous_memory(size: int) -> memoryview:
    """Memory that starts at a page and takes no place before it is written."""
    return memoryview(mmap.mmap(-1, size)) if size else memoryview(bytearray())


def listen_on(settings: ConnectorSettings) -> tuple[socket.socket, str]:
    """A listening socket and its HOST:PORT. Raises ConfigError."""
    host, port = host_and_port(settings.listen or "127.0.0.1:0")
    if not settings.secret and not _is_loopback(host):
        raise ConfigError(
            f"the address {settings.listen} can be reached from other machines: set a secret that the engines "
            "share, by --kv-secret-file or HEADRACE_KV_SECRET"
        )
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"blocks cannot be served at {settings.listen}: {error}") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
    shown = f"[{host}]" if ":" in host else host
    return listener, f"{shown}:{listener.getsockname()[1]}"


def dial(name: str, address: str, timeout: float) -> socket.socket:
    """Connect to `NAME:HOST:PORT`."""
    prefix, _, where = address.partition(":")
    if prefix != name:
        raise TransferError(f"the connector {name} does not reach this address")
    try:
        sock = socket.create_connection(host_and_port(where), timeout)
    except ConfigError as error:
        raise TransferError(str(error)) from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
    return sock


def host_and_port(text: str) -> tuple[str, int]:
    """The parts of HOST:PORT or [IPV6]:PORT. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{text!r} is no address: write HOST:PORT, such as 127.0.0.1:7000")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
