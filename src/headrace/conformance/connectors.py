"""The suite of connectors: a subclass names one, and pytest shows whether blocks that pass are right, and what happens
if one end fails.

    from headrace.conformance.connectors import ConnectorSuite

    class TestMine(ConnectorSuite):
        connector = "mine"
"""

from __future__ import annotations

import gc
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

import pytest

from headrace.conformance.connector_peer import LocalPeer, Peer, ProcessPeer, expected, names, tokens
from headrace.conformance.conversions import CASES, Case, identity_of
from headrace.errors import ConfigError
from headrace.transfer.connectors.connector import Arrival, Connector, ConnectorSettings, Order, Prefix
from headrace.transfer.connectors.finding import open_connector
from headrace.transfer.identity import Identity

__all__ = ["ConnectorSuite"]

_BYTES = 20_000
_STAGING = 24
_SOON = 60.0
"""Seconds for what ends at once on an idle machine."""
_series = itertools.count(1)


class ConnectorSuite:
    """One end is here and fetches; the other is a process that gives blocks, unless `in_process`."""

    connector: ClassVar[str]
    """Name of the connector under test."""
    in_process: ClassVar[bool] = False
    """The ends only find each other within one process."""
    converts: ClassVar[bool] = True
    """Blocks of another size arrive as blocks of ours. False: they are refused with both sizes."""

    @pytest.fixture(scope="class")
    @classmethod
    def settings(cls) -> ConnectorSettings:
        identity = Identity("ab" * 16, b"layout-of-blocks", "bfloat16", 16, _BYTES, epoch=7)
        return ConnectorSettings(identity, b"a secret", shelf_blocks=256, staging_blocks=_STAGING)

    @pytest.fixture(scope="class")
    @classmethod
    def start(cls, settings: ConnectorSettings) -> Iterator[Callable[[ConnectorSettings], Peer]]:
        """Starts another end; all are ended with the class."""
        peers: list[Peer] = []

        def start(other: ConnectorSettings) -> Peer:
            peers.append(LocalPeer(cls.connector, other) if cls.in_process else ProcessPeer(cls.connector, other))
            return peers[-1]

        yield start
        for peer in peers:
            peer.kill()

    @pytest.fixture(scope="class")
    @classmethod
    def here(cls, settings: ConnectorSettings) -> Iterator[Connector]:
        end = open_connector(cls.connector, replace(settings, shelf_blocks=0))
        yield end
        end.close()
        end.close()

    @pytest.fixture(scope="class")
    @classmethod
    def peer(cls, start: Callable[[ConnectorSettings], Peer], settings: ConnectorSettings) -> Peer:
        return start(settings)

    def test_many_blocks_arrive_in_order(self, here: Connector, peer: Peer, settings: ConnectorSettings) -> None:
        series = next(_series)
        assert peer.put(series, 0, _STAGING) == _STAGING
        ticket = here.fetch(_order(settings, peer, series, _STAGING))
        ended = _settled(here, ticket)
        assert (ended.state, ended.blocks, ended.reason) == ("sealed", _STAGING, "")
        _check(here, ticket, settings, series, range(_STAGING))
        here.release(ticket)

    def test_a_fetch_may_begin_inside_a_chain(self, here: Connector, peer: Peer, settings: ConnectorSettings) -> None:
        series = next(_series)
        peer.put(series, 0, 8)
        order = _order(settings, peer, series, 8)
        ticket = here.fetch(order._replace(hashes=order.hashes[3:]))
        assert _settled(here, ticket)[1:3] == (5, "sealed")
        _check(here, ticket, settings, series, range(3, 8))
        here.release(ticket)

    def test_no_more_than_the_staging_memory_is_fetched(
        self, here: Connector, peer: Peer, settings: ConnectorSettings
    ) -> None:
        series = next(_series)
        peer.put(series, 0, _STAGING + 4)
        ticket = here.fetch(_order(settings, peer, series, _STAGING + 4))
        assert _settled(here, ticket)[1:3] == (_STAGING, "sealed")
        here.release(ticket)

    def test_a_missing_block_ends_the_ticket_at_once(
        self, here: Connector, peer: Peer, settings: ConnectorSettings
    ) -> None:
        series = next(_series)
        peer.put(series, 0, 5)
        ticket = here.fetch(_order(settings, peer, series, 9))
        ended = _settled(here, ticket)
        assert ended[1:3] == (5, "failed")
        assert "block 5 of those" in ended.reason
        _check(here, ticket, settings, series, range(5))
        here.release(ticket)

    def test_blocks_that_come_late_are_waited_for(
        self, here: Connector, peer: Peer, settings: ConnectorSettings
    ) -> None:
        series = next(_series)
        peer.put(series, 0, 2)
        ticket = here.fetch(_order(settings, peer, series, 6)._replace(patience=_SOON))
        _until(lambda: _moved(here, ticket) >= 2)
        peer.put(series, 2, 6)
        assert _settled(here, ticket)[1:3] == (6, "sealed")
        _check(here, ticket, settings, series, range(6))
        here.release(ticket)

    @pytest.mark.parametrize(
        ("how", "reason"), [("payload", "checksum"), ("length", "number of bytes"), ("swap", "chain hash")]
    )
    def test_a_damaged_block_is_found(
        self, here: Connector, peer: Peer, settings: ConnectorSettings, how: str, reason: str
    ) -> None:
        series = next(_series)
        peer.put(series, 0, 8)
        peer.damage(series, 4, how)
        ticket = here.fetch(_order(settings, peer, series, 8))
        ended = _settled(here, ticket)
        assert ended[1:3] == (4, "failed")
        assert reason in ended.reason
        _check(here, ticket, settings, series, range(4))
        here.release(ticket)

    @pytest.mark.parametrize(
        ("change", "both"),
        [
            ({"model": "cd" * 16}, ("ab" * 16, "cd" * 16)),
            ({"layout_id": b"another layout.."}, (b"layout-of-blocks".hex(), b"another layout..".hex())),
            ({"dtype": "float32"}, ("bfloat16", "float32")),
            ({"block_size": 32}, ("16", "32")),
            ({"tensor_parallel_size": 2}, ("1", "2")),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_another_identity_is_refused_with_both_values(
        self, peer: Peer, settings: ConnectorSettings, change: dict[str, object], both: tuple[str, str]
    ) -> None:
        others = _changed(settings.identity, change)
        end = open_connector(self.connector, replace(settings, identity=others, shelf_blocks=0))
        try:
            ended = _settled(end, end.fetch(_order(settings, peer, 0, 1)))
        finally:
            end.close()
        assert ended.state == "failed"
        assert all(value in ended.reason for value in both), ended.reason

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_blocks_of_another_size_or_split(self, settings: ConnectorSettings, case: Case) -> None:
        """They are converted: every row of every head is that of its token. Both ends are in this process."""
        there, here = (replace(settings, identity=identity_of(*engine)) for engine in (case.theirs, case.ours))
        series, other = next(_series), LocalPeer(self.connector, there)
        other.put(series, 0, case.given // case.theirs[0])
        end = open_connector(self.connector, replace(here, shelf_blocks=0))
        try:
            hashes = names(here.identity, series, case.first + case.asked)[case.first :]
            prefix = Prefix(tokens(series, case.given), case.given, salt=str(series))
            ticket = end.fetch(Order(other.address, hashes, _SOON, epoch=7, prefix=prefix))
            ended = _settled(end, ticket)
            if not self.converts and there.identity.block_bytes != here.identity.block_bytes:
                assert ended.state == "failed"
                assert "one size" in ended.reason
                return
            assert ended[1:] == (case.arrive, "sealed", "")
            _check(end, ticket, here, series, range(case.first, case.first + case.arrive))
        finally:
            end.close()
            other.kill()

    def test_another_secret_is_refused(self, peer: Peer, settings: ConnectorSettings) -> None:
        end = open_connector(self.connector, replace(settings, secret=b"a guess", shelf_blocks=0))
        try:
            ended = _settled(end, end.fetch(_order(settings, peer, 0, 1)))
        finally:
            end.close()
        assert (ended.state, ended.blocks) == ("failed", 0)
        assert "secret" in ended.reason
        assert "a secret" not in ended.reason

    def test_an_address_where_nobody_listens(
        self, here: Connector, start: Callable[[ConnectorSettings], Peer], settings: ConnectorSettings
    ) -> None:
        gone = start(settings)
        gone.kill()
        ticket = here.fetch(_order(settings, gone, 0, 1))
        assert _settled(here, ticket)[1:3] == (0, "failed")
        here.release(ticket)
        strange = here.fetch(_order(settings, gone, 0, 1)._replace(address="what:is this"))
        assert _settled(here, strange)[1:3] == (0, "failed")
        here.release(strange)

    def test_a_peer_that_ends_in_the_middle(
        self, here: Connector, start: Callable[[ConnectorSettings], Peer], settings: ConnectorSettings
    ) -> None:
        series, other = next(_series), start(settings)
        other.put(series, 0, 6)
        ticket = here.fetch(_order(settings, other, series, 12)._replace(patience=60.0, timeout=60.0))
        _until(lambda: _moved(here, ticket) >= 6)
        other.kill()
        assert _settled(here, ticket)[1:3] == (6, "failed")
        _check(here, ticket, settings, series, range(6))
        here.release(ticket)

    def test_a_peer_that_is_started_again(
        self, here: Connector, start: Callable[[ConnectorSettings], Peer], settings: ConnectorSettings
    ) -> None:
        """At the same address, with another epoch: the old one's reference is refused, its blocks are missing."""
        first, series = start(settings), next(_series)
        first.put(series, 0, 4)
        order = _order(settings, first, series, 4)
        ticket = here.fetch(order)
        assert _settled(here, ticket).state == "sealed"
        here.release(ticket)
        first.kill()
        again = _changed(settings.identity, {"epoch": 8})
        second = start(replace(settings, identity=again, listen=first.address.partition(":")[2]))
        assert second.address == first.address
        old = here.fetch(order)
        ended = _settled(here, old)
        assert ended[1:3] == (0, "failed")
        assert "epoch 8, expected 7" in ended.reason
        any_epoch = here.fetch(order._replace(epoch=None))
        assert "block 0 of those" in _settled(here, any_epoch).reason
        second.put(series, 0, 4)
        right = here.fetch(order._replace(epoch=8))
        assert _settled(here, right)[1:3] == (4, "sealed")
        _check(here, right, settings, series, range(4))
        for one in (old, any_epoch, right):
            here.release(one)

    def test_a_peer_that_stands_still(
        self, here: Connector, start: Callable[[ConnectorSettings], Peer], settings: ConnectorSettings
    ) -> None:
        """Its process is stopped: the deadline ends the ticket. Afterwards it serves as before."""
        other, series = start(settings), next(_series)
        if not isinstance(other, ProcessPeer):
            pytest.skip("both ends are in one process")
        other.put(series, 0, 6)
        warm = here.fetch(_order(settings, other, series, 1))
        assert _settled(here, warm).state == "sealed"
        here.release(warm)
        other.stop()
        began = time.monotonic()
        ticket = here.fetch(_order(settings, other, series, 6)._replace(timeout=0.5, patience=10.0))
        ended = _settled(here, ticket)
        assert ended.state == "failed"
        assert time.monotonic() - began < _SOON
        other.go_on()
        here.release(ticket)
        ticket = here.fetch(_order(settings, other, series, 6))
        assert _settled(here, ticket)[1:3] == (6, "sealed")
        _check(here, ticket, settings, series, range(6))
        here.release(ticket)

    def test_a_deadline_passes_while_the_peer_has_nothing(
        self, here: Connector, peer: Peer, settings: ConnectorSettings
    ) -> None:
        ticket = here.fetch(_order(settings, peer, next(_series), 2)._replace(timeout=0.3, patience=60.0))
        ended = _settled(here, ticket)
        assert ended[1:3] == (0, "failed")
        here.release(ticket)

    def test_a_release_in_the_middle_frees_everything(
        self, here: Connector, peer: Peer, settings: ConnectorSettings
    ) -> None:
        series = next(_series)
        peer.put(series, 0, _STAGING - 1)
        for _ in range(3):
            order = _order(settings, peer, series, _STAGING)._replace(patience=60.0, timeout=60.0)
            ticket = here.fetch(order)
            _until(lambda ticket=ticket: _moved(here, ticket) >= 1)  # type: ignore[misc]
            here.release(ticket)
        # All of the staging memory is needed for it.
        ticket = here.fetch(_order(settings, peer, series, _STAGING - 1))
        assert _settled(here, ticket)[1:3] == (_STAGING - 1, "sealed")
        here.release(ticket)
        _until(lambda: peer.reading() == 0)

    def test_two_hundred_tickets(self, here: Connector, peer: Peer, settings: ConnectorSettings) -> None:
        """Of random lengths, some at once, some released early: every block is the one that was asked for."""
        rng, series = random.Random(3), next(_series)
        peer.put(series, 0, 40)
        hashes = names(settings.identity, series, 40)
        moving: dict[int, range] = {}
        for _ in range(200):
            first = rng.randrange(40)
            place = range(first, min(40, first + rng.randrange(1, 9)))
            order = _order(settings, peer, series, 1)._replace(hashes=hashes[place.start : place.stop])
            ticket = here.fetch(order)
            if rng.random() < 0.1:
                here.release(ticket)
                continue
            moving[ticket] = place
            while len(moving) > 3:
                _take_ended(here, settings, series, moving)
        while moving:
            _take_ended(here, settings, series, moving)
        assert here.poll() == []
        _until(lambda: peer.reading() == 0)

    def test_an_address_in_use_is_an_error(self, peer: Peer, settings: ConnectorSettings) -> None:
        with pytest.raises(ConfigError, match=r"connector|served"):
            open_connector(self.connector, replace(settings, listen=peer.address.partition(":")[2]))

    def test_nothing_stays_open(self, settings: ConnectorSettings) -> None:
        def opened() -> int:
            gc.collect()
            return len(os.listdir("/dev/fd"))

        open_connector(self.connector, settings).close()
        before = opened()
        for _ in range(3):
            open_connector(self.connector, settings).close()
        _until(lambda: opened() <= before)


def _changed(identity: Identity, change: dict[str, object]) -> Identity:
    fields = {name: getattr(identity, name) for name in identity.__struct_fields__}
    return Identity(**{**fields, **change})


def _order(settings: ConnectorSettings, peer: Peer, series: int, count: int) -> Order:
    hashes = names(settings.identity, series, count)
    return Order(peer.address, hashes, timeout=_SOON, epoch=settings.identity.epoch)


def _moved(here: Connector, ticket: int) -> int:
    return len(here.blocks(ticket))


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + _SOON
    while not holds():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.002)


def _settled(here: Connector, ticket: int) -> Arrival:
    """The end of a ticket, which is told once."""
    found: list[Arrival] = []

    def ended() -> bool:
        found.extend(arrival for arrival in here.poll() if arrival.ticket == ticket)
        return bool(found) and found[-1].state != "moving"

    _until(ended)
    assert here.poll() == []
    return found[-1]


def _check(here: Connector, ticket: int, settings: ConnectorSettings, series: int, place: range) -> None:
    found = here.blocks(ticket)
    assert len(found) == len(place)
    for at, block in zip(place, found, strict=True):
        assert bytes(block) == expected(settings.identity, series, at)


def _take_ended(here: Connector, settings: ConnectorSettings, series: int, moving: dict[int, range]) -> None:
    for arrival in here.poll():
        if arrival.state != "moving" and arrival.ticket in moving:
            assert arrival.state == "sealed", arrival.reason
            _check(here, arrival.ticket, settings, series, moving.pop(arrival.ticket))
            here.release(arrival.ticket)
