"""Decoders that guess the target's next tokens: heads that read its hidden states (EAGLE-3, MTP), and smaller models.

Entry i of a sequence joins the features of token i with the embedding of token i + 1 and predicts token i + 2. It is
kept at place i of the head's own cache and rotated as position i. The entries after the last known one take the head's
own output, the *recycled* hidden state, in place of features.

Entry i of a smaller model is that of token i, and predicts token i + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from headrace.kernels.ops import Batch, Ops, OptionalOps
from headrace.kernels.weight import Weight
from headrace.models.decoder import Beside, Decoder

__all__ = ["DraftDecoder", "DraftHead", "Eagle3Join", "HeadLogits", "MtpJoin"]

Tensor = torch.Tensor


class Join(Protocol):
    """Joins embeddings and features to the input of the first layer."""

    def __call__(self, ops: Ops, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Beside | None]:
        """(its normalized input, the residual, a further term of its queries, keys and values)"""


@dataclass(frozen=True, slots=True)
class Eagle3Join:
    """The first layer of EAGLE-3 (arXiv:2503.01840): its queries, keys and values come from the embedding and the
    features side by side, which is the sum of two products."""

    embedding_norm: Tensor
    hidden_norm: Tensor
    embedding_qkv: Weight
    """[(Hq + 2 Hk) d, hidden]; the layer's own `qkv` multiplies the features."""
    ones: Tensor
    norm_before_residual: bool
    eps: float

    def __call__(self, ops: Ops, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Beside | None]:
        own = ops.linear(ops.rms_norm(embedded, self.embedding_norm, self.eps), self.embedding_qkv)
        x = ops.rms_norm(features, self.hidden_norm, self.eps)
        return x, x if self.norm_before_residual else features, Beside(own, self.ones)


@dataclass(frozen=True, slots=True)
class MtpJoin:
    """The input of a multi-token prediction layer (DeepSeek-V3, arXiv:2412.19437, section 2.2)."""

    embedding_norm: Tensor
    hidden_norm: Tensor
    from_embedding: Weight
    from_hidden: Weight
    """[hidden, hidden] each; the two halves of one projection."""
    input_norm: Tensor
    eps: float

    def __call__(self, ops: Ops, embedded: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Beside | None]:
        embedded = ops.linear(ops.rms_norm(embedded, self.embedding_norm, self.eps), self.from_embedding)
        hidden = ops.linear(ops.rms_norm(features, self.hidden_norm, self.eps), self.from_hidden)
        return *ops.add_rms_norm(embedded, hidden, self.input_norm, self.eps), None


@dataclass(frozen=True, slots=True)
class HeadLogits:
    """What the last rows of a head give."""

    logits: Tensor
    """float32 [R, vocabulary of the target]"""
    hidden: Tensor | None = None
    """[R, hidden]: what the next entry takes in place of features; None for a model, which takes none."""


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A head bound to operators."""

    ops: Ops
    layers: Decoder
    """Its layers, final norm, embedding and output matrix."""
    join: Join
    columns: Tensor | None
    """int32 [vocab]: of each token of the target, its column in the head's reduced vocabulary, or -1."""
    recycles_normed: bool
    """The recycled hidden state is that after the final norm."""
    zero_first: bool
    """The embedding of entry 0 is zero."""

    @property
    def lag(self) -> int:
        """The tokens between an entry's place and that of its embedding."""
        return 1

    def forward(self, batch: Batch, kv: Any, ids: Tensor, features: Tensor) -> HeadLogits:
        """One pass over T entries: their keys and values go to `kv`. `ids` [T] are the tokens of the embeddings; -1 is
        a zero embedding."""
        optional = cast(OptionalOps, self.ops)
        config, table = self.layers.config, self.layers.weights.embedding
        part = {"first_row": 0} if self.zero_first else {}
        embedded = self.ops.embedding(ids, table, config.embedding_scale, **part)
        x, residual, beside = self.join(self.ops, embedded, features)
        normed, hidden = self.layers.run_layers(x, residual, batch, kv, beside)
        logits = self.layers.logits(normed, batch)
        if self.columns is not None:
            logits = optional.widen_logits(logits, self.columns)
        return HeadLogits(logits, optional.take_rows(normed if self.recycles_normed else hidden, batch))


@dataclass(frozen=True, slots=True)
class DraftDecoder:
    """A model of its own, bound to operators."""

    ops: Ops
    model: Decoder

    @property
    def lag(self) -> int:
        """As that of a head."""
        return 0

    def forward(self, batch: Batch, kv: Any, ids: Tensor, features: Tensor | None = None) -> HeadLogits:
        """One pass over T tokens; it reads no features."""
        return HeadLogits(self.model.logits(self.model.run_tokens(ids, batch, kv)[0], batch))
