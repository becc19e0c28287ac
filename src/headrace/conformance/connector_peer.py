"""The other end of a connector under test, in a process of its own: `python -m headrace.conformance.connector_peer`.

It reads its settings and then commands from standard input, one JSON object a line, and answers each with a line.
"""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from headrace.transfer.chain import chain, first_hash
from headrace.transfer.connectors.connector import Connector, ConnectorSettings
from headrace.transfer.connectors.finding import open_connector
from headrace.transfer.identity import Identity
from headrace.transfer.sealed import HEADER_BYTES

__all__ = ["LocalPeer", "Peer", "ProcessPeer", "expected", "names", "tokens"]

_LONGEST = 10_000
"""More tokens than any series has."""


def tokens(series: int, count: int) -> list[int]:
    """The first tokens of a series."""
    return list(range(series * _LONGEST, series * _LONGEST + count))


def names(identity: Identity, series: int, count: int) -> list[bytes]:
    """Chain hashes of the first blocks of a series of blocks."""
    size, salt = identity.block_size, str(series)
    whole = tokens(series, count * size)
    return list(
        chain(first_hash(identity.layout_id, salt=salt), (whole[at : at + size] for at in range(0, len(whole), size)))
    )


def expected(identity: Identity, series: int, at: int) -> bytes:
    """The payload of a series' block. If the identity says how blocks are laid out, each row has the bytes of its
    token, layer, part and head, wherever that lies."""
    if identity.form is None:
        return random.Random(series * 1_000_003 + at).randbytes(identity.block_bytes)
    payload, size = bytearray(), identity.block_size
    for layers in identity.form.ranks:
        for layer, first, heads in layers:
            for part, row in enumerate(identity.form.rows[layer]):
                for head in range(first, first + heads):
                    for token in range(at * size, at * size + size):
                        payload += random.Random(f"{series} {layer} {part} {head} {token}").randbytes(row)
                payload += bytes(-len(payload) % identity.form.align)
    return bytes(payload)


def put(connector: Connector, identity: Identity, series: int, start: int, stop: int) -> int:
    """Put blocks of a series on the shelf; returns how many found room."""
    hashes, done = names(identity, series, stop), 0
    for at in range(start, stop):
        payload = memoryview(expected(identity, series, at))
        done += connector.shelf.put(hashes[at], at, identity.block_size, payload)
    return done


def damage(connector: Connector, identity: Identity, series: int, at: int, how: str) -> None:
    """Change a sealed block where it lies. `how`: `payload` (a bit), `length` (says fewer bytes), or `swap` (the block
    after it comes in its place, well sealed)."""
    hashes = names(identity, series, at + 2)
    block, other = connector.shelf.take(hashes[at]), connector.shelf.take(hashes[at + 1])
    assert block is not None
    sealed = connector.shelf.sealed(block)
    if how == "payload":
        sealed[HEADER_BYTES + identity.block_bytes // 2] ^= 4
    elif how == "length":
        sealed[48:56] = (identity.block_bytes - 1).to_bytes(8, "little")
    else:
        assert other is not None
        sealed[:] = connector.shelf.sealed(other)
    for taken in (block, other):
        if taken is not None:
            connector.shelf.give_back(taken)


class Peer(Protocol):
    """The other end."""

    address: str

    def put(self, series: int, start: int, stop: int) -> int: ...

    def damage(self, series: int, at: int, how: str) -> None: ...

    def reading(self) -> int:
        """Blocks of its shelf that transfers read now."""

    def kill(self) -> None:
        """End it without a farewell."""


class LocalPeer:
    """For a connector that only works within one process."""

    def __init__(self, name: str, settings: ConnectorSettings) -> None:
        self._connector, self._identity = open_connector(name, settings), settings.identity
        self.address = self._connector.address

    def put(self, series: int, start: int, stop: int) -> int:
        return put(self._connector, self._identity, series, start, stop)

    def damage(self, series: int, at: int, how: str) -> None:
        damage(self._connector, self._identity, series, at, how)

    def reading(self) -> int:
        return self._connector.shelf.stats().read

    def kill(self) -> None:
        self._connector.close()


class ProcessPeer:
    """A process."""

    def __init__(self, name: str, settings: ConnectorSettings) -> None:
        command = [sys.executable, "-m", __name__, name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        identity = base64.b64encode(msgspec.msgpack.encode(settings.identity)).decode()
        plain = {key: value for key, value in vars(settings).items() if key not in ("identity", "secret")}
        self.address: str = self._ask({**plain, "identity": identity, "secret": settings.secret.decode()})

    def put(self, series: int, start: int, stop: int) -> int:
        return int(self._ask(["put", series, start, stop]))

    def damage(self, series: int, at: int, how: str) -> None:
        self._ask(["damage", series, at, how])

    def reading(self) -> int:
        return int(self._ask(["reading"]))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def stop(self) -> None:
        """Returns when all of its threads stand still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _ask(self, what: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the other end has ended with code {self._process.wait()}"
        return json.loads(line)


def main(arguments: Sequence[str]) -> None:
    given = json.loads(sys.stdin.readline())
    identity = msgspec.msgpack.decode(base64.b64decode(given.pop("identity")), type=Identity)
    settings = ConnectorSettings(identity, given.pop("secret").encode())
    connector = open_connector(arguments[0], replace(settings, **given))
    print(json.dumps(connector.address), flush=True)
    for line in sys.stdin:
        verb, *values = json.loads(line)
        answer: object = None
        if verb == "put":
            answer = put(connector, identity, *values)
        elif verb == "damage":
            damage(connector, identity, *values)
        else:
            answer = connector.shelf.stats().read
        print(json.dumps(answer), flush=True)
    connector.close()


if __name__ == "__main__":
    main(sys.argv[1:])
