"""Multi-token prediction: the heads that the target's own checkpoint carries, under the names of several families.

| names | order of the projection's inputs | embedding of entry 0 | recycled |
|---|---|---|---|
| DeepSeek-V3, `model.layers.{L}.eh_proj` | embedding, hidden | zero | after the norm; GLM: before |
| Qwen3-Next, `mtp.fc` | embedding, hidden | as it is | after the norm |
| MiMo-7B, `model.mtp_layers.0.input_proj` | hidden, embedding | zero | after the norm |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.kernels.ops import Ops
from headrace.kernels.weight import Weight
from headrace.models.config import DecoderConfig
from headrace.models.decoder import Decoder, DecoderWeights
from headrace.models.draft_heads import DraftHead, MtpJoin
from headrace.models.family import Names
from headrace.models.features import FINAL, FeatureTap, TapPart
from headrace.models.head_weights import HeadReader
from headrace.quant.weights import same_values
from headrace.settings import Settings

__all__ = ["MtpNames", "build_mtp", "find_mtp", "mtp_tap"]


@dataclass(frozen=True, slots=True)
class MtpNames:
    """One family's names and rules."""

    prefix: str
    """Of all tensors of the head."""
    layer: str
    """Of those of its decoder layer."""
    embedding_norm: str
    hidden_norm: str
    projection: str
    norm: str
    hidden_first: bool = False
    zero_first: bool = True
    recycles_normed: bool = True
    window: bool = True
    """Its layer has the window of the target's last layer."""
    embedding: str = ""
    head: str = ""
    """Copies of the target's tables, if the checkpoint has them."""
    alone: bool = False
    """The head has a checkpoint of its own, which holds nothing else."""


def _deepseek(target: DecoderConfig) -> MtpNames:
    prefix = f"model.layers.{len(target.layers)}."
    shared = f"{prefix}shared_head."
    own = (f"{prefix}enorm", f"{prefix}hnorm", f"{prefix}eh_proj", f"{shared}norm")
    normed = target.family != "glm4_moe"
    return MtpNames(
        prefix, prefix, *own, recycles_normed=normed, embedding=f"{prefix}embed_tokens", head=f"{shared}head"
    )


def _qwen3_next(target: DecoderConfig) -> MtpNames:
    norms = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden")
    return MtpNames("mtp.", "mtp.layers.0.", *norms, "mtp.fc", "mtp.norm", zero_first=False, window=False)


def _mimo(target: DecoderConfig) -> MtpNames:
    prefix = "model.mtp_layers.0."
    norms = (f"{prefix}token_layernorm", f"{prefix}hidden_layernorm")
    projection, norm = f"{prefix}input_proj", f"{prefix}final_layernorm"
    return MtpNames(prefix, prefix, *norms, projection, norm, hidden_first=True)


def check_sizes(config: Mapping[str, Any], target: DecoderConfig) -> None:
    """Compare the config.json of a head's own checkpoint with the target. Raises CheckpointError that names the key."""
    settings = Settings(config)
    wanted = {"hidden_size": target.hidden, "vocab_size": target.vocab, "num_hidden_layers": len(target.layers)}
    for key, size in wanted.items():
        found = settings.integer(key, size)
        if found != size:
            raise CheckpointError(f"{key} is {found}, and the target's is {size}")


def find_mtp(names: frozenset[str], target: DecoderConfig, path: str, alone: bool = False) -> MtpNames:
    """The names of the head that a checkpoint has; `alone`: the checkpoint has nothing else. Raises UnsupportedModel if
    it has none that is known."""
    choices = [make(target) for make in (_deepseek, _qwen3_next, _mimo)]
    found = next((one for one in choices if f"{one.projection}.weight" in names), None)
    if found is None:
        wanted = ", ".join(f"{one.projection}.weight" for one in choices)
        raise UnsupportedModel(
            f"{path}: the checkpoint has no head for multi-token prediction ({wanted}): choose another method"
        )
    return replace(found, alone=True, recycles_normed=True) if alone else found


def head_config(own: MtpNames, names: frozenset[str], target: DecoderConfig, family: Names) -> DecoderConfig:
    """Of its one layer, which is of the target's own kind."""
    last = target.layers[-1]
    router = _moved(family.router, own.layer) if family.router else ""
    dense = target.moe is None or f"{router}.weight" not in names
    layer = replace(last, dense=dense, window=last.window if own.window else None)
    return replace(target, layers=(layer,), tied=False, draft_layers=0)


def mtp_tap(reader: HeadReader, ops: Ops, target: DecoderConfig, layer: int) -> FeatureTap:
    """The features are the hidden state after the final norm."""
    width = target.hidden
    return FeatureTap(ops, {FINAL: (TapPart(),)}, layer, width, reader.ones(width), target.norm_eps)


def build_mtp(
    own: MtpNames,
    config: DecoderConfig,
    reader: HeadReader,
    ops: Ops,
    family: Names,
    tables: tuple[Weight, Weight],
    max_model_len: int,
) -> DraftHead:
    """`tables`: the target's embedding and output matrix, ready for use."""
    hidden, eps = config.hidden, config.norm_eps
    first, second = reader.column_parts(own.projection, hidden, [hidden, hidden])
    of_embedding, of_hidden = (second, first) if own.hidden_first else (first, second)
    layer = reader.assembly(config, _moved_names(family, own.layer)).layer(0)
    norms = (reader.vector(f"{name}.weight", hidden) for name in (own.embedding_norm, own.hidden_norm, own.norm))
    embedding_norm, hidden_norm, norm = norms
    weights = DecoderWeights(
        _table(own.embedding, family.embedding, tables[0], config, reader, "embedding"),
        [layer],
        norm,
        _table(own.head, family.head, tables[1], config, reader, "logits"),
    )
    if own.alone:
        reader.refuse_unknown(())
    elif own.prefix != "model.mtp_layers.0.":
        reader.refuse_unknown((), (own.prefix,))
    join = MtpJoin(embedding_norm, hidden_norm, of_embedding, of_hidden, layer.input_norm, eps)
    body = Decoder(config, ops, weights, max_model_len, place=reader.place)
    return DraftHead(ops, body, join, None, own.recycles_normed, own.zero_first)


def _table(name: str, main: str, shared: Weight, config: DecoderConfig, reader: HeadReader, operator: str) -> Weight:
    """The target's table, unless the head has one that differs."""
    names = reader.source.names
    if not name or f"{name}.weight" not in names:
        return shared
    copy = reader.source.matrix(name, config.vocab, config.hidden, bias=False)
    # A model whose tables are tied may be saved without its output matrix.
    stored = next((one for one in (main, "model.embed_tokens") if f"{one}.weight" in names), None)
    if stored and same_values(copy, reader.source.matrix(stored, config.vocab, config.hidden, bias=False)):
        return shared
    return reader.finish(copy, (operator,))


def _moved_names(family: Names, prefix: str) -> Names:
    """The names of a target's layer, at the place of the head's."""
    moved = dict[str, Any]()
    for name in (f.name for f in fields(Names) if f.name != "ignored"):
        if "{i}" in (text := getattr(family, name)):
            moved[name] = _moved(text, prefix)
    return replace(family, **moved)


def _moved(name: str, prefix: str) -> str:
    return prefix + name.partition("{i}.")[2]
