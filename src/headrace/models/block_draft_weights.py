"""Reads the weights of a block drafter.

Embedding and output matrix are the target's unless the checkpoint has its own. What only the choice of tokens reads
(the tables of the selector and of the Markov head) stays on the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.kernels.weight import Weight
from headrace.models.assemble import Finish, Source
from headrace.models.block_draft_config import BlockDraftConfig
from headrace.models.decoder import LayerWeights
from headrace.quant.column_split import take_columns
from headrace.quant.finite_values import check_vector
from headrace.quant.weights import dense, stack

__all__ = [
    "BlockDraftSource",
    "BlockDraftWeights",
    "BlockLayer",
    "BlockTables",
    "ConvolutionWeights",
    "MarkovWeights",
    "TargetMatrices",
    "read_weights",
]

Tensor = torch.Tensor
_IGNORED = re.compile(r"t2d|verifier_.*|mask_hidden|.*rotary_emb\.inv_freq")


class BlockDraftSource(Source, Protocol):
    """A source that also gives tensors in the type in which they are stored."""

    def has(self, name: str) -> bool: ...

    def get(self, name: str) -> Tensor: ...


class TargetMatrices(Protocol):
    """The target's embedding and output matrix, as the operators read them."""

    @property
    def embedding(self) -> Weight: ...

    @property
    def head(self) -> Weight: ...


@dataclass(frozen=True, slots=True)
class ConvolutionWeights:
    """A convolution around one sublayer; see `ops.OptionalOps.block_conv`."""

    projection: Weight
    """[2 taps H / group, H]"""
    before: Any
    """float32 [taps, H]"""
    after: Any


@dataclass(frozen=True, slots=True)
class BlockLayer:
    """The weights of one layer."""

    own: LayerWeights
    context: Weight
    """[2 Hk d, H]: keys and values, for the features of the text."""
    around_attention: ConvolutionWeights | None = None
    around_mlp: ConvolutionWeights | None = None


@dataclass(frozen=True, slots=True)
class MarkovWeights:
    """A vanilla Markov head, for a device that chooses the tokens."""

    before: Weight
    """[V, rank]: a vector of each token before."""
    after: Weight
    """[Vd, rank]: its products with that vector are added to the logits."""


@dataclass(frozen=True, slots=True)
class BlockTables:
    """Tensors that choose the tokens of a block, on the host; None for what a drafter lacks, or the device has."""

    draft_ids: Tensor | None = None
    """int64 [Vd]: the target's token of each one that it may guess."""
    predecessors: Tensor | None = None
    """[V, rank]"""
    successors: Tensor | None = None
    markov_in: Tensor | None = None
    """[V, rank]"""
    markov_out: Tensor | None = None
    """[Vd, rank]"""
    mixing: Tensor | None = None
    """The columns of the gated or recurrent Markov head that read something other than the hidden state."""
    mixing_bias: Tensor | None = None
    confidence: Tensor | None = None
    """[rank]: the part of the estimate that reads the token before."""
    confidence_bias: float = 0.0
    side: tuple[tuple[str, int], ...] = ()
    """What the rows of `BlockDraftWeights.side` compute, with the number of each."""


@dataclass(frozen=True, slots=True)
class BlockDraftWeights:
    """All weights of a block drafter."""

    features: Sequence[Weight]
    """[H, Ht] each: parts of one product with the features side by side."""
    feature_norm: Any
    layers: Sequence[BlockLayer]
    norm: Any
    embedding: Weight
    head: Weight
    mask: Weight | None
    """[1, H]: the embedding of a mask, if it has a vector of its own."""
    side: Weight | None
    """[m, H]: products of the last hidden state that the choice of tokens reads."""
    tables: BlockTables
    markov: MarkovWeights | None = None
    """If the device chooses the tokens and the drafter has such a head."""


def read_weights(
    config: BlockDraftConfig,
    source: BlockDraftSource,
    path: str,
    target: TargetMatrices,
    same_as_target: Callable[[str, Weight], bool],
    finish: Finish,
    place: Callable[[Tensor], Any],
    draws: bool = False,
) -> BlockDraftWeights:
    """The weights of a drafter. `same_as_target("embedding" or "head", matrix)` compares a stored matrix with the
    target's; `finish` and `place` as for the target (`assemble.Assembly`). `draws`: the device chooses the tokens of a
    drafter that is not `undrawable`, so nothing is read for the host's choice.

    Raises CheckpointError for a missing tensor or one of a wrong shape, UnsupportedModel for tensors that are not used.
    """
    return _Reading(config, source, path, target, same_as_target, finish, place, draws).run()


@dataclass(slots=True)
class _Reading:
    config: BlockDraftConfig
    source: BlockDraftSource
    path: str
    target: TargetMatrices
    same_as_target: Callable[[str, Weight], bool]
    finish: Finish
    place: Callable[[Tensor], Any]
    draws: bool
    prefix: str = ""

    def run(self) -> BlockDraftWeights:
        if not self.source.has("fc.weight") and self.source.has("model.fc.weight"):
            self.prefix = "model."
        features = self._features()
        layers = [self._layer(index) for index in range(len(self.config.decoder.layers))]
        tables, side = self._tables()
        found = BlockDraftWeights(
            features,
            self._norm("hidden_norm"),
            layers,
            self._vector("norm", self.config.logit_scale),
            self._shared("embedding", "embed_tokens", self.config.decoder.vocab),
            self._shared("head", "lm_head", self.config.draft_vocab or self.config.decoder.vocab),
            self._mask(),
            side,
            tables,
            self._markov_weights() if self.draws and self.config.chained else None,
        )
        self._check_leftovers()
        return found

    def _features(self) -> list[Weight]:
        width, hidden = self.config.target_hidden, self.config.decoder.hidden
        count = len(self.config.features)
        whole = self.source.matrix(f"{self.prefix}fc", hidden, count * width, bias=False)
        parts = [take_columns(whole, at * width, (at + 1) * width) for at in range(count)]
        return [self.finish(part, ("linear",)) for part in parts]

    def _layer(self, index: int) -> BlockLayer:
        config, name = self.config.decoder, f"{self.prefix}layers.{index}."
        heads = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention = [
            self.source.matrix(f"{name}self_attn.{which}_proj", rows, config.hidden, config.qkv_bias)
            for which, rows in (("q", heads[0]), ("k", heads[1]), ("v", heads[1]))
        ]
        output = self.source.matrix(f"{name}self_attn.o_proj", config.hidden, heads[0], config.output_bias)
        inner = (config.intermediate, config.hidden)
        gate, up = (self.source.matrix(f"{name}mlp.{which}_proj", *inner, config.mlp_bias) for which in ("gate", "up"))
        down = self.source.matrix(f"{name}mlp.down_proj", *inner[::-1], config.mlp_bias)
        normed = self.source.has(f"{name}self_attn.q_norm.weight")
        own = LayerWeights(
            input_norm=self._norm(f"layers.{index}.input_layernorm"),
            qkv=self.finish(stack(attention, f"draft layer {index} qkv"), ("linear",)),
            output=self.finish(output, ("linear",)),
            mlp_norm=self._norm(f"layers.{index}.post_attention_layernorm"),
            gate_up=self.finish(stack([gate, up], f"draft layer {index} gate and up"), ("gated_linear",)),
            down=self.finish(down, ("linear",)),
            q_norm=self._norm(f"layers.{index}.self_attn.q_norm", config.head_dim) if normed else None,
            k_norm=self._norm(f"layers.{index}.self_attn.k_norm", config.head_dim) if normed else None,
        )
        context = self.finish(stack(attention[1:], f"draft layer {index} keys and values"), ("linear",))
        around = [self._around(f"{name}{which}_conv") for which in ("attention", "mlp")]
        return BlockLayer(own, context, *around)

    def _around(self, name: str) -> ConvolutionWeights | None:
        settings, hidden = self.config.convolution, self.config.decoder.hidden
        if settings is None:
            return None
        rows = 2 * settings.taps * hidden // settings.group
        base = self._table(f"{name}.base_kernel", (2, settings.taps, hidden))
        projection = self.source.matrix(f"{name}.kernel_projection", rows, hidden, bias=False)
        before, after = (self.place(part.contiguous()) for part in base)
        return ConvolutionWeights(self.finish(projection, ("linear",)), before, after)

    def _tables(self) -> tuple[BlockTables, Weight | None]:
        """The tables of the choice, and the matrix of the products that it reads."""
        config, hidden = self.config, self.config.decoder.hidden
        parts: list[tuple[str, Tensor]] = []
        fields: dict[str, Any] = {"draft_ids": self._draft_ids()}
        if config.candidates is not None:
            rank, name = config.candidates.rank, f"{self.prefix}candidate_selector."
            shape = (config.decoder.vocab, rank)
            fields["predecessors"] = self._table(f"{name}predecessor_codebook", shape)
            fields["successors"] = self._table(f"{name}successor_codebook", shape)
            projection = self._table(f"{name}hidden_projection.weight", (rank, hidden))
            parts.append(("selector", projection / config.logit_scale))
        if config.markov is not None and not self.draws:
            self._markov(fields, parts)
        if config.confidence and self.source.has(f"{self.prefix}confidence_head.proj.weight"):
            rank = config.markov.rank if config.markov is not None and config.confidence_markov else 0
            weight = self._table(f"{self.prefix}confidence_head.proj.weight", (1, hidden + rank))[0]
            parts.append(("confidence", weight[None, :hidden] / config.logit_scale))
            fields["confidence"] = weight[hidden:] if rank else None
            bias = f"{self.prefix}confidence_head.proj.bias"
            fields["confidence_bias"] = float(self._table(bias, (1,))) if self.source.has(bias) else 0.0
        if self.draws:
            # The number of drafts is then the host's, which has not seen the hidden states.
            parts, fields = [], {"draft_ids": fields["draft_ids"]}
        fields["side"] = tuple((name, len(part)) for name, part in parts)
        side = None
        if parts:
            side = self.finish(dense(torch.cat([part for _, part in parts]).contiguous(), "products"), ("linear",))
        return BlockTables(**fields), side

    def _markov_weights(self) -> MarkovWeights:
        config, markov, name = self.config, self.config.markov, f"{self.prefix}markov_head.markov_w"
        assert markov is not None
        before = self.source.matrix(f"{name}1", config.decoder.vocab, markov.rank, bias=False)
        after = self.source.matrix(f"{name}2", config.draft_vocab or config.decoder.vocab, markov.rank, bias=False)
        # A drafter's tables stay as they are stored, even one that is multiplied: its rows may be short.
        return MarkovWeights(self.finish(before, ("embedding",)), self.finish(after, ("embedding", "logits")))

    def _markov(self, fields: dict[str, Any], parts: list[tuple[str, Tensor]]) -> None:
        config, markov, hidden = self.config, self.config.markov, self.config.decoder.hidden
        assert markov is not None
        name, rank = f"{self.prefix}markov_head.", markov.rank
        fields["markov_in"] = self._table(f"{name}markov_w1.weight", (config.decoder.vocab, rank))
        fields["markov_out"] = self._table(
            f"{name}markov_w2.weight", (config.draft_vocab or config.decoder.vocab, rank)
        )
        if markov.kind == "vanilla":
            return
        # gated: [hidden; token before] → gate; rnn: [state; token before; hidden] → gate, candidate, output.
        gated = markov.kind == "gated"
        layer = f"{name}{'gate' if gated else 'joint'}_proj"
        columns, rows = (hidden + rank, rank) if gated else (2 * rank + hidden, 3 * rank)
        whole = self._table(f"{layer}.weight", (rows, columns))
        seen, rest = (whole[:, :hidden], whole[:, hidden:]) if gated else (whole[:, 2 * rank :], whole[:, : 2 * rank])
        parts.append(("markov", seen / config.logit_scale))
        fields["mixing"] = rest.contiguous()
        if self.source.has(f"{layer}.bias"):
            fields["mixing_bias"] = self._table(f"{layer}.bias", (rows,))

    def _draft_ids(self) -> Tensor | None:
        count, vocab = self.config.draft_vocab, self.config.decoder.vocab
        if count is None:
            return None
        offsets = self.source.get("d2t")
        if tuple(offsets.shape) != (count,) or offsets.is_floating_point():
            raise CheckpointError(f"expected {count} integers, as draft_vocab_size states", self.path, "d2t")
        ids = offsets.long() + torch.arange(count)
        if int(ids.min()) < 0 or int(ids.max()) >= vocab or not bool((ids[1:] > ids[:-1]).all()):
            raise CheckpointError(
                f"its tokens d + d2t[d] are not ascending tokens of a vocabulary of {vocab}", self.path, "d2t"
            )
        return ids

    def _shared(self, role: str, name: str, rows: int) -> Weight:
        """The checkpoint's own embedding or output matrix, or the target's if it has none or an equal one."""
        stored = name if self.source.has(f"{name}.weight") else f"{self.prefix}{name}"
        hidden = self.config.decoder.hidden
        if self.source.has(f"{stored}.weight"):
            own = self.source.matrix(stored, rows, hidden, bias=False)
            if not self.same_as_target(role, own):
                return self.finish(own, ("logits",) if role == "head" else ("embedding",))
        elif rows != self.config.decoder.vocab:
            raise CheckpointError("is missing, and draft_vocab_size needs it", self.path, f"{name}.weight")
        elif hidden != self.config.target_hidden:
            raise CheckpointError(
                f"is missing, and the target's does not fit: hidden_size is {hidden}, the target's is "
                f"{self.config.target_hidden}",
                self.path,
                f"{name}.weight",
            )
        wanted: Weight = getattr(self.target, role)
        return wanted

    def _mask(self) -> Weight | None:
        config, name = self.config, f"{self.prefix}mask_embedding"
        name = name if self.source.has(name) else f"{name}.weight"
        if self.source.has(name):
            if config.mask_token is not None:
                raise CheckpointError(
                    f"there are two masks: field 'mask_token_id' is {config.mask_token}, and the tensor {name} is "
                    "another: leave out the one that it was not trained with",
                    self.path,
                )
            vector = self.source.get(name).float().reshape(-1)
            if len(vector) != config.decoder.hidden:
                raise CheckpointError(f"has {len(vector)} values: expected {config.decoder.hidden}", self.path, name)
            return self.finish(dense(vector[None].contiguous(), name), ("embedding",))
        if config.mask_token is None:
            raise CheckpointError("field 'mask_token_id' is missing, and so is the tensor mask_embedding", self.path)
        if config.mask_token >= config.decoder.vocab:
            raise CheckpointError(
                f"field 'mask_token_id' is {config.mask_token}: expected less than vocab_size, {config.decoder.vocab}",
                self.path,
            )
        return None

    def _norm(self, name: str, size: int | None = None) -> Any:
        return self._vector(name, 1.0, size)

    def _vector(self, name: str, scale: float, size: int | None = None) -> Any:
        full = f"{self.prefix}{name}.weight"
        vector = self.source.vector(full, size or self.config.decoder.hidden)
        check_vector(vector, self.path, full)
        return self.place(vector * scale if scale != 1.0 else vector)

    def _table(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of any shape as float32."""
        if not self.source.has(name) and self.source.has(f"{name}.weight"):
            name = f"{name}.weight"
        tensor = self.source.get(name)
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise CheckpointError(
                f"is {tensor.dtype} of shape {list(tensor.shape)}: expected floats of shape {list(shape)}",
                self.path,
                name,
            )
        return tensor.float()

    def _check_leftovers(self) -> None:
        used = self.source.used
        rest = sorted(name for name in self.source.names if name not in used and not _IGNORED.fullmatch(name))
        if rest:
            raise UnsupportedModel(
                f"{self.path}: {len(rest)} tensors are unknown to {self.config.method}: {', '.join(rest[:4])}"
            )
