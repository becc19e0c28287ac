"""The options of `Platform.open`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headrace.errors import PlatformError
from headrace.platforms.option_errors import unknown_option

__all__ = ["TpuOptions", "read_tpu_options"]

_CHOICES = {"dtype": (None, "float32", "bfloat16"), "kernels": ("auto", "pallas", "interpret", "xla")}


@dataclass(frozen=True, slots=True)
class TpuOptions:
    """The options of one TPU."""

    dtype: str | None = None
    """Dtype of activations and products. None: the dtype of the model's embedding, bfloat16 if that is quantized."""
    kernels: str = "auto"
    """`pallas`: Pallas kernels. `xla`: operators that the compiler makes alone. `interpret`: the Pallas kernels as
    plain XLA, for tests. `auto`: `pallas` if the chip runs them, otherwise `xla`."""


def read_tpu_options(given: Mapping[str, Any]) -> TpuOptions:
    """Check the options that the user gave. Raises PlatformError that names the option and its valid values."""
    known = [field.name for field in fields(TpuOptions)]
    for name, value in given.items():
        if name not in known:
            raise unknown_option("tpu", name, known)
        if value not in _CHOICES[name]:
            raise PlatformError(f"tpu: option {name} is {value!r}: choose one of {', '.join(map(str, _CHOICES[name]))}")
    return TpuOptions(**given)
