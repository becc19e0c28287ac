"""Quantisation that a config.json does not declare the usual way: ModelOpt's file beside it, and MLX's own field."""

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
    """The configuration, with what `hf_quant_config.json` says as its `quantization_config` where it has none.

    Its method is `modelopt`, which a plugin may offer. Raises UnsupportedModel for MLX's form, CheckpointError for a file that
    is wrong.
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
    """The file that `quantization_config` of `with_sidecar`'s answer comes from."""
    settings = Settings(config).section("quantization_config")
    borrowed = settings is not None and settings.get("quant_method") == "modelopt" and present(directory / _SIDECAR)
    return directory / (_SIDECAR if borrowed else "config.json")


def _refuse_mlx(directory: Path, config: Mapping[str, Any]) -> None:
    for key in ("quantization", "quantization_config"):
        found = config.get(key)
        if isinstance(found, Mapping) and "quant_method" not in found and {"group_size", "bits"} <= found.keys():
            raise UnsupportedModel(
                f"{directory / 'config.json'}: {key!r} is MLX's quantisation, which is not supported: "
                "use the checkpoint that it was made of"
            )
