"""What the server tells of a model from its files alone: Ollama's family, the context, the estimate of its memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import save_file

from headrace.config import Config
from headrace.server.model_budget import PROCESS, estimate
from headrace.server.model_files import ModelFiles, read_files
from headrace.server.model_plan import ModelPlan
from headrace.server.ollama_models import show_files


def checkpoint(folder: Path, size: int = 1000, **config: Any) -> Path:
    (folder / "model.safetensors").write_bytes(bytes(size))
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_gguf_file_tells_its_family(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_context_length(777)
    writer.add_size_label("0.5B")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = ModelFiles(file.stat().st_size, "gguf", "qwen2", 777, label="0.5B")
    assert read_files(str(file)) == found
    # A directory with that file alone, too.
    assert read_files(str(tmp_path)) == found


def test_a_directory_tells_its_family(tmp_path: Path) -> None:
    checkpoint(tmp_path, model_type="llama", max_position_embeddings=99, torch_dtype="bfloat16")
    assert read_files(str(tmp_path)) == ModelFiles(1000, "safetensors", "llama", 99, 2.0, level="BF16")


def test_a_model_in_parts_tells_its_texts_context(tmp_path: Path) -> None:
    checkpoint(tmp_path, model_type="gemma3", text_config={"max_position_embeddings": 5, "dtype": "float32"})
    assert read_files(str(tmp_path)) == ModelFiles(1000, "safetensors", "gemma3", 5, 4.0, level="F32")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"GGUF" + bytes(20), b"\xff" * 100])
def test_a_broken_file_is_unknown(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(content)
    assert read_files(str(file)).architecture == "unknown"


@pytest.mark.parametrize("text", ["[]", "{", '{"model_type": 3, "max_position_embeddings": "x"}'])
def test_a_broken_configuration_is_unknown(tmp_path: Path, text: str) -> None:
    checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(text)
    assert read_files(str(tmp_path)) == ModelFiles(1000, "safetensors")


def test_no_files(tmp_path: Path) -> None:
    assert read_files(str(tmp_path)) == read_files(str(tmp_path / "none")) == ModelFiles()


@pytest.mark.parametrize(
    ("stored", "options", "bytes_"),
    [
        ("bfloat16", {}, 1000),
        ("bfloat16", {"dtype": "float32"}, 2000),
        ("float32", {"dtype": "bfloat16"}, 500),
        ("bfloat16", {"quantize": "int8"}, 500),
        ("bfloat16", {"quantize": "int4"}, 312),
        (None, {}, 1000),
        (None, {"dtype": "float32"}, 4000),
    ],
)
def test_the_estimate_before_a_load(tmp_path: Path, stored: str | None, options: dict[str, str], bytes_: int) -> None:
    checkpoint(tmp_path, model_type="llama", **({} if stored is None else {"torch_dtype": stored}))
    config = Config.model_validate({"model": {"model": str(tmp_path), **options}})
    assert estimate(ModelPlan("m", config, tmp_path)) == PROCESS + bytes_


def drafter(folder: Path) -> Path:
    """A head with a matrix of 64 * 32 and a table of 100 * 32 values in bfloat16."""
    folder.mkdir()
    tensors = {
        "embed_tokens.weight": torch.zeros(100, 32, dtype=torch.bfloat16),
        "fc.weight": torch.zeros(64, 32, dtype=torch.bfloat16),
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("options", "quantised", "saved"),
    [
        ({}, False, 0.0),
        ({}, True, 0.875),
        ({"draft_quantization": "none"}, True, 0.0),
        ({"draft_quantization": "int8"}, False, 0.875),
        ({"draft_quantization": "int4"}, False, 1.375),
    ],
)
def test_the_estimate_counts_a_drafter_as_it_lies_in_memory(
    tmp_path: Path, options: dict[str, str], quantised: bool, saved: float
) -> None:
    """`saved`: bytes of a value. A row of 32 values has one scale of 4 bytes in both kinds."""
    head = drafter(tmp_path / "head")
    checkpoint(tmp_path, **({"quantization_config": {"quant_method": "gptq"}} if quantised else {}))
    scheduler = {"speculate": f"eagle3:{head}", **options}
    config = Config.model_validate({"model": {"model": str(tmp_path)}, "scheduler": scheduler})
    own = read_files(str(head)).size - int(64 * 32 * saved)
    assert estimate(ModelPlan("m", config, tmp_path)) == PROCESS + 1000 + own


def test_a_head_in_the_files_of_the_target_is_counted_once(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    scheduler = {"speculate": f"mtp:{tmp_path}"}
    config = Config.model_validate({"model": {"model": str(tmp_path)}, "scheduler": scheduler})
    assert estimate(ModelPlan("m", config, tmp_path)) == PROCESS + 1000


@pytest.mark.parametrize(
    ("kind", "stored", "quantised", "level"),
    [
        (0, 4.0, False, "F32"),
        (1, 2.0, False, "F16"),
        (32, 2.0, False, "BF16"),
        (3, None, True, "Q4_1"),
        (15, None, True, "Q4_K_M"),
    ],
)
def test_a_gguf_file_tells_how_it_is_stored(
    tmp_path: Path, kind: int, stored: float | None, quantised: bool, level: str
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_file_type(kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    found = read_files(str(tmp_path))
    assert (found.stored_bytes, found.quantised, found.level) == (stored, quantised, level)
    assert show_files("m", str(tmp_path), 0).details.quantization_level == level


def test_a_folder_with_the_name_of_a_file_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").mkdir()
    assert read_files(str(checkpoint(tmp_path))) == ModelFiles(1000, "safetensors")


def test_quantised_weights_tell_their_method(tmp_path: Path) -> None:
    checkpoint(tmp_path, torch_dtype="bfloat16", quantization_config={"quant_method": "awq", "bits": 4})
    found = read_files(str(tmp_path))
    assert (found.level, found.quantised, found.stored_bytes) == ("AWQ", True, None)
    checkpoint(tmp_path, torch_dtype="bfloat16", quantization_config=[3])
    assert read_files(str(tmp_path)).level == "unknown"


@pytest.mark.parametrize(
    ("quantization", "level", "quantised"),
    [
        ({"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}, "NVFP4", True),
        ({"quant_algo": None}, "BF16", False),
        ([1], "BF16", False),
    ],
)
def test_modelopts_own_file_tells_the_level(tmp_path: Path, quantization: Any, level: str, quantised: bool) -> None:
    checkpoint(tmp_path, torch_dtype="bfloat16")
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    found = read_files(str(tmp_path))
    assert (found.level, found.quantised) == (level, quantised)
    assert show_files("m", str(tmp_path), 0).details.quantization_level == level
