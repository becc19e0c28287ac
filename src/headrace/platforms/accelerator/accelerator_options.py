"""The options of `Platform.open` that accelerators share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from headrace.errors import PlatformError

__all__ = ["TRITON", "AcceleratorOptions", "read_accelerator_options"]

TRITON = "triton"
_REFUSED = {"threads": "the work runs on the device; leave it out"}
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class AcceleratorOptions:
    """What a user may choose of an accelerator."""

    dtype: str | None = None
    """Type of activations. None: each model's own, as its embedding is stored."""
    graph_tokens: int = 512
    """Steps of up to so many tokens are captured and replayed; larger ones keep the device busy without. 0: none."""
    batch_invariant: bool = True
    """One tile size for every batch: a row's bits don't depend on its company."""
    operators: str = TRITON
    """Whose form of an operator comes first: Triton's, or that of a library of the platform's `providers`, where it has one."""
    rank: int = 0
    world_size: int = 1
    rendezvous: str = ""
    """Where the ranks meet: `tcp://host:port` or `file:///path`."""


def read_accelerator_options(
    platform: str,
    given: Mapping[str, Any],
    defaults: AcceleratorOptions = AcceleratorOptions(),
    providers: Sequence[str] = (),
) -> AcceleratorOptions:
    """Raises PlatformError that names the platform, the option and what it may be. `providers`: what `operators` may name
    beside triton."""
    known = [field.name for field in fields(AcceleratorOptions)]
    for name in sorted(given):
        if name in _REFUSED:
            raise PlatformError(f"{platform}: option {name} does not apply: {_REFUSED[name]}")
        if name not in known:
            raise PlatformError(f"{platform}: unknown option {name!r}; there are {', '.join(known)}")
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
