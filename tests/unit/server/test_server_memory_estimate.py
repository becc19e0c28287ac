"""What a model and its drafter are estimated to take, against the matrices that `--quantize` makes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pool_fakes import plan
from safetensors.torch import save_file

from headrace.config import Config
from headrace.errors import CheckpointError
from headrace.quant.online import quantize_weight
from headrace.quant.weights import dense
from headrace.server.model_budget import PROCESS, estimate
from headrace.server.model_plan import ModelPlan

NAME = "layers.0.mlp.up_proj.weight"
MATRIX = torch.randn(64, 4096, generator=torch.Generator().manual_seed(0)).bfloat16()


def checkpoint(directory: Path) -> Path:
    directory.mkdir()
    save_file({NAME: MATRIX}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"torch_dtype": "bfloat16"}))
    return directory


def planned(path: Path, **options: Any) -> ModelPlan:
    return replace(plan("a"), path=path, config=Config.model_validate(options))


def packed(kind: str) -> int:
    return quantize_weight(dense(MATRIX, NAME), kind).nbytes


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_model_that_is_quantised_on_load(tmp_path: Path, kind: str) -> None:
    found = estimate(planned(checkpoint(tmp_path / "a"), model={"quantize": kind})) - PROCESS
    assert found == pytest.approx(packed(kind), rel=0.01)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_drafter_that_is_quantised_on_load(tmp_path: Path, kind: str) -> None:
    target, drafter = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")
    options: dict[str, Any] = {"speculate": f"draft:{drafter}", "draft_quantization": kind}
    both = estimate(planned(target, scheduler=options))
    size = (target / "model.safetensors").stat().st_size
    assert both - PROCESS - size == size - MATRIX.nbytes + packed(kind)


@pytest.mark.parametrize("shape", [["a", 2], [2, "1"], [2.5, 4], [-1, 4], [True, 4], [None, 4], "ab"])
def test_a_shape_that_is_none_is_named(tmp_path: Path, shape: Any) -> None:
    drafter = checkpoint(tmp_path / "b")
    header = json.dumps({NAME: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 8]}}).encode()
    file = drafter / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    options = {"speculate": f"draft:{drafter}", "draft_quantization": "int8"}
    with pytest.raises(CheckpointError, match=r"two whole numbers are expected; fetch the drafter again") as caught:
        estimate(planned(checkpoint(tmp_path / "a"), scheduler=options))
    assert str(file) in str(caught.value)
    assert NAME in str(caught.value)
