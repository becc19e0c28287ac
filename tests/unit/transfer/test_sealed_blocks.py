"""Headers of sealed blocks."""

from __future__ import annotations

import dataclasses

import pytest

from headrace.errors import TransferError
from headrace.transfer.sealed import HEADER_BYTES, Seal, check_payload, seal

LAYOUT, NAME = bytes(range(16)), bytes(range(16, 32))
PAYLOAD = bytes(range(256)) * 3


def test_a_header_is_read_as_it_was_written():
    header = seal(LAYOUT, NAME, 3, 16, PAYLOAD, 0xFFFFFFFF)
    packed = header.pack()
    assert len(packed) == HEADER_BYTES == 64
    assert Seal.unpack(packed + PAYLOAD) == header
    header.expect(LAYOUT, NAME, len(PAYLOAD))
    check_payload(header, memoryview(PAYLOAD))


@pytest.mark.parametrize("place", range(0, len(PAYLOAD), 37))
def test_a_changed_bit_of_the_payload_is_found(place: int):
    changed = bytearray(PAYLOAD)
    changed[place] ^= 4
    with pytest.raises(TransferError, match="checksum of the block's payload"):
        check_payload(seal(LAYOUT, NAME, 0, 16, PAYLOAD, 1), changed)


def test_a_short_payload_is_found():
    with pytest.raises(TransferError, match="768 bytes of payload, got 767"):
        check_payload(seal(LAYOUT, NAME, 0, 16, PAYLOAD, 1), PAYLOAD[:-1])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("layout_id", NAME, "has the layout 1011"),
        ("chain_hash", LAYOUT, "has the chain hash 0001"),
        ("payload_bytes", 7, "has the number of bytes 7, expected 768"),
    ],
)
def test_another_block_than_the_expected_one_is_refused(field: str, value: object, message: str):
    header = dataclasses.replace(seal(LAYOUT, NAME, 0, 16, PAYLOAD, 1), **{field: value})
    with pytest.raises(TransferError, match=message):
        header.expect(LAYOUT, NAME, len(PAYLOAD))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"", "64 bytes of header, got 0"),
        (b"GGUF" + bytes(60), "starts with b'HRKB', got b'GGUF'"),
        (b"HRKB\x02\x00" + bytes(58), "version 2, flags 0: this reads version 1, 0"),
    ],
)
def test_what_is_no_header_is_refused(header: bytes, message: str):
    with pytest.raises(TransferError, match=message):
        Seal.unpack(header)


def test_ids_have_sixteen_bytes():
    with pytest.raises(ValueError, match="layout_id has 16 bytes, got 2"):
        seal(b"xy", NAME, 0, 16, PAYLOAD, 1)
