"""The native operators that take no weight matrix: from tensors to kernel arguments.

Each one computes at once on tensors of any float dtype (results in the dtype of the inputs, arithmetic in float32).
While a tape is recorded, it works on the buffers of the tape. Outside recording a plain `TorchKV` is accepted and
converted, for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from headrace.errors import PlatformError
from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import Batch, SampleInputs, SampleOutputs
from headrace.platforms.cpu import native_args as args
from headrace.platforms.cpu.native_kv import NativeKV
from headrace.platforms.cpu.native_launch import Launcher

__all__ = ["NativeOps"]

Tensor = torch.Tensor
_SUB_ROWS = 16
"""Most query heads of one work unit of attention."""


def _plain(x: Tensor) -> Tensor:
    """`x` as float32 and contiguous."""
    return x.to(torch.float32).contiguous()


def _pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def batch_sizes(batch: Batch, biases: int = 0) -> list[int]:
    table = batch.block_tables
    return [*batch.sizes.tolist()[:3], biases, table.shape[1] if table.dim() == 2 else 0]


class NativeOps:
    """The operators. `launcher` is replaced while a tape is recorded."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher

    def table(self) -> Mapping[str, Callable[..., Any]]:
        names = (
            "resolve_tokens", "rms_norm", "add_rms_norm", "rotary_cache", "attention", "gated_activation", "sample",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def resolve_tokens(self, batch: Batch, history: Tensor) -> Tensor:
        with self.launcher.own():
            rows = self.launcher.rows(batch.token_ids)
            ids = self.launcher.empty(rows, batch.token_ids.shape, torch.int32)
            packed = args.ResolveTokensArgs(
                *(x.data_ptr() for x in (batch.token_ids, batch.positions, batch.token_seq, batch.slots, history, ids)),
                *history.shape,
            )
            self.launcher.call("resolve_tokens", packed, (batch, history, ids), batch_sizes(batch))
            return ids

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        with self.launcher.own():
            wide, scale = _plain(x), _plain(weight)
            rows = self.launcher.rows(x)
            y = self.launcher.empty(rows, x.shape)
            packed = args.RmsNormArgs(wide.data_ptr(), scale.data_ptr(), y.data_ptr(), rows, x.shape[1], eps)
            self.launcher.call("rms_norm", packed, (wide, scale, y))
            return y.to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        if residual.dtype != torch.float32:
            total = (x.float() + residual.float()).to(residual.dtype)  # the norm reads the rounded sum
            return self.rms_norm(total, weight, eps).to(x.dtype), total
        with self.launcher.own():
            tensors = [_plain(x), _plain(residual), _plain(weight)]
            rows = self.launcher.rows(x)
            y, total = self.launcher.empty(rows, x.shape), self.launcher.empty(rows, x.shape)
            tensors += [y, total]
            packed = args.AddRmsNormArgs(*(t.data_ptr() for t in tensors), rows, x.shape[1], eps)
            self.launcher.call("add_rms_norm", packed, tensors)
            return y.to(x.dtype), total

    def gated_activation(self, x: Tensor, kind: str) -> Tensor:
        if kind not in args.ACTIVATIONS:
            raise PlatformError(f"gated_activation: kind {kind!r}: choose one of {', '.join(args.ACTIVATIONS)}")
        with self.launcher.own():
            wide, width = _plain(x), x.shape[1] // 2
            rows = self.launcher.rows(x)
            y = self.launcher.empty(rows, (x.shape[0], width))
            packed = args.GatedActivationArgs(wide.data_ptr(), y.data_ptr(), rows, width, args.ACTIVATIONS[kind])
            self.launcher.call("gated_activation", packed, (wide, y))
            return y.to(x.dtype)

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
        with self.launcher.own():
            native = kv if isinstance(kv, NativeKV) else NativeKV.from_torch(kv)
            wide, table = _plain(qkv), _plain(cos_sin)
            norms = [None if norm is None else _plain(norm) for norm in (q_norm, k_norm)]
            rows = self.launcher.rows(batch.positions)
            q = self.launcher.empty(rows, (qkv.shape[0], num_q_heads * native.layout.layers[layer].head_dim))
            packed = args.RotaryCacheArgs(
                wide.data_ptr(), q.data_ptr(), native.args(layer), batch.positions.data_ptr(),
                batch.slot_mapping.data_ptr(), table.data_ptr(), *map(_pointer, norms), table.shape[0], num_q_heads,
                table.shape[1], eps,
            )  # fmt: skip
            keep = (wide, q, native, batch, table, *norms)
            self.launcher.call("rotary_cache", packed, keep, batch_sizes(batch))
            if isinstance(kv, TorchKV):
                native.to_torch(kv)
            return q.to(qkv.dtype)

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
        with self.launcher.own():
            native = kv if isinstance(kv, NativeKV) else NativeKV.from_torch(kv)
            shape = native.layout.layers[layer]
            wide, by_head = _plain(q), [None if x is None else _plain(x) for x in (sinks, alibi)]
            heads = q.shape[1] // shape.head_dim
            rows = self.launcher.rows(batch.positions)
            out = self.launcher.empty(rows, q.shape)
            group = heads // shape.num_kv_heads
            subs = -(-group // _SUB_ROWS)
            padded = -(-shape.head_dim // 16) * 16
            packed = args.AttentionArgs(
                wide.data_ptr(), out.data_ptr(), native.args(layer), batch.query_start.data_ptr(),
                batch.context_lens.data_ptr(), batch.block_tables.data_ptr(), *map(_pointer, by_head), heads,
                -(-group // subs), subs, window or 0, padded + 32, scale, soft_cap or 0.0,
            )  # fmt: skip
            self.launcher.call("attention", packed, (wide, out, native, batch, *by_head), batch_sizes(batch))
            return out.to(q.dtype)

    def sample(self, logits: Tensor, inputs: SampleInputs, batch: Batch, num_logprobs: int) -> SampleOutputs:
        with self.launcher.own():
            wide = _plain(logits)
            rows, (count, vocab) = self.launcher.rows(logits), logits.shape
            alternatives = min(max(num_logprobs, 0), vocab)
            tokens, ranks = (self.launcher.empty(rows, (count,), torch.int32) for _ in range(2))
            logprobs = self.launcher.empty(rows, (count,))
            top_ids = self.launcher.empty(rows, (count, alternatives), torch.int32)
            top_logprobs = self.launcher.empty(rows, (count, alternatives))
            given = [getattr(inputs, name) for name in args.SAMPLE_INPUTS]
            found = [tokens, ranks, top_ids, logprobs, top_logprobs]
            packed = args.SampleArgs(
                *(x.data_ptr() for x in (wide, *given, *found)), *inputs.history.shape, *inputs.allowed.shape, vocab,
                num_logprobs, alternatives,
            )  # fmt: skip
            self.launcher.call("sample", packed, (wide, inputs, *found), batch_sizes(batch, len(inputs.bias_row)))
            return SampleOutputs(tokens, logprobs, ranks, top_ids, top_logprobs)
