"""Triton form of `resolve_tokens`."""

from __future__ import annotations

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.ops import Batch
from headrace.kernels.tritonlib.device import jit_varying
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["resolve_kernel", "resolve_tokens"]

_BLOCK = 128


@jit_varying("padded")
def resolve_kernel(
    sizes: tensor, ids: tensor, positions: tensor, token_seq: tensor, slots: tensor, history: tensor, out: tensor,
    padded: int, width: int, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """history [slots, width]. No two tokens share an element, so the order of programs does not matter."""
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = token < tl.load(sizes)
    slot = tl.load(slots + tl.load(token_seq + token, inside, 0), inside, 0)
    place = history + slot.to(tl.int64) * width + tl.load(positions + token, inside, 0)
    given = tl.load(ids + token, inside, 0)
    found = tl.where(given < 0, tl.load(place, inside, 0), given)
    tl.store(place, found, inside)
    tl.store(out + token, found, token < padded)


def resolve_tokens(batch: Batch, history: torch.Tensor, *, config: LaunchConfig) -> torch.Tensor:
    """See `ops.Ops.resolve_tokens`; `batch.sizes` must be in memory that the kernels can read."""
    padded = len(batch.token_ids)
    out = torch.empty_like(batch.token_ids)
    args = {
        "sizes": batch.sizes,
        "ids": batch.token_ids,
        "positions": batch.positions,
        "token_seq": batch.token_seq,
        "slots": batch.slots,
        "history": history,
        "out": out,
        "padded": padded,
        "width": history.shape[1],
        "BLOCK": _BLOCK,
    }
    config.launch(resolve_kernel, (-(-padded // _BLOCK),), args, 1, 1)
    return out
