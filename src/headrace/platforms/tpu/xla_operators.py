"""The operators of a TPU: forms that XLA compiles alone, and those that call a Pallas kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from headrace.kernels.attention.static import attention
from headrace.kernels.gated_activation.static import gated_activation
from headrace.kernels.linear import static as dense
from headrace.kernels.pallaslib import torch_operators as pallas
from headrace.kernels.resolve_tokens.static import resolve_tokens
from headrace.kernels.rms_norm.static import add_rms_norm, rms_norm
from headrace.kernels.rotary_cache.static import rotary_cache
from headrace.kernels.sample.static import sample
from headrace.kernels.weight import Weight

__all__ = ["XlaOperator", "operators"]


class XlaOperator:
    """A callable with the operator's own keywords, its `tag` for `doctor`, and `pack` where it prepares weights."""

    def __init__(self, tag: str, function: Callable[..., Any], pack: Callable[[Weight], None] | None = None) -> None:
        self.tag = tag
        self._function = function
        self.pack = pack

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def operators(dtype: str | None, kernels: str, call: Callable[..., Any]) -> Mapping[str, XlaOperator]:
    """`kernels`: `xla`, `pallas` or `interpret`; `call` puts a JAX function into the graph. `dtype`: of activations and products; None: each table's and matrix's own, bfloat16 where it is quantised."""
    chosen = None if dtype is None else getattr(torch, dtype)
    pack = partial(dense.pack, dtype=chosen)
    table = {
        "resolve_tokens": XlaOperator("xla", resolve_tokens),
        "embedding": XlaOperator("xla", partial(dense.embedding, dtype=chosen)),
        "rms_norm": XlaOperator("xla", rms_norm),
        "add_rms_norm": XlaOperator("xla", add_rms_norm),
        "linear": XlaOperator("xla", partial(dense.linear, dtype=chosen), pack),
        "rotary_cache": XlaOperator("xla", rotary_cache),
        "attention": XlaOperator("xla", attention),
        "gated_activation": XlaOperator("xla", gated_activation),
        "logits": XlaOperator("xla", partial(dense.logits, dtype=chosen), pack),
        "sample": XlaOperator("xla", sample),
    }
    if kernels == "xla":
        return table
    paged = pallas.operators(call, chosen, kernels == "interpret")
    return table | {name: XlaOperator("pallas", own, getattr(own, "pack", None)) for name, own in paged.items()}
