"""The decoder, written once: every family is a configuration of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from headrace.kernels.ops import Batch, Ops, OptionalOps
from headrace.kernels.weight import Weight
from headrace.models.config import DecoderConfig
from headrace.models.moe import SHARED_ROUTING, SharedExpert
from headrace.models.rope import cos_sin_table
from headrace.models.sharding import Group

__all__ = ["Decoder", "DecoderWeights", "LayerWeights"]

Tensor = torch.Tensor
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Norms are float32 [hidden] (q_norm and k_norm [head_dim]) with every family's offset folded in."""

    input_norm: Tensor
    qkv: Weight
    """[(Hq + 2 Hk) d, hidden]"""
    output: Weight
    mlp_norm: Tensor
    gate_up: Weight
    """[2 intermediate, hidden]; where there is a router, the experts' as `ops.Ops.moe` takes them."""
    down: Weight
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    attention_post_norm: Tensor | None = None
    """Sandwich norms; both or neither."""
    mlp_post_norm: Tensor | None = None
    router: Weight | None = None
    """[experts, hidden]"""
    router_bias: Tensor | None = None
    """[experts]; added to the scores for the choice alone."""
    shared: SharedExpert | None = None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Weight
    layers: Sequence[LayerWeights]
    norm: Tensor
    head: Weight
    """The same object as `embedding` if they are tied."""
    rope_factors: Tensor | None = None
    """[rotary_dim / 2]; what a GGUF divides frequencies by."""
    first_token: int | None = None
    """Where embedding and head are a run of the vocabulary: its first id. None: they are whole."""


class Decoder:
    """Calls operators and nothing else in `forward`, so that a platform can record a step once and replay it."""

    def __init__(
        self,
        config: DecoderConfig,
        ops: Ops,
        weights: DecoderWeights,
        max_model_len: int,
        group: Group | None = None,
        place: Callable[[Tensor], Any] | None = None,
    ) -> None:
        """The rotary tables are made for `max_model_len` positions; `place` puts them where operators want them (default: on the
        device of the weights). `group`: the ranks among which
        the weights are split, None for one; `config` has this rank's heads (`sharding.local_config`)."""
        self.config = config
        self._group = group
        if config.tied and weights.head is not weights.embedding:
            _log.warning(
                "%s: the settings tie the output matrix to the embedding, but the checkpoint holds one that differs: "
                "the checkpoint's own is used",
                config.family,
            )
        self.weights = weights
        self._ops = ops
        tables = [cos_sin_table(rope, max_model_len, weights.rope_factors) for rope in config.ropes]
        self._cos_sin = [table.to(weights.norm.device) if place is None else place(table) for table in tables]

    def forward(self, batch: Batch, kv: Any, history: Tensor) -> Tensor:
        """float32 [R, vocab]: logits of the rows asked for. Writes keys and values of the T tokens into `kv`."""
        ops, config, weights = self._ops, self.config, self.weights
        ids = ops.resolve_tokens(batch, history)
        residual = self._embed(ids)
        x = ops.rms_norm(residual, weights.layers[0].input_norm, config.norm_eps)
        for index, layer in enumerate(weights.layers):
            last = index + 1 == len(weights.layers)
            following = weights.norm if last else weights.layers[index + 1].input_norm
            x = self._attention(x, layer, index, batch, kv)
            x, residual = self._join(x, residual, layer.attention_post_norm, layer.mlp_norm)
            x = self._mlp(x, layer)
            x, residual = self._join(x, residual, layer.mlp_post_norm, following)
        logits = ops.logits(x, batch, weights.head, config.logits_soft_cap)
        if self._group is None or weights.first_token is None:
            return logits
        gathered: Tensor = self._group.all_gather(logits, 1)
        return gathered

    def _embed(self, ids: Tensor) -> Tensor:
        table, scale, first = self.weights.embedding, self.config.embedding_scale, self.weights.first_token
        if first is None:
            return self._ops.embedding(ids, table, scale)
        return self._sum(self._ops.embedding(ids, table, scale, first_row=first))

    def _sum(self, x: Tensor) -> Tensor:
        """Every rank's term of a row-parallel product, added."""
        if self._group is None:
            return x
        total: Tensor = self._group.all_reduce(x)
        return total

    def _attention(self, x: Tensor, layer: LayerWeights, index: int, batch: Batch, kv: Any) -> Tensor:
        ops, config = self._ops, self.config
        settings = config.layers[index]
        table = self._cos_sin[settings.rope]
        qkv = ops.linear(x, layer.qkv)
        q = ops.rotary_cache(
            qkv, batch, kv, index, table, config.num_q_heads, layer.q_norm, layer.k_norm, config.norm_eps
        )
        out = ops.attention(
            q, batch, kv, index, config.scale, settings.window, config.attention_soft_cap, sinks=None, alibi=None
        )
        return self._sum(ops.linear(out, layer.output))

    def _mlp(self, x: Tensor, layer: LayerWeights) -> Tensor:
        ops, optional = self._ops, cast(OptionalOps, self._ops)
        moe = self.config.moe
        if layer.router is not None and moe is not None:
            scores = ops.linear(x, layer.router)
            kind = self.config.activation
            experts = optional.moe
            chosen = experts(x, scores, layer.gate_up, layer.down, layer.router_bias, moe.routing, kind)
            return self._sum(chosen if layer.shared is None else self._add_shared(chosen, x, layer, layer.shared))
        hidden = optional.gated_linear(x, layer.gate_up, self.config.activation)
        return self._sum(ops.linear(hidden, layer.down))

    def _add_shared(self, chosen: Tensor, x: Tensor, layer: LayerWeights, shared: SharedExpert) -> Tensor:
        ops, optional, kind = self._ops, cast(OptionalOps, self._ops), self.config.activation
        if shared.share is None:
            own = ops.linear(optional.gated_linear(x, shared.gate_up, kind), shared.down)
        else:
            score = ops.linear(x, shared.share)
            own = optional.moe(x, score, shared.gate_up, shared.down, None, SHARED_ROUTING, kind)
        # The one operator that adds also normalises: that half is not used.
        return ops.add_rms_norm(own, chosen, layer.mlp_norm, self.config.norm_eps)[1]

    def _join(self, x: Tensor, residual: Tensor, post: Tensor | None, following: Tensor) -> tuple[Tensor, Tensor]:
        """A block's output into the residual, and the norm that the next block reads."""
        eps = self.config.norm_eps
        if post is not None:
            x = self._ops.rms_norm(x, post, eps)
        return self._ops.add_rms_norm(x, residual, following, eps)
