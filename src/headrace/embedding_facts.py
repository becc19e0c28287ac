"""Embeddings, a text's pooled hidden states: what a checkpoint declares about them, and their last steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

__all__ = ["NO_EMBEDDINGS", "POOLINGS", "EmbeddingFacts", "Floats", "Pooling", "cosine", "finished", "head_outputs"]

Pooling = Literal["last", "mean"]
"""The hidden state of the last token, or the mean over all tokens."""
POOLINGS: tuple[Pooling, ...] = ("last", "mean")
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class EmbeddingFacts:
    """A model's facts for embeddings and scores. Plain data that crosses between processes."""

    size: int
    """Values of a hidden state; 0: the platform computes no values."""
    pooling: Pooling | None = None
    """The checkpoint's own; None: it is no embedding model, and the last token is pooled."""
    normalize: bool = True
    """Vectors have length 1."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that stand before an input, by name."""
    default_prompt: str | None = None
    """The name of the prompt of inputs that name none."""
    generates: bool = True
    """False: the checkpoint has no output matrix."""
    labels: tuple[str, ...] = ()
    """Names of the classes of a classification head."""
    head: bytes = b""
    """float32 [labels, size], little-endian: the head, which reads the hidden state of the last token."""
    head_bias: bytes = b""


NO_EMBEDDINGS = EmbeddingFacts(0)


def finished(pooled: bytes, dimensions: int | None, normalize: bool) -> Floats:
    """The vector of pooled hidden states: its first `dimensions` values, then divided by its length."""
    vector = np.frombuffer(pooled, "<f4")[:dimensions]
    if not normalize:
        return vector.astype(np.float32)
    wide = vector.astype(np.float64)
    length = float(np.sqrt(np.sum(wide * wide)))
    return (wide / length if length else wide).astype(np.float32)


def cosine(one: Floats, other: Floats) -> float:
    """The cosine of the angle between two vectors; 0 if one of them is 0."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    lengths = float(np.sqrt(np.sum(a * a) * np.sum(b * b)))
    return float(np.sum(a * b) / lengths) if lengths else 0.0


def head_outputs(pooled: bytes, facts: EmbeddingFacts) -> npt.NDArray[np.float64]:
    """float64 [labels]: the outputs of the classification head."""
    state = np.frombuffer(pooled, "<f4").astype(np.float64)
    weight = np.frombuffer(facts.head, "<f4").astype(np.float64).reshape(len(facts.labels), -1)
    outputs: npt.NDArray[np.float64] = np.sum(weight * state, axis=1)
    return outputs + np.frombuffer(facts.head_bias, "<f4") if facts.head_bias else outputs
