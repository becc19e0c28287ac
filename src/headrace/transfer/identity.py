"""What two processes must agree on before blocks of the KV cache may pass between them."""

from __future__ import annotations

import msgspec

from headrace.errors import TransferError

__all__ = ["PROTOCOL", "Identity", "TransferRefused", "check_identity"]

PROTOCOL = 1
"""Version of the messages between two connectors."""


class TransferRefused(TransferError):
    """The other process may not give blocks to this one: another secret, model or layout."""


class Identity(msgspec.Struct, frozen=True):
    """An engine, as its peers see it."""

    model: str
    """Digest of the model's weights and architecture, in hexadecimal digits."""
    layout_id: bytes
    """The 16 bytes that name the model, the layout and the dtype of a block's bytes (`transfer/sealed.py`)."""
    dtype: str
    """Of keys and values."""
    block_size: int
    """Tokens of a block."""
    block_bytes: int
    """Bytes of a block's payload, on one rank."""
    tensor_parallel_size: int = 1
    rank: int = 0
    epoch: int = 0
    """Number of this start of the process, 32 bits: a restarted process has another."""
    protocol: int = PROTOCOL


_MUST_AGREE = ("protocol", "model", "dtype", "block_size", "tensor_parallel_size", "rank", "layout_id", "block_bytes")


def check_identity(ours: Identity, theirs: Identity, peer: str, epoch: int | None = None) -> None:
    """Raises TransferRefused with both sides' values if blocks may not pass. `epoch`: the one that `peer` is expected
    to have; None: any."""
    for name in _MUST_AGREE:
        here, there = _shown(getattr(ours, name)), _shown(getattr(theirs, name))
        if here != there:
            raise TransferRefused(
                f"{peer} has the {name} {there} and this engine {here}: blocks pass between engines of the same model, "
                "dtype, block size and split only"
            )
    if epoch is not None and epoch != theirs.epoch:
        raise TransferRefused(f"{peer} has the epoch {theirs.epoch}, expected {epoch}: it has been started again")


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
