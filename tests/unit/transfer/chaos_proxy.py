"""A TCP proxy that a test can let corrupt, delay, cut and swallow what passes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

Change = Callable[[int, bytes], bytes | None]
"""(bytes that have passed to the client before, the next ones) → what passes instead; None: the connection is cut."""


class ChaosProxy:
    """Between a client and a server at `port`. Only what the server sends is changed."""

    def __init__(self, port: int, change: Change) -> None:
        self._port, self._change = port, change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._port))
                except OSError:
                    client.close()
                    continue
                self._sockets += [client, server]
                threading.Thread(target=_pass, args=(client, server, lambda at, data: data), daemon=True).start()
                threading.Thread(target=_pass, args=(server, client, self._change), daemon=True).start()


def _pass(source: socket.socket, sink: socket.socket, change: Change) -> None:
    at = 0
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            changed = change(at, data)
            if changed is None:
                break
            at += len(data)
            sink.sendall(changed)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def flipped(place: int) -> Change:
    """One bit of byte `place` of what the server sends."""

    def change(at: int, data: bytes) -> bytes:
        if at <= place < at + len(data):
            changed = bytearray(data)
            changed[place - at] ^= 1
            return bytes(changed)
        return data

    return change


def cut(place: int) -> Change:
    """The connection ends before byte `place`."""
    return lambda at, data: data if at + len(data) <= place else None


def held(place: int) -> Change:
    """Nothing passes from byte `place` on, and the connection stays open."""

    def change(at: int, data: bytes) -> bytes:
        if at + len(data) > place:
            time.sleep(3600)
        return data

    return change
