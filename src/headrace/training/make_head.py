"""Makes an untrained head for a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import torch

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.errors import ConfigError
from headrace.models.config import DecoderConfig
from headrace.models.decoder import DecoderWeights, LayerWeights
from headrace.tokenization.tokenizer import Tokenizer
from headrace.training.answers import Answer
from headrace.training.dflash_head import DFlashHead
from headrace.training.eagle3_head import Eagle3Head
from headrace.training.head_layers import HeadShape
from headrace.training.mtp_head import MTPHead
from headrace.training.settings import TrainingSettings
from headrace.training.training_head import TargetTables, TrainingHead

__all__ = ["draft_vocabulary", "last_layers", "make_head", "tables_of", "unused_token"]

Tensor = torch.Tensor


def make_head(
    settings: TrainingSettings,
    checkpoint: Checkpoint,
    weights: DecoderWeights,
    answers: Sequence[Answer],
    tokenizer: Tokenizer,
) -> TrainingHead:
    """The head of `settings.method`. `weights`: the target's, as the checkpoint stores them."""
    shape = HeadShape.of(checkpoint.decoder_config)
    tables = tables_of(checkpoint, weights)
    generator = torch.Generator().manual_seed(settings.seed)
    head: TrainingHead
    if settings.method == "mtp":
        shape = _own_kind(shape, checkpoint.decoder_config, weights)
        head = MTPHead(shape, tables, settings.drafts, checkpoint.decoder_config.qk_norm, generator)
    elif settings.method == "eagle3":
        ids = draft_vocabulary(answers, settings.draft_vocabulary, shape.vocab)
        head = Eagle3Head(shape, tables, ids, settings.drafts, generator)
    else:
        ids = draft_vocabulary(answers, settings.draft_vocabulary, shape.vocab)
        mask = unused_token(answers, tokenizer, checkpoint.eos_token_ids)
        own = ids if len(ids) < shape.vocab else None
        head = DFlashHead(shape, tables, own, settings.drafts, settings.layers, mask, generator)
    blocks = settings.method == "dflash"
    known = last_layers(checkpoint, weights, settings.layers if blocks else 1, settings.method != "eagle3")
    if known:
        head.warm_start(known)
    return head


def tables_of(checkpoint: Checkpoint, weights: DecoderWeights) -> TargetTables:
    config = checkpoint.decoder_config
    embedding = weights.embedding.dequantize()[: config.vocab]
    head = embedding if weights.head is weights.embedding else weights.head.dequantize()[: config.vocab]
    return TargetTables(embedding * config.embedding_scale, head, config.logits_soft_cap)


def draft_vocabulary(answers: Sequence[Answer], size: int, vocab: int) -> Tensor:
    """int64 [size], or [vocab] if that is less, ascending: the most frequent tokens of the answers, then those of the
    prompts, then the lowest."""
    counts = Counter[int]()
    prompts = Counter[int]()
    for one in answers:
        counts.update(one.tokens)
        prompts.update(one.prompt)
    order = sorted(range(vocab), key=lambda token: (-counts[token], -prompts[token], token))
    return torch.tensor(sorted(order[:size]))


def unused_token(answers: Sequence[Answer], tokenizer: Tokenizer, ends: Sequence[int]) -> int:
    """A special token that no prompt or answer has. Raises ConfigError if there is none."""
    used = {token for one in answers for token in (*one.prompt, *one.tokens)} | {*ends, *tokenizer.eos_token_ids}
    free = [token for token in tokenizer.special_ids if token not in used]
    if not free:
        raise ConfigError("--method dflash needs a special token that no text has, and the tokenizer has none")
    return max(free)


def _own_kind(shape: HeadShape, target: DecoderConfig, weights: DecoderWeights) -> HeadShape:
    """The shape with the target's rotation. Raises ConfigError for a target whose layers are more than Llama's with
    norms of queries and keys."""
    if not _is_llama(target):
        raise ConfigError(
            f"--method mtp: its layer is of the model's own kind, and that of {target.family} cannot be trained yet: "
            "choose eagle3 or dflash"
        )
    return replace(shape, rope=target.ropes[target.layers[-1].rope], factors=weights.rope_factors)


def _is_llama(config: DecoderConfig) -> bool:
    """Up to norms of queries and keys."""
    biased = config.qkv_bias or config.output_bias or config.mlp_bias
    special = config.sandwich_norm or config.attention_soft_cap is not None or config.attention_scale is not None
    return config.layers[-1].dense and config.activation == "silu" and not biased and not special


def last_layers(
    checkpoint: Checkpoint, weights: DecoderWeights, count: int, with_norms: bool
) -> Sequence[Mapping[str, Tensor]]:
    """The tensors of the target's last `count` layers, by a Llama checkpoint's names, each with the last norm as
    `norm.weight`; of fewer, if before them there is none or one with experts. Empty if they are no Llama layers, or
    have norms of queries and keys while the head's have none."""
    config = checkpoint.decoder_config
    if not _is_llama(config) or (config.qk_norm and not with_norms):
        return []
    dense = len(list(takewhile(lambda layer: layer.dense, config.layers[::-1])))
    layers = weights.layers[-min(count, dense) :]
    return [{**_layer(config, layer), "norm.weight": weights.norm} for layer in layers]


def _layer(config: DecoderConfig, layer: LayerWeights) -> dict[str, Tensor]:
    q, kv = config.num_q_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv = layer.qkv.dequantize()
    parts = {"q": qkv[:q], "k": qkv[q : q + kv], "v": qkv[q + kv :]}
    gate, up = layer.gate_up.dequantize().chunk(2)
    norms = {"q": layer.q_norm, "k": layer.k_norm}
    return {
        **{f"self_attn.{name}_norm.weight": norm for name, norm in norms.items() if norm is not None},
        **{f"self_attn.{name}_proj.weight": part for name, part in parts.items()},
        "self_attn.o_proj.weight": layer.output.dequantize(),
        "mlp.gate_proj.weight": gate,
        "mlp.up_proj.weight": up,
        "mlp.down_proj.weight": layer.down.dequantize(),
        "input_layernorm.weight": layer.input_norm,
        "post_attention_layernorm.weight": layer.mlp_norm,
    }
