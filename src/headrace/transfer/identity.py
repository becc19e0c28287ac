"""What two processes must agree on before blocks of the KV cache may pass between them."""

from __future__ import annotations

import msgspec

from headrace.errors import TransferError
from headrace.transfer.block_form import BlockForm, joins

__all__ = ["PROTOCOL", "Identity", "TransferRefused", "check_identity", "interchangeable"]

PROTOCOL = 2
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
    """Bytes of a block's payload, of all ranks."""
    tensor_parallel_size: int = 1
    rank: int = 0
    epoch: int = 0
    """Number of this start of the process, 32 bits: a restarted process has another."""
    protocol: int = PROTOCOL
    content_id: bytes = b""
    """As `layout_id`, for engines whose blocks have the same numbers in another order; empty: that is not known."""
    form: BlockForm | None = None
    """The order of a block's bytes; None: it is not known, and blocks are not converted."""
    pipeline_parallel_size: int = 1
    drafter: str = ""
    """The method of a drafter that keeps a part of its own in the blocks; empty: there is none."""


_ALWAYS = ("protocol", "model", "dtype", "drafter")
_OF_THE_LAYOUT = (
    "block_size", "tensor_parallel_size", "pipeline_parallel_size", "rank", "layout_id", "block_bytes",
)  # fmt: skip


def check_identity(ours: Identity, theirs: Identity, peer: str, epoch: int | None = None) -> None:
    """Raises TransferRefused with both sides' values if blocks may not pass. `epoch`: the one that `peer` is expected
    to have; None: any."""
    same = interchangeable(ours, theirs)
    for name in _ALWAYS if same or _convertible(ours, theirs) else _first_compared(ours, theirs):
        here, there = _shown(getattr(ours, name)), _shown(getattr(theirs, name))
        if here != there:
            raise TransferRefused(
                f"{peer} has the {name} {there} and this engine {here}: blocks pass between engines of the same model, "
                "dtype and options; another block size or split is converted if one block size is a multiple of the "
                "other and both platforms say how their blocks are laid out"
            )
    if epoch is not None and epoch != theirs.epoch:
        raise TransferRefused(f"{peer} has the epoch {theirs.epoch}, expected {epoch}: it has been started again")


def interchangeable(ours: Identity, theirs: Identity) -> bool:
    """Whether blocks of either are blocks of the other, byte by byte and under the same names."""
    return all(getattr(ours, name) == getattr(theirs, name) for name in _OF_THE_LAYOUT)


def _convertible(ours: Identity, theirs: Identity) -> bool:
    if ours.form is None or theirs.form is None or not ours.content_id or ours.rank != theirs.rank:
        return False
    alike = (ours.content_id, ours.form.rows) == (theirs.content_id, theirs.form.rows)
    return alike and joins(ours.block_size, theirs.block_size)


def _first_compared(ours: Identity, theirs: Identity) -> tuple[str, ...]:
    """What differs says most if it stands first: a different model is no matter of block sizes."""
    known = ("content_id",) if ours.content_id and theirs.content_id else ()
    return (*_ALWAYS, *known, *_OF_THE_LAYOUT)


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value) or "none"
