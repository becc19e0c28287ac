"""The operators of a TPU: those that XLA compiles alone, and those that call a Pallas kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from headrace.kernels.accept.reference import accept
from headrace.kernels.attention.static import attention
from headrace.kernels.block_conv.reference import block_conv
from headrace.kernels.correct_logits.reference import correct_logits
from headrace.kernels.gated_activation.static import gated_activation
from headrace.kernels.gather_blocks.reference import gather_blocks
from headrace.kernels.linear import static as dense
from headrace.kernels.load_features.reference import load_features
from headrace.kernels.named_logprobs.reference import named_logprobs
from headrace.kernels.ngram.reference import ngram
from headrace.kernels.pallaslib import torch_operators as pallas
from headrace.kernels.place.reference import place
from headrace.kernels.read_drafts.reference import read_drafts
from headrace.kernels.resolve_tokens.static import resolve_tokens
from headrace.kernels.rms_norm.static import add_rms_norm, rms_norm
from headrace.kernels.rotary_cache.static import rotary_cache
from headrace.kernels.sample.static import sample
from headrace.kernels.scatter_blocks.static import scatter_blocks
from headrace.kernels.shift.reference import shift
from headrace.kernels.store_features.static import store_features
from headrace.kernels.take_rows.reference import take_rows
from headrace.kernels.weight import Weight
from headrace.kernels.widen_logits.reference import widen_logits

__all__ = ["XlaOperator", "operators"]

# fmt: off
_PLAIN: tuple[Callable[..., Any], ...] = (
    accept, add_rms_norm, attention, block_conv, correct_logits, gated_activation, gather_blocks, load_features,
    named_logprobs, ngram, place, read_drafts, resolve_tokens, rms_norm, rotary_cache, sample, scatter_blocks, shift,
    store_features, take_rows, widen_logits,
)
"""Those that know no dtype, each by the name of its operator."""
# fmt: on


class XlaOperator:
    """A callable with the operator's arguments, its `tag` for `doctor`, and `pack` if it prepares weights."""

    def __init__(self, tag: str, function: Callable[..., Any], pack: Callable[[Weight], None] | None = None) -> None:
        self.tag = tag
        self._function = function
        self.pack = pack

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def operators(dtype: str | None, kernels: str, call: Callable[..., Any]) -> Mapping[str, XlaOperator]:
    """The operators by name. `kernels`: `xla`, `pallas` or `interpret`; `call` adds a JAX function to the graph.
    `dtype`: of activations and products; None: the dtype of each table and matrix, bfloat16 if it is quantized."""
    chosen = None if dtype is None else getattr(torch, dtype)
    pack = partial(dense.pack, dtype=chosen)
    table = {function.__name__: XlaOperator("xla", function) for function in _PLAIN} | {
        "embedding": XlaOperator("xla", partial(dense.embedding, dtype=chosen)),
        "linear": XlaOperator("xla", partial(dense.linear, dtype=chosen), pack),
        "logits": XlaOperator("xla", partial(dense.logits, dtype=chosen), pack),
    }
    if kernels == "xla":
        return table
    paged = pallas.operators(call, chosen, kernels == "interpret")
    return table | {name: XlaOperator("pallas", own, getattr(own, "pack", None)) for name, own in paged.items()}
