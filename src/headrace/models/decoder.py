"""The decoder: every family is a configuration of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch

from headrace.errors import PlatformError
from headrace.kernels.ops import Batch, Ops, OptionalOps
from headrace.kernels.weight import Weight
from headrace.models.config import DecoderConfig
from headrace.models.features import FINAL, Tap
from headrace.models.moe import SHARED_ROUTING, MoE, SharedExpert
from headrace.models.rope import cos_sin_table
from headrace.models.sharding import ONE_STAGE, Collectives, ExchangesBlocks, StageLinks

__all__ = ["Beside", "Decoder", "DecoderWeights", "LayerWeights"]

Tensor = torch.Tensor
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer. Norms are float32 [hidden] (q_norm, k_norm: [head_dim]), with the family's offset."""

    input_norm: Tensor
    qkv: Weight
    """[(Hq + 2 Hk) d, hidden]"""
    output: Weight
    mlp_norm: Tensor
    gate_up: Weight
    """[2 intermediate, hidden]; with a router, the stack of all experts, as `ops.Ops.moe` requires."""
    down: Weight
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    attention_post_norm: Tensor | None = None
    """Sandwich norms: both are given or neither."""
    mlp_post_norm: Tensor | None = None
    router: Weight | None = None
    """[experts, hidden]"""
    router_bias: Tensor | None = None
    """[experts]; added to the scores only for the choice of experts."""
    shared: SharedExpert | None = None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All weights of a decoder, or one rank's part of them. A stage has no rows of a table that it does not need."""

    embedding: Weight
    layers: Sequence[LayerWeights]
    norm: Tensor
    head: Weight
    """The same object as `embedding` if they are tied."""
    rope_factors: Tensor | None = None
    """[rotary_dim / 2]; divisors of the rotary frequencies, from a GGUF."""
    first_token: int | None = None
    """The first token id if embedding and head hold a range of the vocabulary; None if they hold all of it."""


class Beside(NamedTuple):
    """A term of the first layer's queries, keys and values, out of another input."""

    qkv: Tensor
    """[T, (Hq + 2 Hk) d]"""
    ones: Tensor
    """float32 [(Hq + 2 Hk) d]: the only operator that adds also normalizes."""


class Decoder:
    """The decoder of one rank. `forward` calls only operators, so that a platform can record a step and replay it."""

    def __init__(
        self,
        config: DecoderConfig,
        ops: Ops,
        weights: DecoderWeights,
        max_model_len: int,
        group: Collectives | None = None,
        place: Callable[[Tensor], Any] | None = None,
        links: StageLinks = ONE_STAGE,
    ) -> None:
        """Compute the rotary tables for `max_model_len` positions.

        `place` puts them into the memory that the operators read; by default, onto the device of the weights. `group`:
        the collective operations of the ranks that share the weights, None for one rank. `links`: the neighbours of a
        stage. `config` has this rank's heads and layers (`sharding.local_config`).
        """
        self.config = config
        self._group, self._links = group, links
        if config.moe is not None and config.moe.ranks > 1 and not isinstance(group, ExchangesBlocks):
            raise PlatformError(f"{config.family}: ranks hold complete experts, but their group has no all_to_all")
        whole = weights.embedding.shape[0] and weights.head.shape[0]
        if config.tied and whole and weights.head is not weights.embedding:
            _log.warning(
                "%s: the settings tie the output matrix to the embedding, but the checkpoint holds one that differs: "
                "the checkpoint's own is used",
                config.family,
            )
        self.weights = weights
        self._ops = ops
        self.tap: Tap | None = None
        """Captures hidden states for a drafter. It must be set before the first step."""
        tables = [cos_sin_table(rope, max_model_len, weights.rope_factors) for rope in config.ropes]
        self._cos_sin = [table.to(weights.norm.device) if place is None else place(table) for table in tables]

    def forward(self, batch: Batch, kv: Any, history: Tensor) -> Tensor:
        """The logits of the R requested rows, float32 [R, vocab]. Writes keys and values of the T tokens into `kv`."""
        return self.logits(self.hidden(batch, kv, history), batch)

    def hidden(self, batch: Batch, kv: Any, history: Tensor) -> Tensor:
        """The hidden states of the T tokens [T, hidden], after the final norm. Writes keys and values as `forward`."""
        return self.run_tokens(self._ops.resolve_tokens(batch, history), batch, kv)[0]

    def pass_on(self, batch: Batch, kv: Any, history: Tensor) -> Tensor:
        """Replaces `forward` for a stage that is not the last: writes keys and values, and sends the residual stream of
        the T tokens to the next stage. Returns the ids of the tokens, int32 [T]."""
        ids = self._ops.resolve_tokens(batch, history)
        assert self._links.after is not None
        self._links.after.send_rows(self.run_tokens(ids, batch, kv)[1])
        return ids

    def run_tokens(self, ids: Tensor, batch: Batch, kv: Any) -> tuple[Tensor, Tensor]:
        """As `run_layers`, for the ids of the T tokens, int32 [T]."""
        before = self._links.before
        residual = self._embed(ids) if before is None else before.receive_rows(ids, self.config.hidden)
        x = self._ops.rms_norm(residual, self.weights.layers[0].input_norm, self.config.norm_eps)
        return self.run_layers(x, residual, batch, kv)

    def run_layers(
        self, x: Tensor, residual: Tensor, batch: Batch, kv: Any, beside: Beside | None = None
    ) -> tuple[Tensor, Tensor]:
        """All layers: (what the head reads, the residual before the final norm), [T, hidden] each.

        `x` is the normalized input of the first layer; `beside` is added to its queries, keys and values.
        """
        weights, tap = self.weights, self.tap
        features = None if tap is None else tap.add(None, 0, residual)
        for index, layer in enumerate(weights.layers):
            last = index + 1 == len(weights.layers)
            following = weights.norm if last else weights.layers[index + 1].input_norm
            x = self._attention(x, layer, index, batch, kv, None if index else beside)
            x, residual = self._join(x, residual, layer.attention_post_norm, layer.mlp_norm)
            x = self._mlp(x, layer)
            x, residual = self._join(x, residual, layer.mlp_post_norm, following)
            features = features if tap is None else tap.add(features, index + 1, residual)
        if tap is not None:
            tap.keep(tap.add(features, FINAL, x), batch, kv)
        return x, residual

    def logits(self, x: Tensor, batch: Batch) -> Tensor:
        """The logits of the requested rows of x [T, hidden], the output of the final norm."""
        weights = self.weights
        logits = self._ops.logits(x, batch, weights.head, self.config.logits_soft_cap)
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
        """The sum of all ranks' terms of a row-parallel product."""
        if self._group is None:
            return x
        total: Tensor = self._group.all_reduce(x)
        return total

    def _attention(
        self, x: Tensor, layer: LayerWeights, index: int, batch: Batch, kv: Any, beside: Beside | None
    ) -> Tensor:
        ops, config = self._ops, self.config
        settings = config.layers[index]
        table = self._cos_sin[settings.rope]
        qkv = ops.linear(x, layer.qkv)
        if beside is not None:
            qkv = ops.add_rms_norm(qkv, beside.qkv, beside.ones, config.norm_eps)[1]
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
            if moe.ranks > 1:
                chosen = self._distributed(x, scores, layer, moe)
                return chosen if layer.shared is None else self._add_shared(chosen, x, layer, layer.shared)
            experts = optional.moe
            chosen = experts(x, scores, layer.gate_up, layer.down, layer.router_bias, moe.routing, kind)
            return self._sum(chosen if layer.shared is None else self._add_shared(chosen, x, layer, layer.shared))
        hidden = optional.gated_linear(x, layer.gate_up, self.config.activation)
        return self._sum(ops.linear(hidden, layer.down))

    def _distributed(self, x: Tensor, scores: Tensor, layer: LayerWeights, moe: MoE) -> Tensor:
        """The mixture of experts that the ranks hold, with the sums of one rank (see `sharding`)."""
        optional, group, kind = cast(OptionalOps, self._ops), cast(ExchangesBlocks, self._group), self.config.activation
        bias, routing = layer.router_bias, moe.routing
        own = optional.own_experts(x, scores, layer.gate_up, layer.down, bias, routing, kind, moe.first)
        mixed = optional.mix_experts(group.all_to_all(own, 1), scores, bias, routing, moe.ranks)
        chosen: Tensor = group.all_gather(mixed, 1)
        return chosen

    def _add_shared(self, chosen: Tensor, x: Tensor, layer: LayerWeights, shared: SharedExpert) -> Tensor:
        ops, optional, kind = self._ops, cast(OptionalOps, self._ops), self.config.activation
        if shared.share is None:
            own = ops.linear(optional.gated_linear(x, shared.gate_up, kind), shared.down)
        else:
            score = ops.linear(x, shared.share)
            own = optional.moe(x, score, shared.gate_up, shared.down, None, SHARED_ROUTING, kind)
        # The only operator that adds also normalizes: the normalized output is not used.
        return ops.add_rms_norm(own, chosen, layer.mlp_norm, self.config.norm_eps)[1]

    def _join(self, x: Tensor, residual: Tensor, post: Tensor | None, following: Tensor) -> tuple[Tensor, Tensor]:
        """Add a block's output to the residual: (the normalized input of the next block, the new residual)."""
        eps = self.config.norm_eps
        if post is not None:
            x = self._ops.rms_norm(x, post, eps)
        return self._ops.add_rms_norm(x, residual, following, eps)
