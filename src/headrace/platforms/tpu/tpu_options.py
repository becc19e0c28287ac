"""The options of `Platform.open`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headrace.errors import PlatformError

__all__ = ["TpuOptions", "read_tpu_options"]

_CHOICES = {"dtype": (None, "float32", "bfloat16"), "kernels": ("auto", "pallas", "interpret", "xla")}


@dataclass(frozen=True, slots=True)
class TpuOptions:
    """What a user may choose."""

    dtype: str | None = None
    """Type of activations and of products. None: as the model's embedding is stored, bfloat16 where that is quantised."""
    kernels: str = "auto"
    """`pallas`; `xla`: operators that the compiler makes alone; `interpret`: the Pallas kernels as plain XLA, for tests; `auto`: the
    first where the chip runs them, else the second."""


def read_tpu_options(given: Mapping[str, Any]) -> TpuOptions:
    """Raises PlatformError that names the option and what it may be."""
    known = [field.name for field in fields(TpuOptions)]
    for name, value in given.items():
        if name not in known:
            raise PlatformError(f"tpu: unknown option {name!r}; there are {', '.join(known)}")
        if value not in _CHOICES[name]:
            able = ", ".join(str(choice) for choice in _CHOICES[name])
            raise PlatformError(f"tpu: option {name} is {value!r}: choose one of {able}")
    return TpuOptions(**given)
