"""Reference of `gated_delta_rule`: the recurrence itself, token by token."""

from __future__ import annotations

import torch

from headrace.kernels.ops import Batch
from headrace.kernels.recurrence import CHUNK, unroll
from headrace.kernels.row_arithmetic import elementwise, root, tree_sum

__all__ = ["gated_delta_rule", "unit"]

Tensor = torch.Tensor
_EPS = 1e-6


def gated_delta_rule(
    qkv: Tensor,
    decay: Tensor,
    strength: Tensor,
    batch: Batch,
    state: Tensor,
    pending: Tensor,
    num_k_heads: int,
    scale: float,
    normalise: bool,
) -> Tensor:
    """[T, Hv dv] in qkv's dtype. All sequences step together; every operation is elementwise or a `tree_sum`."""
    tokens, (_, heads, dk, dv) = int(batch.sizes[0]), state.shape
    q, rest = torch.split(qkv[:tokens].float(), [num_k_heads * dk, num_k_heads * dk + heads * dv], 1)
    run = unroll(batch, pending, torch.cat([rest, decay[:tokens].float(), strength[:tokens].float()], 1))
    keys, values, logs, betas = torch.split(run.rows, [num_k_heads * dk, heads * dv, heads, heads], 2)
    queries, keys = (x.reshape(*x.shape[:2], num_k_heads, dk) for x in (run.spread(q), keys))
    if normalise:
        queries, keys = unit(queries), unit(keys)
    queries, keys = ((x * f).repeat_interleave(heads // num_k_heads, 2) for x, f in ((queries, scale), (keys, 1.0)))
    values, fades = values.reshape(*values.shape[:2], heads, dv), elementwise(torch.exp, logs)
    now = run.state(state)
    out = torch.zeros_like(values)
    for step in range(run.rows.shape[1]):
        active, key = step < run.total, keys[:, step].unsqueeze(-2)
        faded = now * fades[:, step, :, None, None]
        known = tree_sum(faded.transpose(-1, -2) * key)
        write = (values[:, step] - known) * betas[:, step].unsqueeze(-1)
        now = torch.where(active.view(-1, 1, 1, 1), faded + key.transpose(-1, -2) * write.unsqueeze(-2), now)
        out[:, step] = tree_sum(now.transpose(-1, -2) * queries[:, step].unsqueeze(-2))
        if (step + 1) % CHUNK == 0:
            state[run.slots[active]] = now[active].to(state.dtype)
    run.keep(pending)
    result = qkv.new_zeros(len(qkv), heads * dv)
    result[:tokens] = out[run.place].flatten(1).to(qkv.dtype)
    return result


def unit(x: Tensor) -> Tensor:
    """x / sqrt(sum(x^2) + 1e-6) over the last dimension."""
    return x / root(tree_sum(x * x) + _EPS).unsqueeze(-1)
