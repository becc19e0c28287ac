"""The shelf: leases, replacement, readers, and waiting for a block."""

from __future__ import annotations

import threading

import pytest

from headrace.transfer.connectors.shelf import Shelf
from headrace.transfer.sealed import HEADER_BYTES, Seal, check_payload

_LAYOUT = b"layout-of-blocks"
_SLOT = HEADER_BYTES + 100


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _name(at: int) -> bytes:
    return bytes([at]) * 16


def _payload(at: int) -> memoryview:
    return memoryview(bytes([at]) * 100)


def _shelf(slots: int, clock: _Clock) -> Shelf:
    return Shelf(memoryview(bytearray(_SLOT * slots + 5)), _SLOT, _LAYOUT, 9, lease=10.0, clock=clock)


def _has(shelf: Shelf, at: int) -> bool:
    block = shelf.take(_name(at))
    if block is not None:
        shelf.give_back(block)
    return block is not None


def test_a_block_is_sealed() -> None:
    shelf = _shelf(1, _Clock())
    assert shelf.put(_name(1), 3, 16, _payload(1))
    block = shelf.take(_name(1))
    assert block is not None
    header, payload = Seal.unpack(shelf.sealed(block)), shelf.sealed(block)[HEADER_BYTES:]
    assert (header.layout_id, header.chain_hash, header.index, header.tokens, header.epoch) == (
        _LAYOUT,
        _name(1),
        3,
        16,
        9,
    )
    check_payload(header, payload)
    assert payload == _payload(1)


def test_a_leased_block_is_not_replaced() -> None:
    clock = _Clock()
    shelf = _shelf(2, clock)
    assert shelf.put(_name(1), 0, 16, _payload(1))
    clock.now = 5.0
    assert shelf.put(_name(2), 1, 16, _payload(2))
    assert not shelf.put(_name(3), 2, 16, _payload(3))
    assert shelf.stats().refused == 1
    clock.now = 10.0
    assert shelf.put(_name(3), 2, 16, _payload(3))
    assert [_has(shelf, at) for at in (1, 2, 3)] == [False, True, True]


def test_a_new_lease_and_a_use_keep_a_block() -> None:
    clock = _Clock()
    shelf = _shelf(3, clock)
    for at in (1, 2, 3):
        shelf.put(_name(at), at, 16, _payload(at))
    clock.now = 9.0
    assert shelf.hold([_name(1), _name(9)]) == 1
    clock.now = 12.0
    assert _has(shelf, 2)
    assert shelf.put(_name(4), 4, 16, _payload(4))
    assert [_has(shelf, at) for at in (1, 2, 3, 4)] == [True, True, False, True]


def test_a_block_that_is_read_is_not_replaced() -> None:
    clock = _Clock()
    shelf = _shelf(1, clock)
    shelf.put(_name(1), 0, 16, _payload(1))
    block = shelf.take(_name(1))
    assert block is not None
    clock.now = 100.0
    assert not shelf.put(_name(2), 0, 16, _payload(2))
    shelf.forget([_name(1), _name(7)])
    assert shelf.take(_name(1)) is None
    assert not shelf.put(_name(2), 0, 16, _payload(2))
    assert shelf.sealed(block)[HEADER_BYTES:] == _payload(1)
    shelf.give_back(block)
    assert shelf.put(_name(2), 0, 16, _payload(2))
    shelf.forget([_name(2)])
    assert shelf.put(_name(3), 0, 16, _payload(3))
    assert shelf.stats().blocks == 1


def test_the_same_block_twice_takes_one_slot() -> None:
    shelf = _shelf(2, _Clock())
    for _ in range(3):
        assert shelf.put(_name(1), 0, 16, _payload(1))
    assert shelf.stats() == (stats := shelf.stats())
    assert (stats.blocks, stats.leased, stats.read, stats.refused) == (1, 1, 0, 0)
    assert shelf.put(_name(2), 0, 16, _payload(2))


def test_a_payload_of_another_size() -> None:
    with pytest.raises(ValueError, match="100 bytes of payload, got 99"):
        _shelf(1, _Clock()).put(_name(1), 0, 16, _payload(1)[:99])


@pytest.mark.parametrize("closes", [False, True])
def test_a_reader_waits(closes: bool) -> None:
    shelf = Shelf(memoryview(bytearray(_SLOT)), _SLOT, _LAYOUT, 9, lease=10.0)
    found: list[object] = []
    waits = threading.Thread(target=lambda: found.append(shelf.take(_name(1), wait=600.0)))
    waits.start()
    if closes:
        shelf.close()
    else:
        shelf.put(_name(1), 0, 16, _payload(1))
    waits.join(300)
    assert not waits.is_alive()
    assert (found[0] is None) == closes


def test_nobody_waits_for_a_block_that_found_no_slot() -> None:
    clock = _Clock()
    shelf = _shelf(1, clock)
    shelf.put(_name(1), 0, 16, _payload(1))
    assert not shelf.put(_name(2), 0, 16, _payload(2))
    shelf.refuse(_name(3))
    for at in (2, 3):
        assert shelf.take(_name(at), wait=1e9) is None
    clock.now = 11.0
    assert shelf.put(_name(2), 0, 16, _payload(2))
    assert _has(shelf, 2)


def test_a_shelf_without_room() -> None:
    assert not Shelf(memoryview(b""), _SLOT, _LAYOUT, 9, lease=10.0).put(_name(1), 0, 16, _payload(1))
