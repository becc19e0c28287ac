"""Stages without an engine: the bits of one rank for every family, and each reads no more than its part."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
import torch
from model_harness import reference_ops
from moe_models import save_moe
from pipeline_harness import stage_logits
from safetensors.torch import load_file, save_file

from headrace.checkpoints.checkpoint import Checkpoint, open_checkpoint
from headrace.errors import UnsupportedModel
from headrace.models.decoder import Decoder
from headrace.models.sharding import Shard
from headrace.platforms.cpu.device import CpuDevice
from headrace.platforms.cpu.native import missing

native = pytest.mark.skipif(missing() is not None, reason=str(missing()))
IDS = tiny_models.prompt(21)


def made(variant: str, path: Path) -> Path:
    (save_moe if "moe" in variant else tiny_models.save)(variant, path, torch.bfloat16)
    return path


@native
@pytest.mark.parametrize("variant", ["llama", "llama-tied-bias", "qwen2-window", "qwen3", "gemma3", "qwen2_moe"])
def test_two_stages_have_the_bits_of_one(variant: str, tmp_path: Path) -> None:
    model = made(variant, tmp_path / "model")
    wanted = stage_logits(model, IDS, 1, tmp_path / "one")
    assert torch.equal(stage_logits(model, IDS, 2, tmp_path / "two"), wanted)


@native
def test_three_stages_and_chunks_have_them_too(tmp_path: Path) -> None:
    model = made("llama", tmp_path / "model")
    wanted = stage_logits(model, IDS, 1, tmp_path / "one")
    assert torch.equal(stage_logits(model, IDS, 3, tmp_path / "three", cuts=(7, 8)), wanted)


@pytest.mark.parametrize("shared", [True, False], ids=["shared memory", "network"])
def test_the_portable_device_passes_rows_too(shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shared:
        monkeypatch.setattr("headrace.platforms.cpu.shm_communicator._why_not", lambda: "a test")
    model = made("llama", tmp_path / "model")
    wanted = stage_logits(model, IDS, 1, tmp_path / "one", CpuDevice)
    assert torch.equal(stage_logits(model, IDS, 2, tmp_path / "two", CpuDevice, cuts=(9,)), wanted)


@native
@pytest.mark.parametrize("variant", ["llama", "llama-tied-bias"])
def test_a_stage_reads_its_own_layers_and_tables(variant: str, tmp_path: Path) -> None:
    found: dict[int, tuple[set[str], Decoder]] = {}

    def look(checkpoint: Checkpoint, decoder: Decoder) -> None:
        stage = 0 if decoder._links.before is None else 1 if decoder._links.after is not None else 2
        found[stage] = set(checkpoint.source.used), decoder

    model = made(variant, tmp_path / "model")
    stage_logits(model, IDS, 3, tmp_path / "three", look=look)
    for stage, (used, decoder) in found.items():
        of_dtype = {"model.layers.0.self_attn.q_proj.weight"} if stage else set[str]()  # Every rank looks at its type.
        layers = {name.split(".")[2] for name in used - of_dtype if ".layers." in name}
        assert layers == {str(stage)}
        assert len(decoder.weights.layers) == len(decoder.config.layers) == 1
        rows = decoder.weights.embedding.shape[0], decoder.weights.head.shape[0]
        assert rows == ((160, 0), (0, 0), (0, 160))[stage]
        tied = variant == "llama-tied-bias"
        assert ("model.embed_tokens.weight" in used) == (stage == 0 or (tied and stage == 2))
        assert ("lm_head.weight" in used) == (stage == 2 and not tied)


def test_a_tensor_that_its_own_stage_does_not_know_is_refused(tmp_path: Path) -> None:
    model = made("llama", tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.2.self_attn.extra.weight"] = torch.ones(4)
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    open_checkpoint(model).build(reference_ops(), 64, shard=Shard(stage=0, stages=2))
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.2\.self_attn\.extra\.weight"):
        open_checkpoint(model).build(reference_ops(), 64, shard=Shard(stage=1, stages=2))
