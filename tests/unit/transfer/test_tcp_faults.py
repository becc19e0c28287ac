"""The TCP connector on a line that damages, cuts and holds what passes, and with peers that don't keep to the rules."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from chaos_proxy import Change, ChaosProxy, cut, flipped, held

from headrace.conformance.connector_peer import expected, names, put
from headrace.errors import ConfigError
from headrace.transfer.connectors.connector import Arrival, Connector, ConnectorSettings, Order
from headrace.transfer.connectors.finding import open_connector
from headrace.transfer.identity import Identity

_IDENTITY = Identity("ab" * 16, b"layout-of-blocks", "bfloat16", 16, 5000, epoch=7)
_SETTINGS = ConnectorSettings(_IDENTITY, b"a secret", shelf_blocks=64, staging_blocks=16)
_BLOCKS = 12


@pytest.fixture
def server() -> Iterator[Connector]:
    end = open_connector("tcp", _SETTINGS)
    put(end, _IDENTITY, 1, 0, _BLOCKS)
    yield end
    end.close()


@pytest.fixture
def here() -> Iterator[Connector]:
    end = open_connector("tcp", _SETTINGS)
    yield end
    end.close()


def _port(end: Connector) -> int:
    return int(end.address.rpartition(":")[2])


def _end(here: Connector, ticket: int) -> Arrival:
    limit = time.monotonic() + 300
    while True:
        for arrival in here.poll():
            if arrival.ticket == ticket and arrival.state != "moving":
                return arrival
        assert time.monotonic() < limit
        time.sleep(0.001)


def _fetch(here: Connector, server: Connector, change: Change, timeout: float = 300.0) -> tuple[Arrival, list[bytes]]:
    proxy = ChaosProxy(_port(server), change)
    try:
        ticket = here.fetch(Order(f"tcp:127.0.0.1:{proxy.port}", names(_IDENTITY, 1, _BLOCKS), timeout))
        ended = _end(here, ticket)
        blocks = [bytes(block) for block in here.blocks(ticket)]
        here.release(ticket)
        return ended, blocks
    finally:
        proxy.close()


def _right(blocks: list[bytes]) -> bool:
    return blocks == [expected(_IDENTITY, 1, at) for at in range(len(blocks))]


def test_a_changed_bit_anywhere_never_becomes_a_block(here: Connector, server: Connector) -> None:
    rng, total = random.Random(5), _BLOCKS * 5080 + 500
    for _ in range(60):
        ended, blocks = _fetch(here, server, flipped(rng.randrange(total)))
        assert _right(blocks)
        assert ended.blocks == len(blocks)
        assert (ended.state == "sealed") == (len(blocks) == _BLOCKS), ended.reason


def test_a_line_that_is_cut_anywhere(here: Connector, server: Connector) -> None:
    rng, total = random.Random(6), _BLOCKS * 5080
    for place in [0, 20, 60, *(rng.randrange(total) for _ in range(30))]:
        ended, blocks = _fetch(here, server, cut(place))
        assert ended.state == "failed"
        assert len(blocks) < _BLOCKS
        assert _right(blocks)


@pytest.mark.parametrize("place", [0, 30, 3000, 20_000])
def test_a_line_that_stands_still(here: Connector, server: Connector, place: int) -> None:
    ended, blocks = _fetch(here, server, held(place), timeout=0.3)
    assert ended.state == "failed"
    assert "0.3 s" in ended.reason
    assert _right(blocks)


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"HRKT\x00\0\0\0\xff\xff\xff\xff\0\0\0\0", b"\0" * 64]
)
def test_a_server_of_another_kind(here: Connector, said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            client, _ = listener.accept()
            with client:
                client.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        order = Order(f"tcp:127.0.0.1:{listener.getsockname()[1]}", names(_IDENTITY, 1, 1), 300.0)
        ended = _end(here, here.fetch(order))
        thread.join(300)
    assert (ended.state, ended.blocks) == ("failed", 0)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"HRKT\x01\0\0\0\xff\xff\xff\xff\0\0\0\0", b""])
def test_a_client_of_another_kind_gets_nothing(server: Connector, here: Connector, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", _port(server))) as client:
        client.settimeout(300)
        assert client.recv(4) == b"HRKT"
        rest = b""
        with contextlib.suppress(OSError):  # The server may be the first to close.
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            while part := client.recv(4096):
                rest += part
    assert b"ab" * 16 not in rest
    assert _end(here, here.fetch(Order(server.address, names(_IDENTITY, 1, 3), 300.0))).state == "sealed"


def test_an_address_for_others_needs_a_secret() -> None:
    with pytest.raises(ConfigError, match="set a secret"):
        open_connector("tcp", ConnectorSettings(_IDENTITY, b"", listen="0.0.0.0:0"))


@pytest.mark.parametrize("listen", ["7000", "host:", ":7000", "host:70000", "host:a"])
def test_an_address_that_is_none(listen: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        open_connector("tcp", ConnectorSettings(_IDENTITY, b"a", listen=listen))


def test_unknown_connectors_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'carrier-pigeon'; choose one of memory, mooncake, nixl, shm, tcp"):
        open_connector("carrier-pigeon", _SETTINGS)
