"""Run a decoder without an engine: plain operators on a dictionary of keys and values, one sequence, any chunking."""

from __future__ import annotations

from typing import Any

import torch

from headrace.kernels.ops import Batch
from headrace.kernels.weight import Weight

Tensor = torch.Tensor


def quantized_input(x: Tensor, weight: Weight) -> Tensor:
    from headrace.kernels.linear.activation import quantize_activation

    return quantize_activation(x, weight)


class NaiveOps:
    """`Ops` in the fewest words; the cache is a list of (keys, values) a layer, grown by position."""

    def resolve_tokens(self, batch: Batch, history: Tensor) -> Tensor:
        return batch.token_ids

    def embedding(self, ids: Tensor, table: Weight, scale: float) -> Tensor:
        return table.dequantize()[ids.long()] * scale

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return self.rms_norm(x + residual, weight, eps), x + residual

    def linear(self, x: Tensor, weight: Weight) -> Tensor:
        parts = weight.parts or (weight,)
        out = torch.cat([quantized_input(x, part) @ part.dequantize().T for part in parts], dim=1)
        return out if weight.bias is None else out + weight.bias

    def rotary_cache(
        self,
        qkv: Tensor,
        batch: Batch,
        kv: Any,
        layer: int,
        cos_sin: Tensor,
        num_q_heads: int,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
    ) -> Tensor:
        head_dim, kv_heads = kv["head_dim"], kv["kv_heads"]
        heads = qkv.view(len(qkv), -1, head_dim)
        q, k, v = heads.split([num_q_heads, kv_heads, kv_heads], dim=1)
        if q_norm is not None and k_norm is not None:
            q, k = self.rms_norm(q, q_norm, eps), self.rms_norm(k, k_norm, eps)
        table = cos_sin[batch.positions.long()].unsqueeze(1)
        old = kv[layer] if layer in kv else (k[:0], v[:0])
        kv[layer] = (torch.cat([old[0], _rotate(k, table)]), torch.cat([old[1], v]))
        return _rotate(q, table).reshape(len(qkv), -1)

    def attention(
        self,
        q: Tensor,
        batch: Batch,
        kv: Any,
        layer: int,
        scale: float,
        window: int | None,
        soft_cap: float | None,
        sinks: Tensor | None,
        alibi: Tensor | None,
    ) -> Tensor:
        keys, values = kv[layer]
        q = q.view(len(q), -1, kv["head_dim"]).transpose(0, 1)
        group = q.shape[0] // kv["kv_heads"]
        keys, values = (t.transpose(0, 1).repeat_interleave(group, 0) for t in (keys, values))
        scores = q @ keys.transpose(1, 2) * scale
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        distance = batch.positions.view(-1, 1) - torch.arange(keys.shape[1])
        seen = (distance >= 0) & (distance < (window or keys.shape[1] + 1))
        out = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ values
        return out.transpose(0, 1).flatten(1)

    def gated_activation(self, x: Tensor, kind: str) -> Tensor:
        gate, up = x.chunk(2, dim=1)
        if kind == "silu":
            return torch.nn.functional.silu(gate) * up
        return torch.nn.functional.gelu(gate, approximate="tanh" if kind == "gelu_tanh" else "none") * up

    def logits(self, x: Tensor, batch: Batch, head: Weight, soft_cap: float | None) -> Tensor:
        out = self.linear(x[batch.rows.long()], head)
        return out if soft_cap is None else soft_cap * torch.tanh(out / soft_cap)

    def sample(self, *args: Any) -> Any:
        raise NotImplementedError


def _rotate(x: Tensor, table: Tensor) -> Tensor:
    dim = table.shape[-1]
    cos, sin = table.chunk(2, dim=-1)
    a, b = x[..., :dim].chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., dim:]], dim=-1)


def logits_of(decoder: Any, ids: list[int], chunk: int | None = None) -> Tensor:
    """float32 [len(ids), vocab]: logits after every token, the prompt fed in chunks."""
    config = decoder.config
    kv: dict[Any, Any] = {"head_dim": config.head_dim, "kv_heads": config.num_kv_heads}
    step = chunk or len(ids)
    pieces = [decoder.forward(one_sequence(ids, start, start + step), kv, None) for start in range(0, len(ids), step)]
    return torch.cat(pieces)


def one_sequence(ids: list[int], start: int, end: int) -> Batch:
    """The batch of tokens start to end of one sequence, every row asked for."""
    end = min(end, len(ids))
    count = end - start
    positions = torch.arange(start, end, dtype=torch.int32)
    one = torch.tensor
    return Batch(
        sizes=one([count, 1, count], dtype=torch.int32),
        token_ids=one(ids[start:end], dtype=torch.int32),
        positions=positions,
        slot_mapping=positions,
        token_seq=torch.zeros(count, dtype=torch.int32),
        query_start=one([0, count], dtype=torch.int32),
        context_lens=one([end], dtype=torch.int32),
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        slots=torch.zeros(1, dtype=torch.int32),
        rows=torch.arange(count, dtype=torch.int32),
    )
