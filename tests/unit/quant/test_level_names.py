"""Names of the forms in which weights are stored."""

from __future__ import annotations

from typing import Any

import gguf
import pytest

from headrace.quant.level_names import config_level, gguf_level


def test_every_level_that_llama_cpp_writes() -> None:
    """`gguf` is its own package: `ALL_F32`, `MOSTLY_Q4_K_M`, ..."""
    named = {kind.value: kind.name.partition("_")[2] for kind in gguf.LlamaFileType if kind.name != "GUESSED"}
    ours = {kind: gguf_level(kind, ()) for kind in named}
    assert {kind: name for kind, name in ours.items() if name} == {
        kind: name.removesuffix("_MOE") for kind, name in named.items() if kind < 40
    }
    assert gguf_level(1024 | 3, ()) == "Q4_1"


@pytest.mark.parametrize(
    ("tensors", "level"),
    [
        ([(0, 10), (12, 900), (14, 100)], "Q4_K"),
        ([(30, 8)], "BF16"),
        ([(16, 8)], "IQ2_XXS"),
        ([(999, 8)], ""),
        ([], ""),
    ],
)
def test_a_gguf_file_without_a_level(tensors: list[tuple[int, int]], level: str) -> None:
    assert gguf_level(None, tensors) == gguf_level(12345, tensors) == level


def compressed(layout: str, weights: Any, inputs: Any = None) -> dict[str, Any]:
    group = {"weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group}}


def mixed(layers: Any) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}


@pytest.mark.parametrize(
    ("quantization", "level"),
    [
        ({"quant_method": "fp8"}, "FP8"),
        ({"quant_method": "awq", "bits": 4}, "AWQ"),
        ({"quant_method": "gptq"}, "GPTQ"),
        ({"quant_method": "auto-round"}, "AutoRound"),
        (compressed("float-quantized", {"num_bits": 8, "type": "float"}, {"num_bits": 8}), "FP8"),
        (compressed("int-quantized", {"num_bits": 8, "type": "int"}, {"num_bits": 8}), "W8A8"),
        (compressed("pack-quantized", {"num_bits": 4, "type": "int"}), "W4A16"),
        (compressed("nvfp4-pack-quantized", {"num_bits": 4, "type": "float"}), "NVFP4"),
        (compressed("mxfp8-quantized", {"num_bits": 8, "type": "float"}), "MXFP8"),
        (compressed("pack-quantized", {"num_bits": "x"}), ""),
        (compressed("pack-quantized", [1]), ""),
        ({"quant_method": "compressed-tensors", "config_groups": [1]}, ""),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": 1}}, ""),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "FP8"),
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"}, "NVFP4"),
        ({"quant_method": "modelopt", "quant_algo": 8}, "MODELOPT"),
        ({"quant_method": "modelopt"}, "MODELOPT"),
        (mixed({"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "NVFP4"}, "c": {"quant_algo": "FP8"}}), "FP8, NVFP4"),
        (mixed({"a": {"quant_algo": 8}, "b": 1}), "MIXED_PRECISION"),
        (mixed([1]), "MIXED_PRECISION"),
        ({"quant_method": 3}, ""),
        ({}, ""),
    ],
)
def test_the_level_of_a_configuration(quantization: dict[str, Any], level: str) -> None:
    assert config_level(quantization) == level
