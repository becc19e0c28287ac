"""Reference of `attention`."""

from __future__ import annotations

import torch

from headrace.kernels.attention.reference_tiles import QueryTiles
from headrace.kernels.kv import TorchKV
from headrace.kernels.logits.reference import soft_capped
from headrace.kernels.ops import Batch
from headrace.kernels.paged import SPAN
from headrace.kernels.row_arithmetic import elementwise, tree_sum

__all__ = ["KEYS", "attention"]

Tensor = torch.Tensor
KEYS = SPAN
"""Keys per step of the softmax: positions 64 j to 64 j + 63, independently of the cache's block size."""


def attention(
    q: Tensor,
    batch: Batch,
    kv: TorchKV,
    layer: int,
    scale: float,
    window: int | None,
    soft_cap: float | None,
    sinks: Tensor | None,
    alibi: Tensor | None,
) -> Tensor:
    """[T, Hq d] in q's dtype; see `ops.Ops.attention`.

    The query at position p is row p mod 8 of its sequence's tile p div 8. It is multiplied with ascending groups of 64
    keys in an online softmax (arXiv:2205.14135); groups without a visible key are skipped. So a query's arithmetic is
    the same in every batch and chunk.
    """
    tokens, shape = int(batch.sizes[0]), kv.layout.layers[layer]
    heads = q.shape[1] // shape.head_dim
    tiles = QueryTiles(q[:tokens].float().view(tokens, heads, shape.head_dim), batch, shape.num_kv_heads)
    start = tiles.position.new_zeros(tokens) if window is None else (tiles.position - window + 1).clamp(min=0)
    peak = q.new_full((tokens, heads), -torch.inf, dtype=torch.float32) if sinks is None else sinks.expand(tokens, -1)
    peak, norm = peak.float().clone(), torch.full_like(peak, 0.0 if sinks is None else 1.0, dtype=torch.float32)
    out = q.new_zeros((tokens, heads, shape.head_dim), dtype=torch.float32)
    first, last = start // KEYS, tiles.position // KEYS
    for group in range(int(first.min()) if tokens else 0, int(last.max()) + 1 if tokens else 0):
        rows = ((first <= group) & (group <= last)).nonzero()[:, 0]
        if not len(rows):
            continue
        keys = torch.arange(group * KEYS, group * KEYS + KEYS, device=q.device)
        score = soft_capped(tiles.scores(rows, kv, layer, keys) * scale, soft_cap)
        if alibi is not None:
            score = score + alibi.view(-1, 1) * (keys - tiles.position[rows, None]).unsqueeze(1)
        seen = (keys <= tiles.position[rows, None]) & (keys >= start[rows, None])
        score = score.masked_fill(~seen.unsqueeze(1), -torch.inf)
        top = torch.maximum(peak[rows], score.amax(-1))
        fade = elementwise(torch.exp, peak[rows] - top)
        part = elementwise(torch.exp, score - top.unsqueeze(-1))
        norm[rows] = norm[rows] * fade + tree_sum(part)
        out[rows] = out[rows] * fade.unsqueeze(-1) + tiles.mix(part)
        peak[rows] = top
    result = torch.zeros_like(q)
    result[:tokens] = (out / norm.unsqueeze(-1)).flatten(1).to(q.dtype)
    return result
