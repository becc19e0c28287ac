"""Values for the options that the user left open, from the device's capabilities and the model's facts.

`resolve` is a pure function: the same inputs give the same result, and every choice has a reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import DRAFT, Config
from headrace.errors import ConfigError, NoRoom
from headrace.model_needs import check_needs
from headrace.types import Capabilities, KVLayout, LayerKV

__all__ = ["ModelFacts", "Resolved", "resolve"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts about a model that `resolve` needs."""

    layers: tuple[LayerKV, ...]
    max_position: int
    vocab_size: int
    weight_dtype: str
    """The dtype of the weights as stored: `float32`, `bfloat16`, `float16` or `quantized`."""
    attention: tuple[frozenset[str], ...] = ()
    """The features of attention that each layer needs, from `types.ATTENTION_FEATURES`. Head sizes are in `layers`."""
    operators: tuple[frozenset[str], ...] = ()
    """The optional operators that each layer needs."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The configuration with a value for every option."""

    dtype: str
    """`float32`: exact arithmetic. `bfloat16`, `float16`: that arithmetic. `quantized`: the format's own fast path."""
    kv_layout: KVLayout
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    prefix_caching: bool


def resolve(
    config: Config,
    capabilities: Capabilities,
    facts: ModelFacts,
    free_bytes: int,
    device: str = "this device",
    beside: KVLayout | None = None,
) -> tuple[Resolved, list[str]]:
    """Choose values for the options that the user left open. Returns the values and one line with the reason of each
    choice. `device`: its name, for errors. `beside`: the layout of another cache, a draft model's, that has as many
    blocks and shares the memory.

    Raises ConfigError if an explicit choice cannot be met; it is never replaced silently. Raises UnsupportedModel if a
    layer needs what the device lacks.
    """
    check_needs(facts.layers, facts.attention, facts.operators, capabilities, device)
    reasons: list[str] = []
    dtype = _dtype(config, capabilities, facts, reasons)
    layout = KVLayout(facts.layers, _block_size(config, capabilities), _kv_dtype(config, capabilities, dtype, reasons))
    max_len = config.model.max_model_len or facts.max_position
    if max_len > facts.max_position:
        raise ConfigError(
            f"max_model_len {max_len} exceeds the model's own {facts.max_position} positions: choose at most that"
        )
    blocks = config.cache.num_blocks or _num_blocks(
        config, capabilities, (layout, *([] if beside is None else [beside])), max_len, free_bytes, reasons
    )
    longest = (blocks - 1) * layout.block_size
    if longest < max_len and config.model.max_model_len is None:
        reasons.append(f"max_model_len {longest}: the KV cache of {blocks} blocks holds no more")
        max_len = longest
    budget = min(config.scheduler.max_num_batched_tokens, capabilities.max_tokens_per_step)
    return (
        Resolved(dtype, layout, blocks, max_len, config.scheduler.max_num_seqs, budget, config.cache.prefix_caching),
        reasons,
    )


def _dtype(config: Config, capabilities: Capabilities, facts: ModelFacts, reasons: list[str]) -> str:
    wanted = config.model.dtype
    if wanted != "auto":
        if wanted not in capabilities.dtypes:
            raise ConfigError(f"dtype {wanted}: this device computes in {', '.join(sorted(capabilities.dtypes))}")
        return wanted
    native = "quantized" if config.model.quantize else facts.weight_dtype
    if native in capabilities.dtypes:
        reasons.append(f"dtype {native}: the weights' own form, which the device computes in")
        return native
    reasons.append(f"dtype float32: the device has no native arithmetic for {native} weights")
    return "float32"


def _kv_dtype(config: Config, capabilities: Capabilities, dtype: str, reasons: list[str]) -> str:
    wanted = config.cache.kv_dtype
    if wanted != "auto":
        if wanted not in capabilities.kv_dtypes:
            raise ConfigError(f"kv_dtype {wanted}: this device stores {', '.join(sorted(capabilities.kv_dtypes))}")
        return wanted
    for choice in (dtype, "bfloat16", "float16"):
        if choice in capabilities.kv_dtypes:
            reasons.append(f"kv_dtype {choice}: follows dtype {dtype}")
            return choice
    return "float32"


def _block_size(config: Config, capabilities: Capabilities) -> int:
    size = config.cache.block_size
    if size is not None and size not in capabilities.block_sizes:
        raise ConfigError(f"block_size {size}: this device supports {', '.join(map(str, capabilities.block_sizes))}")
    return size or capabilities.block_sizes[0]


def _num_blocks(
    config: Config,
    capabilities: Capabilities,
    layouts: tuple[KVLayout, ...],
    max_len: int,
    free_bytes: int,
    reasons: list[str],
) -> int:
    """Enough blocks for every slot at full length, within the available memory. Each layout has so many."""
    useful = config.scheduler.max_num_seqs * -(-max_len // layouts[0].block_size) + 1
    share = config.cache.kv_share or (0.4 if capabilities.host_memory else 0.9)
    budget = config.cache.kv_memory or int(free_bytes * share)
    size = sum(layout.padded(capabilities.kv_lanes).bytes_per_block for layout in layouts)
    blocks = min(useful, budget // size)
    if blocks < 2:
        # A number that was given does not change by waiting.
        kind = NoRoom if config.cache.kv_memory is None else ConfigError
        raise kind(
            f"the KV cache needs {2 * size} bytes for two blocks, but {budget} are available: "
            "raise kv_memory, or lower max_model_len or the KV dtype"
        )
    if config.cache.kv_memory is None:
        free = f"{share:.0%} of {free_bytes / 2**30:.1f} GiB free"
        reasons.append(f"{blocks} KV blocks: {free}, at most what all slots can use")
    if len(layouts) > 1:
        method = config.scheduler.draft_method or DRAFT
        drafter = "draft model" if method == DRAFT else f"{method} drafter"
        reasons.append(f"{blocks} KV blocks of the {drafter}, in the same memory")
    if size > sum(layout.bytes_per_block for layout in layouts):
        reasons.append(f"{size} bytes a KV block: rows are padded to {capabilities.kv_lanes} values")
    return blocks
