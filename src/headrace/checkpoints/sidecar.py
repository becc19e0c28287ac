"""Quantization that a config.json declares in an unusual way: ModelOpt's separate file, and MLX's own field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.checkpoints.files import located, optional_json, present
from headrace.errors import UnsupportedModel
from headrace.settings import Settings

__all__ = ["quantization_file", "with_sidecar"]

_SIDECAR = "hf_quant_config.json"


def with_sidecar(directory: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration, with `hf_quant_config.json` as its `quantization_config` if it has none.

    The method is then `modelopt`, which a plugin may provide. Raises UnsupportedModel for MLX's field, CheckpointError
    for an invalid file.
    """
    _refuse_mlx(directory, config)
    file = directory / _SIDECAR
    with located(file):
        quantization = Settings(optional_json(file)).section("quantization")
        algorithm = None if quantization is None else quantization.optional_text("quant_algo")
    if quantization is None or algorithm is None or config.get("quantization_config"):
        return config
    return {**config, "quantization_config": {**quantization.values(), "quant_method": "modelopt"}}


def quantization_file(directory: Path, config: Mapping[str, Any]) -> Path:
    """The file of the `quantization_config` in the result of `with_sidecar`."""
    settings = Settings(config).section("quantization_config")
    borrowed = settings is not None and settings.get("quant_method") == "modelopt" and present(directory / _SIDECAR)
    return directory / (_SIDECAR if borrowed else "config.json")


def _refuse_mlx(directory: Path, config: Mapping[str, Any]) -> None:
    for key in ("quantization", "quantization_config"):
        found = config.get(key)
        if isinstance(found, Mapping) and "quant_method" not in found and {"group_size", "bits"} <= found.keys():
            raise UnsupportedModel(
                f"{directory / 'config.json'}: {key!r} is MLX's quantization, which is not supported: "
                "use the checkpoint that it was made of"
            )
