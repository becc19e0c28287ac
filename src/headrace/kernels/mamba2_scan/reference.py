"""Reference of `mamba2_scan`: the recurrence itself, token by token."""

from __future__ import annotations

import torch
from torch.nn import functional

from headrace.kernels.ops import Batch
from headrace.kernels.recurrence import CHUNK, unroll
from headrace.kernels.row_arithmetic import elementwise, tree_sum

__all__ = ["mamba2_scan"]

Tensor = torch.Tensor


def mamba2_scan(
    xbc: Tensor,
    dt: Tensor,
    a: Tensor,
    d: Tensor | None,
    dt_bias: Tensor | None,
    dt_limit: tuple[float, float],
    batch: Batch,
    state: Tensor,
    pending: Tensor,
    num_groups: int,
) -> Tensor:
    """[T, H P] in xbc's dtype. All sequences step together; every operation is elementwise or a `tree_sum`."""
    tokens, (_, heads, size, n) = int(batch.sizes[0]), state.shape
    rest, c = torch.split(xbc[:tokens].float(), [heads * size + num_groups * n, num_groups * n], 1)
    run = unroll(batch, pending, torch.cat([rest, dt[:tokens].float()], 1))
    x, b, rate = torch.split(run.rows, [heads * size, num_groups * n, heads], 2)
    rate = elementwise(functional.softplus, rate if dt_bias is None else rate + dt_bias).clamp(*dt_limit)
    fade, x = elementwise(torch.exp, rate * a), x.reshape(*x.shape[:2], heads, size)
    b, c = (
        y.reshape(*y.shape[:2], num_groups, n).repeat_interleave(heads // num_groups, 2).unsqueeze(-2)
        for y in (b, run.spread(c))
    )
    now, fed = run.state(state), (x * rate.unsqueeze(-1)).unsqueeze(-1)
    out = torch.zeros_like(x)
    for step in range(run.rows.shape[1]):
        active = step < run.total
        after = now * fade[:, step, :, None, None] + fed[:, step] * b[:, step]
        now = torch.where(active.view(-1, 1, 1, 1), after, now)
        out[:, step] = tree_sum(now * c[:, step])
        if (step + 1) % CHUNK == 0:
            state[run.slots[active]] = now[active].to(state.dtype)
    if d is not None:
        out = out + x * d.view(-1, 1)
    run.keep(pending)
    result = xbc.new_zeros(len(xbc), heads * size)
    result[:tokens] = out[run.place].flatten(1).to(xbc.dtype)
    return result
