"""The block drafter: keeps entries made of the target's hidden states in the cache, and guesses a block in one pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from headrace.kernels.ops import Batch, Ops, OptionalOps, SampleInputs
from headrace.models.block_draft_config import BlockDraftConfig
from headrace.models.block_draft_weights import BlockDraftWeights, BlockLayer, ConvolutionWeights
from headrace.models.rope import cos_sin_table

__all__ = ["BlockBatch", "BlockDrafter", "ContextTap"]

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class BlockBatch:
    """The rows of the blocks of a round. Every row is a sequence of one token, with the block table of its text; rows
    of one block are neighbours."""

    batch: Batch
    """Each row sees the text, and of its block the rows up to its own."""
    last_positions: Tensor
    """int32 [T]: the last position of each row's block, for layers in which rows see all of it."""
    whole_lens: Tensor
    """int32 [S]: one more."""

    @property
    def whole(self) -> Batch:
        """The batch in which each row sees its complete block."""
        return replace(self.batch, positions=self.last_positions, context_lens=self.whole_lens)


class BlockDrafter:
    """Calls only operators, so that a platform can record both of its passes.

    Its layers are layers `first_layer` and following of the cache, beside the target's. An entry of theirs at position
    i is a function of the target's hidden states there, thus of the tokens up to i alone: blocks of a cached prefix
    hold the entries of its tokens, whoever shares them.
    """

    def __init__(
        self,
        config: BlockDraftConfig,
        ops: Ops,
        weights: BlockDraftWeights,
        first_layer: int,
        max_model_len: int,
        place: Callable[[Tensor], Any],
    ) -> None:
        """`place` puts the rotary table into the memory that the operators read."""
        self.config, self.weights, self.ops, self.first_layer = config, weights, ops, first_layer
        # A block may reach beyond the last position of the text.
        self.table = place(cos_sin_table(config.decoder.ropes[0], max_model_len + config.rows))
        self._windows = config.windows()

    def draft(self, block: BlockBatch, inputs: SampleInputs, kv: Any, count: int) -> Mapping[str, Tensor]:
        """Guess: the `count` most likely tokens of the R rows with their logprobs, `ids` and `logprobs` [R, count], and
        the products `side` [T, m] of all rows if the choice reads any."""
        x, logits = self._run(block, kv)
        best, side = self.ops.sample(logits, inputs, block.batch, count), self.weights.side
        found = {"ids": best.top_ids, "logprobs": best.top_logprobs}
        return found if side is None else {**found, "side": self.ops.linear(x, side)}

    def sample(self, block: BlockBatch, inputs: SampleInputs, kv: Any, columns: Tensor | None) -> Tensor:
        """Guess: int32 [R], a token for each row, drawn as the target draws, without its neighbours (only if the
        configuration is `independent`). They are written to the history. `columns`: for a reduced vocabulary, see
        `ops.OptionalOps.widen_logits`."""
        _, logits = self._run(block, kv)
        if columns is not None:
            logits = cast(OptionalOps, self.ops).widen_logits(logits, columns)
        return self.ops.sample(logits, inputs, block.batch, -1).tokens

    def logits(self, block: BlockBatch, kv: Any) -> Tensor:
        """float32 [R, Vd]: the logits of all rows of the blocks, for a choice of their tokens one after another."""
        return self._run(block, kv)[1]

    def corrected(self, logits: Tensor, tokens: Tensor, batch: Batch, at: int) -> Tensor:
        """float32 [N, Vd]: of `logits`, those of each block's draft `at`, with what the `tokens` [N] before them add
        (only if the configuration is `chained`). `batch` has a row for each block. A token of no number, as where a row
        had none to choose, adds nothing."""
        ops, markov = self.ops, self.weights.markov
        assert markov is not None
        vectors = ops.embedding(tokens, markov.before, 1.0, first_row=0)
        added = ops.logits(vectors, batch, markov.after, None)
        return cast(OptionalOps, ops).correct_logits(logits, added, at, self.config.drafts)

    def _run(self, block: BlockBatch, kv: Any) -> tuple[Tensor, Tensor]:
        """The last hidden state of all rows, after the final norm, and the logits of the R rows.

        The entries of the block are written at its positions, and every later step overwrites them.
        """
        ops, weights, decoder, batch = self.ops, self.weights, self.config.decoder, block.batch
        x, residual = self._embed(batch.token_ids)
        for index, layer in enumerate(weights.layers):
            last = index + 1 == len(weights.layers)
            following = weights.norm if last else weights.layers[index + 1].own.input_norm
            x, kernel = self._before(x, layer.around_attention)
            x = self._after(self._attend(x, index, block, kv), kernel, layer.around_attention)
            x, residual = ops.add_rms_norm(x, residual, layer.own.mlp_norm, decoder.norm_eps)
            x, kernel = self._before(x, layer.around_mlp)
            x = self._after(self._mlp(x, layer), kernel, layer.around_mlp)
            x, residual = ops.add_rms_norm(x, residual, following, decoder.norm_eps)
        return x, ops.logits(x, batch, weights.head, decoder.logits_soft_cap)

    def _embed(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """(the normalized input of the first layer, the residual)."""
        ops, decoder, weights = self.ops, self.config.decoder, self.weights
        scale, norm = decoder.embedding_scale, weights.layers[0].own.input_norm
        if weights.mask is None:
            residual = ops.embedding(ids, weights.embedding, scale)
            return ops.rms_norm(residual, norm, decoder.norm_eps), residual
        # A mask's id is the one after the vocabulary: the tables give zeros for each other's ids.
        own = ops.embedding(ids, weights.embedding, scale, first_row=0)
        masks = ops.embedding(ids, weights.mask, scale, first_row=decoder.vocab)
        return ops.add_rms_norm(masks, own, norm, decoder.norm_eps)

    def _attend(self, x: Tensor, index: int, block: BlockBatch, kv: Any) -> Tensor:
        ops, decoder, layer = self.ops, self.config.decoder, self.weights.layers[index].own
        place, window, table = self.first_layer + index, self._windows[index], self.table
        qkv = ops.linear(x, layer.qkv)
        q = ops.rotary_cache(
            qkv, block.batch, kv, place, table, decoder.num_q_heads, layer.q_norm, layer.k_norm, decoder.norm_eps
        )
        seen = block.batch if self.config.causal[index] else block.whole
        out = ops.attention(q, seen, kv, place, decoder.scale, window, None, sinks=None, alibi=None)
        return ops.linear(out, layer.output)

    def _mlp(self, x: Tensor, layer: BlockLayer) -> Tensor:
        hidden = cast(OptionalOps, self.ops).gated_linear(x, layer.own.gate_up, self.config.decoder.activation)
        return self.ops.linear(hidden, layer.own.down)

    def _before(self, x: Tensor, around: ConvolutionWeights | None) -> tuple[Tensor, Tensor | None]:
        """(the input of a sublayer, the kernels of its convolutions)."""
        if around is None:
            return x, None
        kernel = self.ops.linear(x, around.projection)
        return cast(OptionalOps, self.ops).block_conv(x, kernel, around.before, 0, self.config.rows), kernel

    def _after(self, x: Tensor, kernel: Tensor | None, around: ConvolutionWeights | None) -> Tensor:
        if around is None or kernel is None:
            return x
        return cast(OptionalOps, self.ops).block_conv(x, kernel, around.after, 1, self.config.rows)


class ContextTap:
    """Reads the target's hidden states in every step, and writes keys and values made of them for the drafter's layers.

    So every token that the target has computed has its entries, in the same blocks.
    """

    def __init__(self, drafter: BlockDrafter) -> None:
        self._drafter = drafter
        self._parts = dict(zip(drafter.config.features, drafter.weights.features, strict=True))

    def add(self, total: Tensor | None, point: int, hidden: Tensor) -> Tensor | None:
        """The sum of the products up to a capture point, the sum after so many layers: `hidden` [T, Ht]."""
        part, ops = self._parts.get(point), self._drafter.ops
        if part is None:
            return total
        product = ops.linear(hidden, part)
        if total is None:
            return product
        return ops.add_rms_norm(product, total, self._drafter.weights.feature_norm, self._eps)[1]

    def keep(self, total: Tensor | None, batch: Batch, kv: Any) -> None:
        """Write the entries of a step's tokens."""
        assert total is not None
        drafter, weights = self._drafter, self._drafter.weights
        context = drafter.ops.rms_norm(total, weights.feature_norm, self._eps)
        for index, layer in enumerate(weights.layers):
            entries, place = drafter.ops.linear(context, layer.context), drafter.first_layer + index
            k_norm = layer.own.k_norm
            drafter.ops.rotary_cache(entries, batch, kv, place, drafter.table, 0, None, k_norm, self._eps)

    @property
    def _eps(self) -> float:
        return self._drafter.config.decoder.norm_eps
