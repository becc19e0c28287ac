"""The connector through shared memory, for processes of one machine: the reader maps the other end's shelf.

The shelf is a file without a name, whose descriptor goes to each client that has proven that it knows the secret. So
nothing stays behind when a process is killed. The client maps it for reading, copies the blocks that the server has
located, and says that it has taken them; until then, the server keeps them in their place.
"""

from __future__ import annotations

import mmap
import os
import socket
import stat
import tempfile
from pathlib import Path

from headrace.errors import ConfigError, TransferError
from headrace.transfer.connectors.block_server import BlockServer
from headrace.transfer.connectors.connector import ConnectorSettings
from headrace.transfer.connectors.frames import Located, Taken
from headrace.transfer.connectors.stream_connector import PeerLink, StreamConnector
from headrace.transfer.connectors.tickets import Fetch

__all__ = ["SharedMemoryConnector", "shared_memory"]

_PREFIX = "shm:"


class SharedMemoryConnector(StreamConnector):
    """`listen` is the path of a Unix socket, by default one in a folder of its own; the address is `shm:PATH`."""

    name = "shm"

    def __init__(self, settings: ConnectorSettings) -> None:
        self._file, memory = shared_memory(settings.slot_bytes * max(settings.shelf_blocks, 1))
        super().__init__(settings, memory, None)
        self._folder = "" if settings.listen else tempfile.mkdtemp(prefix="headrace-kv-")
        path = settings.listen or os.path.join(self._folder, "socket")
        self.address = _PREFIX + path
        self._path = path
        length = str(len(memory)).encode()
        self._server = BlockServer(_listener(path), settings, self.shelf, lambda: length, self._file)

    def close(self) -> None:
        if self._closed:
            return
        super().close()
        self._server.close()
        Path(self._path).unlink(missing_ok=True)
        if self._folder:
            os.rmdir(self._folder)
        os.close(self._file)

    def _dial(self, address: str, timeout: float) -> socket.socket:
        if not address.startswith(_PREFIX):
            raise TransferError("the connector shm does not reach this address")
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(timeout)
            sock.connect(address[len(_PREFIX) :])
        except BaseException:
            sock.close()
            raise
        return sock

    def _agreed(self, link: PeerLink, one: Fetch) -> None:
        link.socket.settimeout(one.left())
        _, files, _, _ = socket.recv_fds(link.socket, 1, 1)
        if not files:
            raise TransferError("the other end has sent no memory")
        try:
            link.reader = memoryview(mmap.mmap(files[0], int(link.memory), access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise TransferError(f"the other end's memory cannot be mapped: {error}") from error
        finally:
            os.close(files[0])

    def _receive(self, link: PeerLink, one: Fetch) -> bool:
        frame = link.receive(one.left)
        if not isinstance(frame, Located):
            return not self._ended(frame, one, link)
        memory, size = link.reader, one.slot_bytes
        assert isinstance(memory, memoryview)
        if one.received + len(frame.offsets) > len(one.names):
            raise TransferError(f"{link.peer} located more blocks than were asked for")
        for offset in frame.offsets:
            if not 0 <= offset <= len(memory) - size:
                raise TransferError(f"{link.peer} located a block outside of its memory")
            self._slot(one, one.received)[:] = memory[offset : offset + size]
            self._arrive(one)
        link.send(Taken(), one.left)
        return True


def shared_memory(size: int) -> tuple[int, memoryview]:
    """Memory that other processes can map, and its file descriptor. It has no name: it ends with its last user."""
    folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryFile(dir=folder) as file:
        os.truncate(file.fileno(), size)
        return os.dup(file.fileno()), memoryview(mmap.mmap(file.fileno(), size))


def _listener(path: str) -> socket.socket:
    """Listen at a path that no running process listens at. Raises ConfigError."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if os.path.exists(path):
            _remove_stale(path)
        listener.bind(path)
        os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(f"blocks cannot be served at {path}: {error}") from error
    return listener


def _remove_stale(path: str) -> None:
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise FileExistsError(f"{path} is a file, and no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)
            return
    raise FileExistsError("another process listens there")
