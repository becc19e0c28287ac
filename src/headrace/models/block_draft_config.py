"""The normalized configuration of a block drafter: DFlash (arXiv:2602.06036), DFlash2 and DSpark (arXiv:2607.05147).

A block drafter guesses several tokens in one pass. Its layers attend to entries made of the target's hidden states at
every position of the text, and to a block of rows: the last token (the *anchor*), then masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from headrace.errors import ConfigError
from headrace.models.config import DecoderConfig
from headrace.types import LayerKV

__all__ = [
    "BLOCK_METHODS",
    "BlockConvolution",
    "BlockDraftConfig",
    "Candidates",
    "Markov",
    "Method",
    "check_block_draft",
]

Method = Literal["dflash", "dspark"]
BLOCK_METHODS: tuple[Method, ...] = get_args(Method)
"""Methods of `--speculate` whose checkpoints draft blocks."""
_CHOICES = 128
"""More likely tokens than this are not looked at: a lower one is hardly ever drawn."""


@dataclass(frozen=True, slots=True)
class BlockConvolution:
    """DFlash2: a causal convolution over the rows of a block, before and after each attention and each MLP."""

    taps: int
    group: int
    """Channels that share the part of the kernel that depends on the input."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """DFlash2: the selector, which scores pairs of candidates of neighbouring positions."""

    rank: int
    count: int
    """The most likely tokens of each position that are its candidates."""


@dataclass(frozen=True, slots=True)
class Markov:
    """DSpark: the head that corrects a position's logits by the token before it."""

    kind: Literal["vanilla", "gated", "rnn"]
    rank: int
    count: int | None = None
    """Only so many of the most likely tokens of a position are corrected and may be chosen; None: no limit."""


@dataclass(frozen=True, slots=True)
class BlockDraftConfig:
    """A block drafter. `decoder` describes its layers; `decoder.vocab` is the target's."""

    method: Method
    decoder: DecoderConfig
    features: tuple[int, ...]
    """Which hidden states of the target it reads: the sum after so many layers, 0 for the embedding."""
    target_hidden: int
    rows: int
    """Rows of a block, the anchor's among them."""
    anchored: bool
    """Each row predicts the token after its own position; otherwise the one at its position, and the anchor's none."""
    causal: tuple[bool, ...]
    """By layer: whether a row sees only the rows of the block before it."""
    mask_token: int | None
    """The row of the embedding that stands for a mask; None: the checkpoint has a vector for it."""
    draft_vocab: int | None = None
    """The tokens that it may guess, if these are fewer than the target's."""
    logit_scale: float = 1.0
    convolution: BlockConvolution | None = None
    candidates: Candidates | None = None
    markov: Markov | None = None
    confidence: bool = False
    """It estimates the probability that each of its tokens is accepted."""
    confidence_markov: bool = False
    """The estimate reads the embedding of the token before, too."""
    target_layers: int | None = None
    """The number of the target's layers, as its authors state it."""
    target_name: str = ""

    @property
    def drafts(self) -> int:
        """Tokens that one block guesses."""
        return self.rows if self.anchored else self.rows - 1

    @property
    def independent(self) -> bool:
        """Each token of a block is chosen without its neighbours: a device that samples can choose all of them in the
        same pass."""
        return self.candidates is None and self.markov is None

    @property
    def chained(self) -> bool:
        """The token before adds a product of its own to the logits of each token, whatever came before that: a device
        that samples can choose one after the other, all of a block behind one pass."""
        return self.markov is not None and not self.undrawable

    @property
    def undrawable(self) -> str:
        """Why a device that samples cannot choose the tokens; empty if it can."""
        if self.candidates is not None:
            return "a selector chooses tokens of a block in pairs"
        if self.markov is not None and self.markov.kind != "vanilla":
            return f"a Markov head of kind {self.markov.kind} corrects its tokens"
        if self.markov is not None and self.markov.count is not None:
            return f"only the {self.markov.count} likeliest tokens of each place are corrected"
        return ""

    @property
    def choices(self) -> int:
        """The likely tokens of each position among which a token is chosen."""
        wanted = [_CHOICES, self.draft_vocab or self.decoder.vocab]
        wanted += [] if self.candidates is None else [self.candidates.count]
        wanted += [] if self.markov is None or self.markov.count is None else [self.markov.count]
        return min(wanted)

    @property
    def kv_layers(self) -> tuple[LayerKV, ...]:
        """The KV cache shape of each layer."""
        decoder = self.decoder
        return tuple(LayerKV(decoder.num_kv_heads, decoder.head_dim, window) for window in self.windows())

    def windows(self) -> tuple[int | None, ...]:
        """The attention window of each layer. Rows of a block that see each other are computed as if all were at its
        last position, and a window is counted from the anchor, as in training."""
        return tuple(
            layer.window if layer.window is None or causal else layer.window + self.rows
            for layer, causal in zip(self.decoder.layers, self.causal, strict=True)
        )


def check_block_draft(config: BlockDraftConfig, target: DecoderConfig, path: str) -> None:
    """Raises ConfigError that names the setting if the drafter was not made for such a target."""

    def refuse(key: str, found: object, wanted: object) -> None:
        raise ConfigError(
            f"--speculate {config.method}:{path}: {key} is {found}, and the target's is {wanted}: it was trained for "
            "another model"
        )

    layers = len(target.layers)
    if config.decoder.vocab != target.vocab:
        refuse("vocab_size", config.decoder.vocab, target.vocab)
    if config.target_hidden != target.hidden:
        refuse("target_hidden_size", config.target_hidden, target.hidden)
    if config.target_layers not in (None, layers):
        refuse("num_target_layers", config.target_layers, layers)
    if max(config.features) > layers:
        raise ConfigError(
            f"--speculate {config.method}:{path}: it reads the hidden states after layer {max(config.features)}, and "
            f"the target has {layers} layers: it was trained for another model"
        )
