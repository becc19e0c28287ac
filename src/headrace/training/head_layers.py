"""The parts that heads are made of, in plain torch: one sequence at a time, without a batch dimension, float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headrace.kernels.rotary_cache.reference import rotate
from headrace.models.config import DecoderConfig, Rope
from headrace.models.rope import cos_sin_table

__all__ = ["GatedMLP", "HeadShape", "Norm", "SelfAttention", "attend", "linear"]


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The sizes of a head's layers, which are those of its target's, and their rotation, by default without scaling."""

    hidden: int
    intermediate: int
    q_heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    layers: int
    """Of the target."""
    eps: float
    rope: Rope
    positions: int
    factors: Tensor | None = None
    """See `models.rope.cos_sin_table`."""

    @staticmethod
    def of(target: DecoderConfig) -> HeadShape:
        return HeadShape(
            target.hidden,
            target.intermediate or 4 * target.hidden,
            target.num_q_heads,
            target.num_kv_heads,
            target.head_dim,
            target.vocab,
            len(target.layers),
            target.norm_eps,
            Rope(target.ropes[0].theta, target.head_dim),
            target.max_position,
        )

    def angles(self, positions: Tensor) -> Tensor:
        """Cosines | sines float32 [T, 1, rotary_dim] of positions [T]."""
        table = cos_sin_table(self.rope, int(positions.max()) + 1, self.factors)
        return table[positions].unsqueeze(1)


def linear(inputs: int, outputs: int, generator: torch.Generator, spread: float = 0.02) -> nn.Linear:
    """A matrix without bias whose values are normal, of standard deviation `spread`."""
    made = nn.Linear(inputs, outputs, bias=False, device="meta").to_empty(device="cpu")
    with torch.no_grad():
        made.weight.normal_(0.0, spread, generator=generator)
    return made


class Norm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._eps) * self.weight


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, shape: HeadShape, generator: torch.Generator) -> None:
        super().__init__()
        self.gate_proj = linear(shape.hidden, shape.intermediate, generator)
        self.up_proj = linear(shape.hidden, shape.intermediate, generator)
        self.down_proj = linear(shape.intermediate, shape.hidden, generator)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class SelfAttention(nn.Module):
    """The projections of an attention whose inputs are `width` wide, and its rotation."""

    def __init__(
        self, shape: HeadShape, width: int, generator: torch.Generator, qk_norm: bool = False, spread: float = 0.02
    ) -> None:
        super().__init__()
        self._shape = shape
        self.q_proj = linear(width, shape.q_heads * shape.head_dim, generator, spread)
        self.k_proj = linear(width, shape.kv_heads * shape.head_dim, generator, spread)
        self.v_proj = linear(width, shape.kv_heads * shape.head_dim, generator, spread)
        self.o_proj = linear(shape.q_heads * shape.head_dim, shape.hidden, generator)
        self.q_norm = Norm(shape.head_dim, shape.eps) if qk_norm else None
        self.k_norm = Norm(shape.head_dim, shape.eps) if qk_norm else None

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """[T, Hq, d], rotated by positions [T]."""
        q = self.q_proj(x).unflatten(1, (-1, self._shape.head_dim))
        return rotate(q if self.q_norm is None else self.q_norm(q), self._shape.angles(positions))

    def entries(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The rotated keys and the values that the KV cache holds for inputs at positions [T], each [T, Hk, d]."""
        k, v = (part(x).unflatten(1, (-1, self._shape.head_dim)) for part in (self.k_proj, self.v_proj))
        return rotate(k if self.k_norm is None else self.k_norm(k), self._shape.angles(positions)), v


def attend(q: Tensor, shared: tuple[Tensor, Tensor], visible: Tensor, own: tuple[Tensor, Tensor] | None) -> Tensor:
    """[R, Hq d]: each row attends to the shared entries [S, Hk, d] that are visible to it (bool [R, S]) and to entries
    of its own, [R, n, Hk, d]."""
    (keys, values), count = shared, len(shared[0])
    rows, heads, size = q.shape
    q = q.view(rows, keys.shape[1], heads // keys.shape[1], size) * size**-0.5
    scores = torch.einsum("rhgd,shd->rhgs", q, keys).masked_fill(~visible[:, None, None], -torch.inf)
    if own is None:
        return torch.einsum("rhgs,shd->rhgd", scores.softmax(-1), values).reshape(rows, -1)
    scores = torch.cat([scores, torch.einsum("rhgd,rnhd->rhgn", q, own[0])], -1)
    shares = scores.softmax(-1)
    out = torch.einsum("rhgs,shd->rhgd", shares[..., :count], values)
    return (out + torch.einsum("rhgn,rnhd->rhgd", shares[..., count:], own[1])).reshape(rows, -1)
