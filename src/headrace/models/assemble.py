"""Assembles a decoder's weights from a checkpoint's named tensors: stacks, norm offsets, row order, completeness."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from headrace.errors import UnsupportedModel
from headrace.kernels.weight import Weight
from headrace.models.config import DecoderConfig
from headrace.models.decoder import DecoderWeights, LayerWeights
from headrace.models.family import Names
from headrace.models.moe import Experts, MoE, SharedExpert, expert_stacks
from headrace.models.sharding import WHOLE, Shard, head_columns
from headrace.quant.column_split import take_columns
from headrace.quant.finite_values import check_vector
from headrace.quant.weights import dense, same_values, stack, take_rows

__all__ = ["DRAFT_PREFIXES", "Assembly", "Finish", "Source"]

Tensor = torch.Tensor
Finish = Callable[[Weight, tuple[str, ...]], Weight]
"""(a matrix, the operators that will be called with it) → the matrix in the form that the model stores."""


DRAFT_PREFIXES = ("mtp.", "model.mtp_layers.")
"""Names of layers that draft further tokens and that have no number of a layer: only a drafter reads them."""


class Source(Protocol):
    """A checkpoint's tensors by name, checked against the shapes that the configuration requires."""

    @property
    def names(self) -> Collection[str]:
        """The full names of all tensors of the checkpoint."""

    @property
    def used(self) -> Collection[str]:
        """The names read so far, and those that belong to one of them."""

    def matrix(self, name: str, rows: int, columns: int, bias: bool) -> Weight:
        """`<name>.weight` in the form its scheme stores, and `<name>.bias` if `bias`. Raises CheckpointError."""

    def experts(self, name: str, count: int, rows: int, columns: int) -> list[Weight]:
        """One matrix per expert, from names with the expert's number for `{e}` or from one three-dimensional tensor."""

    def vector(self, name: str, size: int) -> Tensor:
        """The tensor `name` as float32 [size]. Raises CheckpointError."""


@dataclass(slots=True)
class Assembly:
    """One build of a decoder's weights."""

    config: DecoderConfig
    names: Names
    source: Source
    path: str
    """The checkpoint's path, for errors."""
    norm_offset: float
    interleaved: bool
    place: Callable[[Tensor], Any]
    """Puts a vector into the memory that the operators read."""
    finish: Finish
    progress: Callable[[int], None]
    """Called with the bytes of each finished weight."""
    shard: Shard = WHOLE
    """The part of every matrix that this rank holds. `config` is that of the complete model."""

    def run(self) -> DecoderWeights:
        """Build the weights.

        Raises CheckpointError for a missing tensor or a wrong shape, UnsupportedModel for tensors that are not used.
        """
        config, names = self.config, self.names
        embedding, head = self.tables()
        layers = [self.layer(index) for index in range(*self.shard.layers(config))]
        norm = self._norm(names.norm, config.hidden)
        factors = None
        if "rope_freqs.weight" in self.source.names:
            factors = self._vector("rope_freqs.weight", config.ropes[0].rotary_dim // 2)
        self._check_leftovers()
        vocabulary = self.shard.vocabulary(config)
        return DecoderWeights(embedding, layers, norm, head, factors, vocabulary[0] if vocabulary else None)

    def tables(self) -> tuple[Weight, Weight]:
        """(embedding, head): the same object if they are tied, unless the checkpoint holds a different head. A stage
        has no rows of one that it does not need.

        Some trainers untie the two but leave the setting as it was.
        """
        config, names, shard = self.config, self.names, self.shard
        nothing = dense(torch.empty(0, config.hidden), "no rows")
        apart = not config.tied or any(name.startswith(f"{names.head}.") for name in self.source.names)
        if not (shard.embeds or shard.samples):
            return nothing, nothing
        embedding = self._table(names.embedding) if config.tied or shard.embeds else nothing
        head = self._table(names.head) if apart and (config.tied or shard.samples) else nothing
        if not apart or (config.tied and same_values(head, embedding)):
            both = self._finish(embedding, "logits", "embedding")
            return both if shard.embeds else nothing, both if shard.samples else nothing
        embedding = self._finish(embedding, "embedding") if shard.embeds else nothing
        return embedding, self._finish(head, "logits") if shard.samples else nothing

    def layer(self, index: int) -> LayerWeights:
        """One layer. Raises as `run`."""
        config, names = self.config, self.names
        q_rows, kv_rows = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim

        def matrix(name: str, rows: int, columns: int, bias: bool) -> Weight:
            return self.source.matrix(name.format(i=index), rows, columns, bias)

        def norm(name: str, wanted: bool, size: int) -> Tensor | None:
            return self._norm(name.format(i=index), size) if wanted else None

        q_rows_kept, kv_rows_kept = (
            head_columns(heads, config.head_dim) for heads in (self.shard.q_heads(config), self.shard.kv_heads(config))
        )
        q = self._order(_rows(matrix(names.q, q_rows, config.hidden, config.qkv_bias), q_rows_kept))
        k = self._order(_rows(matrix(names.k, kv_rows, config.hidden, config.qkv_bias), kv_rows_kept))
        v = _rows(matrix(names.v, kv_rows, config.hidden, config.qkv_bias), kv_rows_kept)
        output = matrix(names.output, config.hidden, q_rows, config.output_bias)
        router, gate_up, down = self._mlp(index)
        reader = "linear" if router is None else "own_experts" if self.shard.expert_parallel else "moe"
        return LayerWeights(
            input_norm=self._norm(names.input_norm.format(i=index), config.hidden),
            qkv=self._finish(stack([q, k, v], f"layer {index} qkv"), "linear"),
            output=self._finish(self._columns(output, q_rows_kept), "linear"),
            mlp_norm=self._norm(names.mlp_norm.format(i=index), config.hidden),
            gate_up=self._finish(gate_up, reader),
            down=self._finish(down, reader),
            q_norm=norm(names.q_norm, config.qk_norm, config.head_dim),
            k_norm=norm(names.k_norm, config.qk_norm, config.head_dim),
            attention_post_norm=norm(names.attention_post_norm, config.sandwich_norm, config.hidden),
            mlp_post_norm=norm(names.mlp_post_norm, config.sandwich_norm, config.hidden),
            router=None if router is None else self._finish(router, "linear"),
            **({} if router is None or config.moe is None else self._beside(index, config.moe)),
        )

    def _beside(self, index: int, moe: MoE) -> dict[str, Any]:
        """The fields of a sparse layer other than router and experts: correction bias and shared expert."""
        bias = self._vector(self.names.router_bias.format(i=index), moe.experts) if moe.biased else None
        return {
            "router_bias": None if bias is None else self.place(bias),
            "shared": self._shared(index, moe) if moe.shared else None,
        }

    def _mlp(self, index: int) -> tuple[Weight | None, Weight, Weight]:
        """(router, gate and up, down); no router for a dense layer."""
        config, names, source = self.config, self.names, self.source
        if config.moe is not None and not config.layers[index].dense:
            router = source.matrix(names.router.format(i=index), config.moe.experts, config.hidden, bias=False)
            experts = (names.expert_gate, names.expert_up, names.expert_down)
            return router, *expert_stacks(self._expert_parts(index), config.moe, config.hidden, experts, index)
        own = (names.gate, names.up, names.down)
        return None, *self._gated(index, own, config.intermediate, self.shard, "", bias=config.mlp_bias)

    def _gated(
        self, index: int, own: tuple[str, str, str], width: int, shard: Shard, what: str, bias: bool
    ) -> tuple[Weight, Weight]:
        """(gate and up, down) of one gated MLP with `width` inner columns: the shard's part."""
        hidden = self.config.hidden
        wide, narrow = (width, hidden), (hidden, width)
        gate, up, down = (
            self.source.matrix(name.format(i=index), *shape, bias=bias)
            for name, shape in zip(own, (wide, wide, narrow), strict=True)
        )
        inner = shard.inner(down)
        return stack([_rows(gate, inner), _rows(up, inner)], f"layer {index} gate and up{what}"), self._columns(
            down, inner
        )

    def _shared(self, index: int, moe: MoE) -> SharedExpert:
        names = self.names
        own = (names.shared_gate, names.shared_up, names.shared_down)
        shard = WHOLE if self.shard.expert_parallel else self.shard
        gate_up, down = self._gated(index, own, moe.shared, shard, " of the shared expert", bias=False)
        if not moe.shared_gated:
            return SharedExpert(self._finish(gate_up, "linear"), self._finish(down, "linear"))
        share = self.source.matrix(names.shared_share.format(i=index), 1, self.config.hidden, bias=False)
        down = stack([down], f"layer {index} down of the shared expert")
        return SharedExpert(self._finish(gate_up, "moe"), self._finish(down, "moe"), self._finish(share, "linear"))

    def _expert_parts(self, index: int) -> Experts:
        """`Source.experts`, reduced to this rank's experts, or to its inner columns of each."""
        read, moe = self.source.experts, self.config.moe
        if self.shard.size == 1 or moe is None:
            return read
        if self.shard.expert_parallel:
            held = slice(*self.shard.experts(self.config))
            return lambda name, count, rows, columns: read(name, count, rows, columns)[held]
        name = self.names.expert_down.format(i=index, e="{e}")
        downs = read(name, moe.experts, self.config.hidden, moe.intermediate)
        inner = self.shard.inner(downs[0])

        def parts(requested: str, count: int, rows: int, columns: int) -> list[Weight]:
            if requested == name:
                return [self._columns(down, inner) for down in downs]
            return [_rows(part, inner) for part in read(requested, count, rows, columns)]

        return parts

    def _norm(self, name: str, size: int) -> Tensor:
        placed: Tensor = self.place(self._vector(f"{name}.weight", size) + self.norm_offset)
        return placed

    def _vector(self, name: str, size: int) -> Tensor:
        vector = self.source.vector(name, size)
        check_vector(vector, self.path, name)
        return vector

    def _finish(self, weight: Weight, *operators: str) -> Weight:
        size = weight.nbytes
        weight = self.finish(weight, operators)
        self.progress(size)
        return weight

    def _table(self, name: str) -> Weight:
        """Embedding or head: this rank's range of the vocabulary."""
        table = self.source.matrix(name, self.config.vocab, self.config.hidden, bias=False)
        return _rows(table, self.shard.vocabulary(self.config))

    def _columns(self, weight: Weight, run: tuple[int, int]) -> Weight:
        """A rank's part of a row-parallel matrix. The bias stays with rank 0, so that it is added once."""
        part = take_columns(weight, *run)
        return part if self.shard.first() else replace(part, bias=None)

    def _order(self, weight: Weight) -> Weight:
        """Undo a converter's interleaving of the rows of Q or K: rows 2 j and 2 j + 1 become j and j + d / 2."""
        if not self.interleaved:
            return weight
        rows = torch.arange(weight.shape[0]).view(-1, self.config.head_dim // 2, 2).transpose(1, 2)
        return take_rows(weight, rows.reshape(-1))

    def _check_leftovers(self) -> None:
        """Raise UnsupportedModel for unused tensors: their arithmetic would be missing from the result."""
        known = [re.compile(pattern) for pattern in self.names.ignored]
        used = self.source.used
        layer, count = self.names.input_norm.partition("{i}")[0], len(self.config.layers)
        drafting = tuple(f"{layer}{index}." for index in range(count, count + self.config.draft_layers))
        drafting += DRAFT_PREFIXES
        if self.shard.stages > 1:
            begin, end = self.shard.layers(self.config)
            drafting += tuple(f"{layer}{index}." for index in range(count) if not begin <= index < end)
            drafting += (f"{self.names.embedding}.", f"{self.names.head}.")
        rest = [name for name in self.source.names if name not in used and not any(p.fullmatch(name) for p in known)]
        rest = [name for name in rest if not name.startswith(drafting)]
        if rest:
            shown = ", ".join(sorted(rest)[:4])
            raise UnsupportedModel(
                f"{self.config.family}: {len(rest)} tensors of the checkpoint are unknown to the architecture: {shown}"
            )


def _rows(weight: Weight, run: tuple[int, int] | None) -> Weight:
    """Rows of a weight that is not a stack, with their bias; all rows if the range is None."""
    if run is None or run == (0, weight.shape[0]):
        return weight
    kept = slice(*run)
    return replace(weight.take(kept), bias=None if weight.bias is None else weight.bias[kept])
