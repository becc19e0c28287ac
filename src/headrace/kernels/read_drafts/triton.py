"""Triton form of `read_drafts`."""

from __future__ import annotations

import torch
import triton.language as tl
from triton.language import tensor

from headrace.kernels.ngram.triton import known_length
from headrace.kernels.ops import Batch
from headrace.kernels.tritonlib.device import jit_varying, next_power
from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["read_drafts", "read_kernel"]


@jit_varying("width")
def read_kernel(
    sizes: tensor, query_start: tensor, slots: tensor, lengths: tensor, history: tensor, drafts: tensor, width: int,
    most: tl.constexpr, MOST: tl.constexpr,
) -> None:  # fmt: skip
    """One program per sequence: int32 drafts [seqs, most], the tokens behind the known ones."""
    seq = tl.program_id(0)
    own, known, text = known_length(sizes, slots, lengths, history, width, seq)
    count = tl.load(query_start + seq + 1) - tl.load(query_start + seq) - 1
    nth = tl.arange(0, MOST)
    held = nth < tl.where(own & (known >= 0), tl.minimum(count, width - 1 - known), 0)
    token = tl.load(history + text + known + nth, held, -1)
    # The first that is no token; MOST if all are.
    end = tl.min(tl.where(token < 0, nth, MOST), 0)
    tl.store(drafts + seq.to(tl.int64) * most + nth, tl.where(nth < end, token, -1), nth < most)  # -1 is NO_TOKEN


def read_drafts(
    batch: Batch, lengths: torch.Tensor, history: torch.Tensor, most: int, *, config: LaunchConfig
) -> torch.Tensor:
    """See `ops.OptionalOps.read_drafts`; `batch.sizes` must be in memory that the kernels can read."""
    drafts = torch.empty((len(lengths), most), dtype=torch.int32, device=history.device)
    args = {
        "sizes": batch.sizes,
        "query_start": batch.query_start,
        "slots": batch.slots,
        "lengths": lengths,
        "history": history,
        "drafts": drafts,
        "width": history.shape[1],
        "most": most,
        "MOST": next_power(most),
    }
    config.launch(read_kernel, (len(lengths),), args, 1, 1)
    return drafts
