"""Whole checkpoints with one damaged tensor or setting, of every layout: they load and compute, or are refused in one
line."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import format_models
import pytest
import tiny_models
import torch
from model_harness import logits_of, reference_ops
from mutations import mutate
from safetensors.torch import load_file, save_file

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.errors import HeadraceError

DATA = Path(__file__).parent.parent / "data" / "checkpoints"
STORED = sorted(path.name for path in DATA.iterdir() if path.is_dir())
WRITTEN = ("awq", "gptq", "gptq-act-order", "gptq-3")
SHAPE = format_models.SHAPE | {"hidden_size": 128, "intermediate_size": 128, "vocab_size": 64}
DTYPES = (
    torch.float32,
    torch.float16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.float8_e4m3fn,
)


def damaged(rng: random.Random, tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor with another shape, type or other values; None: it is removed."""
    rows = tensor.shape[0] if tensor.dim() else 1
    flat = tensor.reshape(-1)
    return rng.choice(
        (
            None,
            flat,
            flat.reshape(-1, rows),
            flat[:0],
            flat.reshape(rows, -1)[: max(1, rows // 2)].clone(),
            torch.cat([flat, flat]),
            tensor.to(rng.choice(DTYPES)),
            torch.full_like(tensor.float(), rng.choice((-1.0, 7.0, 100.0))).to(tensor.dtype),
        )
    )


def loads(path: Path) -> bool:
    """Whether it does; then it also computes."""
    try:
        decoder = open_checkpoint(path).build(reference_ops(), 16)
    except HeadraceError as error:
        message = str(error)
        assert str(path) in message
        assert "\n" not in message
        assert len(message) <= 1000
        return False
    assert logits_of(decoder, [1, 2, 3]).shape[0] == 3
    return True


@pytest.mark.parametrize("variant", ["llama", *STORED, *WRITTEN])
def test_one_tensor_is_damaged(variant: str, tmp_path: Path) -> None:
    if variant in STORED:
        shutil.copytree(DATA / variant, tmp_path, dirs_exist_ok=True)
    elif variant in WRITTEN:
        format_models.make(variant, tmp_path, SHAPE)
    else:
        tiny_models.save(variant, tmp_path)
    file = tmp_path / "model.safetensors"
    sound = load_file(file)
    layer = sorted(name for name in sound if ".layers.0." in name)
    rng, outcomes = random.Random(variant), []
    for _ in range(12):
        name = rng.choice(layer)
        changed = damaged(rng, sound[name])
        tensors = {key: tensor for key, tensor in sound.items() if key != name}
        save_file(tensors if changed is None else {**tensors, name: changed.contiguous()}, file)
        outcomes.append(loads(tmp_path))
    assert False in outcomes


@pytest.mark.parametrize("variant", ["llama", "w4a16", "fp8-tiles", "awq"])
def test_one_setting_is_damaged(variant: str, tmp_path: Path) -> None:
    if variant in STORED:
        shutil.copytree(DATA / variant, tmp_path, dirs_exist_ok=True)
    else:
        format_models.make({"llama": "float32"}.get(variant, variant), tmp_path, SHAPE)
    file = tmp_path / "config.json"
    sound = json.loads(file.read_text())
    rng, outcomes = random.Random(variant), []
    for _ in range(20):
        file.write_text(json.dumps(mutate(rng, sound)))
        outcomes.append(loads(tmp_path))
    assert {True, False} == set(outcomes)


@pytest.mark.parametrize("variant", ["Q4_0", "Q6_K"])
def test_a_gguf_is_damaged(variant: str, tmp_path: Path) -> None:
    shape: dict[str, Any] = format_models.SHAPE | {"vocab_size": 260}
    path, _ = format_models.make(variant, tmp_path, shape)
    content = path.read_bytes()
    end = content.index(b"token_embd") + 2000
    rng, outcomes = random.Random(variant), []
    for _ in range(20):
        changed = bytearray(content)
        at = rng.randrange(end)
        changed[at : at + rng.choice((1, 4))] = rng.choice((b"\xff", b"\0", b"\1", b"\0\0\0\x40"))
        path.write_bytes(changed)
        outcomes.append(loads(path))
    assert {True, False} == set(outcomes)
