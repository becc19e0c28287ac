"""A sealed block: the bytes of one KV block behind a header that says what they are.

The header has 64 bytes, little endian: magic `HRKB`, version, flags (none yet), layout id (16 bytes), chain hash (16
bytes), place in the chain, number of tokens, bytes of the payload, CRC-32 of the payload, and the writer's epoch. A
reader takes a block only if the seal is the one that it asked for.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from headrace.errors import TransferError

__all__ = ["HEADER_BYTES", "Buffer", "Seal", "check_payload", "seal"]

Buffer = bytes | bytearray | memoryview
_MAGIC = b"HRKB"
_VERSION = 1
_HEADER = struct.Struct("<4sHH16s16sIIQII")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, slots=True)
class Seal:
    """The header of a sealed block."""

    layout_id: bytes
    """Names the model, the layout and the dtype of the payload; 16 bytes."""
    chain_hash: bytes
    """The block's name (`transfer/chain.py`); 16 bytes."""
    index: int
    """Place of the block in its chain, from 0."""
    tokens: int
    payload_bytes: int
    crc32: int
    epoch: int
    """Number of the writer's start, 32 bits."""

    def pack(self) -> bytes:
        """The header's 64 bytes."""
        return _HEADER.pack(
            _MAGIC, _VERSION, 0, self.layout_id, self.chain_hash,
            self.index, self.tokens, self.payload_bytes, self.crc32, self.epoch,
        )  # fmt: skip

    @classmethod
    def unpack(cls, header: Buffer) -> Seal:
        """Read the first 64 bytes of `header`. Raises TransferError."""
        view = memoryview(header).cast("B")
        if len(view) < HEADER_BYTES:
            raise TransferError(f"a sealed block starts with {HEADER_BYTES} bytes of header, got {len(view)}")
        magic, version, flags, *fields = _HEADER.unpack_from(view)
        if magic != _MAGIC:
            raise TransferError(f"a sealed block starts with {_MAGIC!r}, got {bytes(magic)!r}")
        if (version, flags) != (_VERSION, 0):
            raise TransferError(f"a sealed block of version {version}, flags {flags}: this reads version {_VERSION}, 0")
        return cls(*fields)

    def expect(self, layout_id: bytes, chain_hash: bytes, payload_bytes: int) -> None:
        """Raises TransferError if this is another block, or one of another layout, than these say."""
        for name, got, wanted in (
            ("layout", self.layout_id.hex(), layout_id.hex()),
            ("chain hash", self.chain_hash.hex(), chain_hash.hex()),
            ("number of bytes", self.payload_bytes, payload_bytes),
        ):
            if got != wanted:
                raise TransferError(f"the sealed block has the {name} {got}, expected {wanted}")


def seal(layout_id: bytes, chain_hash: bytes, index: int, tokens: int, payload: Buffer, epoch: int) -> Seal:
    """The header of a block of `tokens` tokens whose bytes are `payload`. Raises ValueError for ids that do not have
    16 bytes."""
    for name, value in (("layout_id", layout_id), ("chain_hash", chain_hash)):
        if len(value) != 16:
            raise ValueError(f"{name} has 16 bytes, got {len(value)}")
    view = memoryview(payload)
    return Seal(layout_id, chain_hash, index, tokens, view.nbytes, zlib.crc32(view), epoch)


def check_payload(header: Seal, payload: Buffer) -> None:
    """Raises TransferError if `payload` is not what was sealed."""
    view = memoryview(payload)
    if view.nbytes != header.payload_bytes:
        raise TransferError(f"the sealed block says {header.payload_bytes} bytes of payload, got {view.nbytes}")
    found = zlib.crc32(view)
    if found != header.crc32:
        raise TransferError(f"the checksum of the block's payload is {found:08x}, sealed was {header.crc32:08x}")
