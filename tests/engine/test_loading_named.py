"""What is not built is refused by the name that its makers give it, and an absurd size by the field that states it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import tiny_models

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.checkpoints.gguf_header import parse_header
from headrace.errors import CheckpointError, UnsupportedModel

CASES = Path(__file__).parents[2].parent / "shared" / "cases" / "models"


def edit(directory: Path, **changes: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("name", ["modelopt_fp8_sidecar", "modelopt_nvfp4_sidecar"])
def test_modelopt_as_it_is_written(name: str) -> None:
    if not (CASES / name).exists():
        pytest.skip("the shared cases are not beside the checkout")
    with pytest.raises(UnsupportedModel, match=r"hf_quant_config\.json: quant_method 'modelopt' is not supported"):
        open_checkpoint(CASES / name)


def test_modelopts_file_is_one_of_the_settings(tmp_path: Path) -> None:
    tiny_models.save("llama", tmp_path)
    sidecar = tmp_path / "hf_quant_config.json"
    sidecar.write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    with pytest.raises(UnsupportedModel, match=r"hf_quant_config\.json: quant_method 'modelopt'"):
        open_checkpoint(tmp_path)
    sidecar.write_text(json.dumps({"quantization": {"quant_algo": None}}))
    assert open_checkpoint(tmp_path).weight_dtype == "float32"
    for wrong in ({"quantization": [1]}, {"quantization": {"quant_algo": 8}}):
        sidecar.write_text(json.dumps(wrong))
        with pytest.raises(CheckpointError, match=r"hf_quant_config\.json: field 'quantization"):
            open_checkpoint(tmp_path)


@pytest.mark.parametrize("field", ["quantization", "quantization_config"])
def test_mlx(field: str, tmp_path: Path) -> None:
    tiny_models.save("llama", tmp_path)
    edit(tmp_path, **{field: {"group_size": 64, "bits": 4}})
    with pytest.raises(UnsupportedModel, match=f"config.json: '{field}' is MLX's quantization"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(("kind", "name"), [(16, "IQ2_XXS"), (29, "IQ1_M"), (34, "TQ1_0"), (40, "NVFP4"), (999, "999")])
def test_types_of_gguf(kind: int, name: str) -> None:
    tensor = struct.pack("<Q", 1) + b"w" + struct.pack("<I2QIQ", 2, 256, 4, kind, 0)
    content = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + tensor + b"\0" * 4096
    with pytest.raises(CheckpointError, match=rf"'w': has GGUF type {name}, which is not supported: F32, .*Q4_K.* are"):
        parse_header(memoryview(content), "file")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"head_dim": 10**9}, "'head_dim' is 1000000000: expected at most 65536"),
        ({"head_dim": 10**4}, r"q_proj\.weight': has shape"),
        ({"num_attention_heads": 10**6}, "has shape|'head_dim' is 0|no multiple|dimensions"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000: expected at most 10000"),
        ({"max_position_embeddings": 10**9}, "'max_position_embeddings' is 1000000000: expected at most"),
        ({"eos_token_id": 2**31}, "'eos_token_id' is 2147483648: expected token ids"),
        ({"eos_token_id": "</s>"}, "'eos_token_id' is '</s>': expected token ids"),
        ({"rope_parameters": 3}, "'rope_parameters' is 3: expected an object"),
        ({"rope_parameters": {"rope_theta": float("inf")}}, "'rope_parameters.rope_theta' is inf: expected a number"),
        ({"hidden_act": 5}, "'hidden_act' is 5: expected text"),
        ({"layer_types": "full"}, "layer_types"),
        ({"quantization_config": "x"}, "'quantization_config' is 'x': expected an object"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": "x"}},
            "'quantization_config.weight_block_size' is 'x': expected a list",
        ),
        ({"num_attention_heads": 64, "head_dim": 3}, "has shape|dimensions of a head"),
    ],
)
def test_an_absurd_field(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    tiny_models.save("llama", tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises((CheckpointError, UnsupportedModel), match=named) as caught:
        open_checkpoint(tmp_path)
    assert str(tmp_path) in str(caught.value)
