"""The options of `Platform.open` that accelerators share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from headrace.errors import PlatformError
from headrace.platforms.option_errors import unknown_option

__all__ = ["TRITON", "AcceleratorOptions", "read_accelerator_options"]

TRITON = "triton"
_REFUSED = {"threads": "the work runs on the device; leave it out"}
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class AcceleratorOptions:
    """The options of one accelerator."""

    dtype: str | None = None
    """Dtype of activations. None: the dtype of the model's embedding."""
    graph_tokens: int = 512
    """Steps of up to so many tokens are captured and replayed; larger ones keep the device busy without it. 0: none."""
    batch_invariant: bool = True
    """One tile size for every batch: a row's bits don't depend on the other rows of the batch."""
    operators: str = TRITON
    """Which operators are preferred: Triton's, or those of one of the platform's `providers` that has them."""
    rank: int = 0
    world_size: int = 1
    rendezvous: str = ""
    """The rendezvous of the ranks: `tcp://host:port` or `file:///path`."""


def read_accelerator_options(
    platform: str,
    given: Mapping[str, Any],
    defaults: AcceleratorOptions = AcceleratorOptions(),
    providers: Sequence[str] = (),
) -> AcceleratorOptions:
    """Check the options that the user gave. Raises PlatformError that names the platform, the option and its valid
    values.

    `providers`: the values of `operators` besides triton.
    """
    known = [field.name for field in fields(AcceleratorOptions)]
    for name in sorted(given):
        if name in _REFUSED:
            raise PlatformError(f"{platform}: option {name} does not apply: {_REFUSED[name]}")
        if name not in known:
            raise unknown_option(platform, name, known)
    options = replace(defaults, **given)
    if options.dtype not in (None, *_DTYPES):
        raise PlatformError(f"{platform}: option dtype is {options.dtype!r}: choose one of {', '.join(_DTYPES)}")
    if options.operators not in (TRITON, *providers):
        able = ", ".join((TRITON, *providers))
        raise PlatformError(f"{platform}: option operators is {options.operators!r}: choose one of {able}")
    if options.batch_invariant not in (0, 1):
        raise PlatformError(f"{platform}: option batch_invariant is {options.batch_invariant!r}: give 0 or 1")
    _count(platform, "graph_tokens", options.graph_tokens, 0)
    return options


def _count(platform: str, name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PlatformError(f"{platform}: option {name} is {value!r}: give a count of at least {least}")
