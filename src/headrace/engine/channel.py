"""Messages between two processes over a stream socket, each with a length prefix. Neither end ever waits for the
other."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time

__all__ = ["Channel"]

_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 18
"""Bytes read at once: usually more than a socket holds."""


class Channel:
    """One end of a connection. Any thread may send; one thread receives.

    Data that the kernel does not accept at once is queued, without a limit, and sent first. When the other process
    ends, its end closes: this end then reads what was sent before, and is `closed` after that.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Takes ownership of the connected stream socket."""
        sock.setblocking(False)
        self._socket = sock
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._unread = bytearray()
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self.closed = False
        """The other end has closed, and everything that it sent has been received."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: bytes) -> bool:
        """Send a message. False: a part is left; call `flush` when the socket is writable. Dropped if the other end has
        closed."""
        data = _LENGTH.pack(len(message)) + message
        with self._lock:
            if self._unsent:
                self._unsent += data
            else:
                sent = self._write(data)
                if sent == len(data):
                    return True
                self._unsent += data[sent:]
            return self._flush()

    def flush(self) -> bool:
        """Send queued data. True: none is left."""
        if not self._unsent:
            return True
        with self._lock:
            return self._flush()

    def flush_for(self, seconds: float) -> bool:
        """Send queued data, for at most so many seconds. True: none is left."""
        end = time.monotonic() + seconds
        writable = select.poll()
        writable.register(self._socket, select.POLLOUT)
        while not (sent := self.flush()) and time.monotonic() < end:
            writable.poll(10)
        return sent

    def receive(self, wait: float = 0.0) -> list[bytes]:
        """All messages that have arrived. Waits up to so many seconds for the first."""
        if not self._wait(wait):
            return []
        while self._read() == _PIECE:
            pass
        return self._messages()

    def other_end_closed(self, wait: float) -> bool:
        """True if the other end has closed, independently of messages that are left to receive. Waits up to so many
        seconds."""
        closed = select.poll()
        closed.register(self._socket, 0)
        return bool(closed.poll(wait * 1000))

    def close(self) -> None:
        """Close the socket. Calling it twice is harmless."""
        self._socket.close()

    def _wait(self, wait: float) -> bool:
        """True if there is data to read. Sends queued data meanwhile."""
        if self.flush():
            return bool(self._readable.poll(wait * 1000))
        both = select.poll()
        both.register(self._socket, select.POLLIN | select.POLLOUT)
        both.poll(wait * 1000)
        self.flush()
        return bool(self._readable.poll(0))

    def _read(self) -> int:
        try:
            piece = self._socket.recv(_PIECE)
        except BlockingIOError:
            return 0
        except ConnectionError:
            piece = b""
        if not piece:
            self.closed = True
        self._unread += piece
        return len(piece)

    def _messages(self) -> list[bytes]:
        found: list[bytes] = []
        data, start, end = self._unread, 0, len(self._unread)
        while end - start >= _LENGTH.size:
            stop = start + _LENGTH.size + _LENGTH.unpack_from(data, start)[0]
            if stop > end:
                break
            found.append(bytes(data[start + _LENGTH.size : stop]))
            start = stop
        del data[:start]
        return found

    def _flush(self) -> bool:
        while self._unsent:
            sent = self._write(self._unsent)
            if not sent:
                return False
            del self._unsent[:sent]
        return True

    def _write(self, data: bytes | bytearray) -> int:
        """The number of bytes sent. If the other end has closed, all bytes count as sent."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)
