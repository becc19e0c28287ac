"""`attention` for compilers of complete steps, in plain torch: all keys of a block table at once, with a mask.

Each token reads its sequence's keys, so memory grows with T times the length of a table. This form is for devices
without a paged kernel, and for tests.
"""

from __future__ import annotations

import torch

from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch

__all__ = ["attention"]

Tensor = torch.Tensor


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
    """[T, Hq d] in q's dtype."""
    if not len(q):
        return torch.zeros_like(q)
    shape = kv.layout.layers[layer]
    tables, sequence, place = (x.long() for x in (batch.block_tables, batch.token_seq, batch.positions))
    keys = _dense(kv.keys, kv.key_scales, layer, tables)
    values = _dense(kv.values, kv.value_scales, layer, tables)
    at = torch.arange(keys.shape[2], device=q.device)
    seen = at <= place.unsqueeze(1)
    if window is not None:
        seen = seen & (at > place.unsqueeze(1) - window)
    absent = ~seen.view(len(q), 1, 1, -1)
    grouped = q.float().view(len(q), shape.num_kv_heads, -1, shape.head_dim)
    score = torch.einsum("tkgd,tkld->tkgl", grouped, keys[sequence]) * scale
    if soft_cap is not None:
        score = torch.tanh(score / soft_cap) * soft_cap
    if alibi is not None:
        away = (at - place.unsqueeze(1)).float().view(len(q), 1, 1, -1)
        score = score + alibi.float().view(1, shape.num_kv_heads, -1, 1) * away
    score = score.masked_fill(absent, -torch.inf)
    peak = score.amax(-1, keepdim=True)
    sink = None if sinks is None else sinks.float().view(1, shape.num_kv_heads, -1, 1)
    peak = peak if sink is None else torch.maximum(peak, sink)
    part = torch.exp(score - peak)
    norm = part.sum(-1, keepdim=True)
    norm = norm if sink is None else norm + torch.exp(sink - peak)
    # Memory that was never written may hold NaN, and 0 times NaN is NaN.
    shown = values[sequence].masked_fill(absent.transpose(2, 3), 0.0)
    return (torch.einsum("tkgl,tkld->tkgd", part, shown) / norm).flatten(1).to(q.dtype)


def _dense(store: list[Tensor], scales: list[Tensor], layer: int, tables: Tensor) -> Tensor:
    """float32 [S, Hk, B block, d]."""
    found = store[layer][tables].float()
    if scales:
        found = found * scales[layer][tables].unsqueeze(-1)
    return found.transpose(1, 2).flatten(2, 3)
