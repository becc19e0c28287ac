"""A Llama's operators in bfloat16 throughout, rounded wherever transformers rounds: what a reference in that arithmetic
computes.

One sequence, whole, without a cache. Sums are float64, so that no order of adding enters.
"""

from __future__ import annotations

from typing import Any

import torch

from headrace.kernels.linear.activation import quantize_activation
from headrace.kernels.ops import Batch
from headrace.kernels.weight import Weight

__all__ = ["Bfloat16Ops"]

Tensor = torch.Tensor


def _narrow(x: Tensor) -> Tensor:
    return x.float().bfloat16()


class Bfloat16Ops:
    """Weights and the rounding of inputs are the product's own; the arithmetic between them is transformers'."""

    def __init__(self) -> None:
        self._keys = self._values = torch.empty(0)

    def resolve_tokens(self, batch: Batch, history: Tensor) -> Tensor:
        return batch.token_ids

    def embedding(self, ids: Tensor, table: Weight, scale: float) -> Tensor:
        return _narrow(table.dequantize()[ids.long()])

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return weight.bfloat16() * wide.bfloat16()

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = residual + x
        return self.rms_norm(total, weight, eps), total

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        if weight.parts:
            return torch.cat([self.linear(x, part) for part in weight.parts], 1)
        rounded = _narrow(quantize_activation(x, weight))
        return _narrow(rounded.double() @ _narrow(weight.dequantize()).double().T)

    def rotary_cache(self, qkv: Tensor, batch: Batch, kv: Any, layer: int, cos_sin: Tensor, *rest: Any) -> Tensor:
        dim, num_q_heads = cos_sin.shape[1], rest[0]
        heads = qkv.view(len(qkv), -1, dim)
        kv_heads = (heads.shape[1] - num_q_heads) // 2
        cos, sin = (x.repeat(1, 2).bfloat16().unsqueeze(1) for x in cos_sin[batch.positions.long()].chunk(2, -1))

        def rotate(x: Tensor) -> Tensor:
            low, high = x.chunk(2, -1)
            return x * cos + torch.cat([-high, low], -1) * sin

        q, k, self._values = heads.split([num_q_heads, kv_heads, kv_heads], 1)
        self._keys = rotate(k)
        return rotate(q)

    def attention(self, q: Tensor, batch: Batch, kv: Any, layer: int, scale: float, *rest: Any, **more: Any) -> Tensor:
        """Scores and sums stay wide; the weights of values are narrow."""
        shared = q.shape[1] // self._keys.shape[1]
        keys, values = (x.repeat_interleave(shared, 1).transpose(0, 1).double() for x in (self._keys, self._values))
        scores = (q.transpose(0, 1).double() @ keys.transpose(1, 2)).float() * scale
        past = torch.ones(scores.shape[1:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~past, -torch.inf)
        shares = (scores - scores.amax(-1, keepdim=True)).exp()
        out = (_narrow(shares).double() @ values).float() / shares.sum(-1, keepdim=True)
        return out.bfloat16().transpose(0, 1).flatten(1)

    def gated_linear(self, x: Tensor, weight: Weight, kind: str) -> Tensor:
        return self.gated_activation(self.linear(x, weight), kind)

    def gated_activation(self, x: Tensor, kind: str) -> Tensor:
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    def logits(self, x: Tensor, batch: Batch, head: Weight, soft_cap: float | None) -> Tensor:
        return _narrow(x.double() @ head.dequantize().double().T).float()
