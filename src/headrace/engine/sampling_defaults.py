"""The sampling parameters that a checkpoint recommends, for requests that state none of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.checkpoints.files import optional_json
from headrace.errors import CheckpointError, InvalidRequest
from headrace.sampling import SamplingParams

__all__ = ["describe", "sampling_defaults"]

_FILE = "generation_config.json"
_NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_GGUF = {
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""The last parts of a GGUF's keys `general.sampling.*`."""


def sampling_defaults(path: Path, metadata: Mapping[str, Any]) -> dict[str, int | float]:
    """Values by the names of `SamplingParams`, of generation_config.json or of a GGUF's `general.sampling.*`; none if
    the checkpoint recommends none. Lengths of answers are left to requests.

    Raises CheckpointError for a value that cannot be one of that parameter.
    """
    if path.is_dir():
        file = path / _FILE
        values = optional_json(file)
        found = {name: values[name] for name in _NAMES if values.get(name) is not None}
    else:
        file = path
        keys = {name: f"general.sampling.{key}" for key, name in _GGUF.items()}
        # Stored as 32-bit floats: 0.6 is 0.60000002384.
        found = {name: _short(metadata[key]) for name, key in keys.items() if key in metadata}
    try:
        SamplingParams(**found)
    except InvalidRequest as error:
        raise CheckpointError(f"sampling default: {error}; --generation-config none ignores it", str(file)) from None
    return found


def describe(defaults: Mapping[str, int | float]) -> str:
    """`temperature 0.6, top_p 0.95`."""
    return ", ".join(f"{name} {value:g}" for name, value in defaults.items())


def _short(value: Any) -> Any:
    return float(f"{value:.7g}") if isinstance(value, float) else value
