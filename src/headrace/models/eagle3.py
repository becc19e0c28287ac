"""EAGLE-3 heads (arXiv:2503.01840) as published: by their authors and SpecForge, as `speculators`, by DeepSpec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from headrace.errors import CheckpointError, UnsupportedModel, excerpt
from headrace.kernels.ops import Ops
from headrace.kernels.weight import Weight
from headrace.models import hf
from headrace.models.config import DecoderConfig
from headrace.models.decoder import Decoder, DecoderWeights, LayerWeights
from headrace.models.draft_heads import DraftHead, Eagle3Join
from headrace.models.family import HF_NAMES, Names
from headrace.models.features import FeatureTap, TapPart
from headrace.models.head_weights import HeadReader, StoredTensors, vocabulary_columns
from headrace.quant.column_split import take_columns
from headrace.quant.weights import stack
from headrace.settings import Settings

__all__ = ["Eagle3Config", "build_head", "build_tap", "read_eagle3"]

Tensor = torch.Tensor
_IGNORED = ("t2d", "verifier_", "mask_hidden", "rotary_emb.", "midlayer.self_attn.rotary_emb.")


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """The settings of a head, checked against its target."""

    decoder: DecoderConfig
    """Its layers; `vocab` is that of the target."""
    draft_vocab: int
    target_hidden: int
    points: tuple[int, ...]
    """Capture points of the features, in the order of the columns of `fc`."""
    first: str
    """The beginning of the names of the first layer's tensors."""
    norm_before_residual: bool
    norm_output: bool
    fc_norm: bool


def read_eagle3(config: Mapping[str, Any], source: StoredTensors, target: DecoderConfig) -> Eagle3Config:
    """Read a head's config.json. Raises UnsupportedModel and CheckpointError, which name the key."""
    settings = _Settings(config)
    kind = config.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise UnsupportedModel(f"speculators_model_type {excerpt(str(kind))}: expected eagle3")
    inner = config.get("transformer_layer_config")
    own = dict(inner) if isinstance(inner, Mapping) else dict(config)
    own = {**own, "vocab_size": own.get("vocab_size", target.vocab), "tie_word_embeddings": False}
    own.setdefault("max_position_embeddings", target.max_position)
    first = "midlayer." if "midlayer.hidden_norm.weight" in source.names else "layers.0."
    decoder = _decoder(own, source, first)
    if decoder.vocab != target.vocab:
        raise CheckpointError(f"vocab_size is {decoder.vocab}, and the target's is {target.vocab}")
    hidden = settings.integer("target_hidden_size", target.hidden)
    if hidden != target.hidden:
        raise CheckpointError(f"target_hidden_size is {hidden}, and the target's hidden_size is {target.hidden}")
    if not settings.flag("use_aux_hidden_state", True):
        raise UnsupportedModel("use_aux_hidden_state false: only heads that read several layers are supported")
    if settings.flag("norm_before_fc", False):
        raise UnsupportedModel("norm_before_fc true is not supported: fc_norm and heads without a norm are")
    return Eagle3Config(
        decoder,
        settings.integer("draft_vocab_size", decoder.vocab),
        hidden,
        _points(settings, config, len(target.layers)),
        first,
        settings.flag("norm_before_residual", "speculators_model_type" in config),
        settings.flag("norm_output", False),
        settings.flag("fc_norm", False),
    )


class _Settings:
    """Looks a key up in `eagle_config`, then at the top."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        nested = config.get("eagle_config")
        self._levels = [Settings(nested, within="eagle_config")] if isinstance(nested, Mapping) else []
        self._levels.append(Settings(config))

    def _level(self, key: str) -> Settings:
        return next((level for level in self._levels if level.get(key) is not None), self._levels[-1])

    def integer(self, key: str, default: int) -> int:
        return self._level(key).integer(key, default)

    def flag(self, key: str, default: bool) -> bool:
        return self._level(key).flag(key, default)

    def get(self, key: str) -> Any:
        return self._level(key).get(key)


def _points(settings: _Settings, config: Mapping[str, Any], layers: int) -> tuple[int, ...]:
    """Ids of EAGLE and `speculators` name the layer that a hidden state enters, those of DeepSpec the layer that it
    leaves."""
    key, shift = "eagle_aux_hidden_state_layer_ids", 0
    given = settings.get(key)
    if given is None and config.get("target_layer_ids") is not None:
        key, shift = "target_layer_ids", 1
        given = config[key]
    if given is None:
        given = [2, layers // 2, layers - 3]
    if not isinstance(given, list) or not given or not all(type(one) is int for one in given):
        raise CheckpointError(f"field '{key}' is {excerpt(str(given))}: expected a list of layers")
    points = tuple(one + shift for one in given)
    if any(not 0 <= one <= layers for one in points):
        raise CheckpointError(f"field '{key}' is {given}: the target has layers 0 to {layers - 1}")
    return points


def _decoder(own: Mapping[str, Any], source: StoredTensors, first: str) -> DecoderConfig:
    layers = Settings(own).layers("num_hidden_layers")
    decoder = hf.simple_decoder(own, "eagle3", [None] * layers, known=("use_qk_norm",))
    names = source.names
    return replace(
        decoder,
        qk_norm=f"{first}self_attn.q_norm.weight" in names,
        qkv_bias=f"{first}self_attn.q_proj.bias" in names,
        output_bias=f"{first}self_attn.o_proj.bias" in names,
        mlp_bias=f"{first}mlp.up_proj.bias" in names,
    )


def build_tap(config: Eagle3Config, reader: HeadReader, ops: Ops, eps: float, layer: int) -> FeatureTap:
    """The features: `fc` of the hidden states at the capture points side by side, as a sum of products."""
    width, hidden = config.decoder.hidden, config.target_hidden
    matrices = reader.column_parts("fc", width, [hidden] * len(config.points))
    parts: dict[int, list[TapPart]] = {}
    for index, (point, matrix) in enumerate(zip(config.points, matrices, strict=True)):
        norm = reader.vector(f"fc_norm.{index}.weight", hidden) if config.fc_norm else None
        parts.setdefault(point, []).append(TapPart(matrix, norm))
    kept = {point: tuple(parts[point]) for point in sorted(parts)}
    return FeatureTap(ops, kept, layer, width, reader.ones(width), eps)


def build_head(
    config: Eagle3Config, reader: HeadReader, ops: Ops, embedding: Weight | None, max_model_len: int
) -> DraftHead:
    """`embedding`: the target's, ready for use, if the head may share it."""
    decoder, source = config.decoder, reader.source
    names = _names(config.first)
    assembly = reader.assembly(decoder, names)
    join, first = _first_layer(config, reader)
    layers = [first, *(assembly.layer(index) for index in range(1, len(decoder.layers)))]
    head = reader.matrix("lm_head", config.draft_vocab, decoder.hidden, "logits")
    reduced = config.draft_vocab != decoder.vocab or "d2t" in source.names
    columns = vocabulary_columns(source, reader.path, config.draft_vocab, decoder.vocab) if reduced else None
    norm = reader.vector("norm.weight", decoder.hidden)
    weights = DecoderWeights(_embedding(config, reader, embedding), layers, norm, head)
    reader.refuse_unknown(_IGNORED)
    body = Decoder(decoder, ops, weights, max_model_len, place=reader.place)
    placed = None if columns is None else reader.place_ints(columns)
    return DraftHead(ops, body, join, placed, config.norm_output, zero_first=False)


def _embedding(config: Eagle3Config, reader: HeadReader, shared: Weight | None) -> Weight:
    decoder = config.decoder
    if "embed_tokens.weight" not in reader.source.names:
        if shared is None:
            raise CheckpointError(
                f"is missing, and the target's embedding of {config.target_hidden} columns cannot stand in for "
                f"hidden_size {decoder.hidden}",
                reader.path,
                "embed_tokens.weight",
            )
        return shared
    return reader.matrix("embed_tokens", decoder.vocab, decoder.hidden, "embedding")


def _first_layer(config: Eagle3Config, reader: HeadReader) -> tuple[Eagle3Join, LayerWeights]:
    decoder, prefix, source = config.decoder, config.first, reader.source
    hidden, dim = decoder.hidden, decoder.head_dim
    q_rows, kv_rows = decoder.num_q_heads * dim, decoder.num_kv_heads * dim

    def norm(name: str, size: int = hidden) -> Tensor:
        return reader.vector(f"{prefix}{name}.weight", size)

    sides: tuple[list[Weight], list[Weight]] = ([], [])
    for name, rows in (("q_proj", q_rows), ("k_proj", kv_rows), ("v_proj", kv_rows)):
        whole = source.matrix(f"{prefix}self_attn.{name}", rows, 2 * hidden, decoder.qkv_bias)
        for side, start in zip(sides, (0, hidden), strict=True):
            part = take_columns(whole, start, start + hidden)
            side.append(replace(part, bias=part.bias if start else None))
    of_embedding, of_features = (reader.finish(stack(side, f"{prefix}self_attn qkv"), ("linear",)) for side in sides)
    down_names = ("gate_proj", "up_proj")
    inner = decoder.intermediate
    gate_up = [source.matrix(f"{prefix}mlp.{name}", inner, hidden, decoder.mlp_bias) for name in down_names]
    output = source.matrix(f"{prefix}self_attn.o_proj", hidden, q_rows, decoder.output_bias)
    down = source.matrix(f"{prefix}mlp.down_proj", hidden, inner, decoder.mlp_bias)
    layer = LayerWeights(
        input_norm=norm("hidden_norm"),
        qkv=of_features,
        output=reader.finish(output, ("linear",)),
        mlp_norm=norm("post_attention_layernorm"),
        gate_up=reader.finish(stack(gate_up, f"{prefix}mlp gate and up"), ("linear",)),
        down=reader.finish(down, ("linear",)),
        q_norm=norm("self_attn.q_norm", dim) if decoder.qk_norm else None,
        k_norm=norm("self_attn.k_norm", dim) if decoder.qk_norm else None,
    )
    ones = reader.ones(q_rows + 2 * kv_rows)
    own = norm("input_layernorm")
    join = Eagle3Join(own, layer.input_norm, of_embedding, ones, config.norm_before_residual, decoder.norm_eps)
    return join, layer


def _names(first: str) -> Names:
    """Of the layers after the first."""
    moved = {
        name: getattr(HF_NAMES, name).removeprefix("model.")
        for name in ("input_norm", "q", "k", "v", "output", "mlp_norm", "gate", "up", "down", "q_norm", "k_norm")
    }
    return replace(HF_NAMES, **moved)
