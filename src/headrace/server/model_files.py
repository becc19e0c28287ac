"""Facts about a model from the names, sizes and headers of its files, without loading it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.checkpoints.gguf_header import map_gguf
from headrace.errors import HeadraceError
from headrace.quant.level_names import FLOAT_NAMES, config_level, gguf_level

__all__ = ["ModelFiles", "read_files"]

_MOST_JSON = 1 << 20
_WEIGHTS = (".safetensors", ".gguf")
_UNKNOWN = "unknown"
_GGUF_FLOATS = {0: 4.0, 1: 2.0, 32: 2.0}
"""Bytes of a weight by `general.file_type` of GGUF, of the types that are not quantised: F32, F16, BF16."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    size: int = 0
    """Bytes of the weights."""
    format: str = _UNKNOWN
    """`gguf` or `safetensors`."""
    architecture: str = _UNKNOWN
    context: int | None = None
    """The longest context that the model was made for."""
    stored_bytes: float | None = None
    """Bytes of a weight; None if the weights are quantised or it is not known."""
    quantised: bool = False
    """As far as it is known: the weights are stored in a quantised form."""
    label: str = ""
    """Number of parameters, as a GGUF file writes it."""
    level: str = _UNKNOWN
    """How the weights are stored, as users know it: `Q4_K_M`, `FP8`, `BF16`."""


def read_files(path: str) -> ModelFiles:
    """Any thread. What cannot be read is unknown: the load of the model reports it."""
    place = Path(path)
    files = [place] if place.is_file() else sorted(place.iterdir()) if place.is_dir() else []
    weights = [file for file in files if file.suffix in _WEIGHTS and file.is_file()]
    if not weights:
        return ModelFiles()
    size, kind = sum(file.stat().st_size for file in weights), min(file.suffix[1:] for file in weights)
    if not (place / "config.json").is_file() and kind == "gguf":
        return _gguf(weights[0], size)
    values = _json(place / "config.json")
    return _described(values, values.get("quantization_config") or _modelopt(place), size, kind)


def _modelopt(place: Path) -> dict[str, Any]:
    """What ModelOpt's own file says in the place of a `quantization_config`; empty without one."""
    found = _json(place / "hf_quant_config.json").get("quantization")
    if not isinstance(found, dict) or not isinstance(found.get("quant_algo"), str):
        return {}
    return {**found, "quant_method": "modelopt"}


def _described(values: dict[str, Any], quantization: object, size: int, kind: str) -> ModelFiles:
    inner = values.get("text_config")
    text = inner if isinstance(inner, dict) else values
    named = text.get("torch_dtype") or text.get("dtype") or values.get("torch_dtype") or values.get("dtype")
    dtype = named if isinstance(named, str) and named in FLOAT_NAMES else None
    stored = None if dtype is None else 4.0 if dtype == "float32" else 2.0
    family, context = values.get("model_type"), text.get("max_position_embeddings")
    level = config_level(quantization) if isinstance(quantization, dict) else ""
    return ModelFiles(
        size,
        kind,
        family if isinstance(family, str) else _UNKNOWN,
        context if isinstance(context, int) else None,
        None if quantization else stored,
        bool(quantization),
        level=level or (_UNKNOWN if dtype is None or quantization else FLOAT_NAMES[dtype]),
    )


def _gguf(file: Path, size: int) -> ModelFiles:
    try:
        header = map_gguf(file)[1]
    except (HeadraceError, OSError, ValueError):
        return ModelFiles(size, "gguf")
    metadata = header.metadata
    found, label = metadata.get("general.architecture"), metadata.get("general.size_label")
    family, kind = found if isinstance(found, str) else _UNKNOWN, metadata.get("general.file_type")
    context = metadata.get(f"{family}.context_length")
    return ModelFiles(
        size,
        "gguf",
        family,
        context if isinstance(context, int) else None,
        _GGUF_FLOATS.get(kind) if isinstance(kind, int) else None,
        isinstance(kind, int) and kind not in _GGUF_FLOATS,
        label if isinstance(label, str) else "",
        gguf_level(kind, ((tensor.type, tensor.size) for tensor in header.tensors.values())) or _UNKNOWN,
    )


def _json(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _MOST_JSON:
            return {}
        values = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
