"""The normalized configuration of a decoder: the same fields for a config.json and for a GGUF's metadata."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from headrace.errors import CheckpointError
from headrace.models.moe import MoE
from headrace.settings import MOST_POSITIONS
from headrace.types import LayerKV

__all__ = ["Activation", "DecoderConfig", "LayerConfig", "Rope", "check_decoder"]

Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding of some layers (RoFormer, arXiv:2104.09864). Angles are position * frequency."""

    theta: float
    rotary_dim: int
    """Leading dimensions of a head that are rotated; even."""
    kind: Literal["default", "linear", "llama3", "yarn", "none"] = "default"
    """`none`: no rotation (NoPE layers)."""
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """Factor of cos and sin; None: 1, or 0.1 ln(factor) + 1 for yarn (`magnitude`)."""
    truncate: bool = True
    """yarn: round the ends of the ramp outwards to integers."""

    @property
    def magnitude(self) -> float:
        """The method's own factor of cos and sin (arXiv:2309.00071, section 3.4)."""
        return 0.1 * math.log(self.factor) + 1.0 if self.kind == "yarn" and self.factor > 1 else 1.0

    def context(self, stated: int) -> int:
        """The context length after scaling, for a model whose settings state `stated` positions.

        With `linear`, the settings state the positions before scaling, unless they give the original ones separately.
        """
        if self.kind not in ("linear", "yarn"):
            return stated
        original = self.original_max_position or (stated if self.kind == "linear" else 0)
        return max(stated, int(min(original * self.factor, MOST_POSITIONS)))


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """The settings that may differ from layer to layer."""

    rope: int = 0
    """Index into `DecoderConfig.ropes`."""
    window: int | None = None
    """Sliding window in tokens; None: full attention."""
    dense: bool = True
    """Whether the layer has a plain gated MLP; if not, it has the experts of `DecoderConfig.moe`."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """A decoder: pre-norm blocks of grouped-query attention and a gated MLP or a mixture of experts."""

    family: str
    hidden: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    layers: tuple[LayerConfig, ...]
    ropes: tuple[Rope, ...]
    max_position: int
    norm_eps: float
    activation: Activation = "silu"
    qk_norm: bool = False
    """RMS norm of every query and key head before the rotation."""
    sandwich_norm: bool = False
    """The outputs of attention and MLP are normalized before they are added to the residual."""
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    """Factor of the attention scores; None: head_dim ** -0.5."""
    attention_soft_cap: float | None = None
    logits_soft_cap: float | None = None
    tied: bool = False
    """The output matrix is the embedding."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    moe: MoE | None = None
    draft_layers: int = 0
    """Extra layers at the end of the checkpoint that draft further tokens: they are not read."""

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def kv_layers(self) -> tuple[LayerKV, ...]:
        """The KV cache shape of each layer."""
        return tuple(LayerKV(self.num_kv_heads, self.head_dim, layer.window) for layer in self.layers)

    @property
    def attention_needs(self) -> tuple[frozenset[str], ...]:
        """The attention features that each layer requires, by their names in `types.ATTENTION_FEATURES`."""
        common = {"gqa"} if self.num_kv_heads != self.num_q_heads else set[str]()
        common |= {"soft_cap"} if self.attention_soft_cap is not None else set()
        return tuple(
            frozenset(common | ({"sliding_window"} if layer.window is not None else set())) for layer in self.layers
        )

    @property
    def operator_needs(self) -> tuple[frozenset[str], ...]:
        """The optional operators that each layer requires. (A fused one that can be composed is no need.)"""
        moe = self.moe
        if moe is None:
            return (frozenset(),) * len(self.layers)
        needs = {"moe"} if moe.ranks == 1 else {"own_experts", "mix_experts"}
        needs |= {"moe"} if moe.shared_gated else set()
        return tuple(frozenset(set() if layer.dense else needs) for layer in self.layers)


def check_decoder(config: DecoderConfig) -> None:
    """Check the sizes of any family. Raises CheckpointError if they contradict each other or are too large."""
    for rope in config.ropes:
        if rope.rotary_dim < 2 or rope.rotary_dim % 2 or rope.rotary_dim > config.head_dim:
            raise CheckpointError(
                f"{rope.rotary_dim} dimensions of a head are rotated: expected an even number, "
                f"at most the head's {config.head_dim}"
            )
    widest = max(config.num_q_heads * config.head_dim, config.vocab, config.intermediate)
    if widest >= 1 << 31:
        raise CheckpointError(
            f"{config.num_q_heads} heads of {config.head_dim}: a row of more than 2^31 values is not supported"
        )
