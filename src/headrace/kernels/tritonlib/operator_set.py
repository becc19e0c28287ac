"""The Triton operators as callables that a platform binds."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.kernels.tritonlib.launch_config import LaunchConfig

__all__ = ["OPERATORS", "TritonOperator", "operators"]

OPERATORS: tuple[str, ...] = (
    "resolve_tokens", "embedding", "rms_norm", "add_rms_norm", "linear", "rotary_cache", "attention",
    "gated_activation", "logits", "sample", "mla", "moe", "own_experts", "mix_experts", "gated_delta_rule",
    "mamba2_scan", "causal_conv1d", "ngram", "place", "accept", "read_drafts", "shift",
)  # fmt: skip
"""The operators with a Triton form: all of `registry.OPS` and most of `registry.OPTIONAL`."""
_PACKERS = {"linear": "linear", "logits": "linear", "moe": "moe", "own_experts": "moe"}
"""The operator whose `pack` repacks the weights, by operator."""


class TritonOperator:
    """A callable with the operator's keywords, its `tag` for `doctor`, and `pack` if it repacks weights."""

    tag = "triton"

    def __init__(self, function: Callable[..., Any], pack: Callable[[Any], None] | None) -> None:
        self._function = function
        self.pack = pack

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def operators(config: LaunchConfig) -> dict[str, TritonOperator]:
    """All operators by name, for `config`. Imports triton: raises ImportError if it is not installed."""
    found = {}
    for name in OPERATORS:
        function, packer = getattr(_module(name), name), _PACKERS.get(name)
        pack = None if packer is None else partial(_module(packer).pack, config=config)
        found[name] = TritonOperator(partial(function, config=config), pack)
    return found


def _module(operator: str) -> Any:
    return importlib.import_module(f"headrace.kernels.{operator}.triton")
