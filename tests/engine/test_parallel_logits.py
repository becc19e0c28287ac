"""Two ranks give what one gives: every family, every container of weights, on recorded steps and shared memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
import torch
from gguf_export import Type, export
from moe_models import save_moe
from parallel_harness import logits, nmse

from headrace.errors import HeadraceError
from headrace.platforms.cpu.device import CpuDevice
from headrace.platforms.cpu.native import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
DATA = Path(__file__).parent.parent / "data" / "checkpoints"
IDS = [5, 17, 80, 33, 2, 9, 64, 71, 12, 12, 90, 41]
FAMILIES = (
    "llama", "llama-tied-bias", "llama-wide-heads", "mistral-window", "qwen2", "qwen3-bias-tied", "gemma3",
    "gemma3-cap",
)  # fmt: skip


@pytest.mark.parametrize("variant", FAMILIES)
def test_every_family_gives_the_same_logits_and_tokens(variant: str, tmp_path: Path) -> None:
    tiny_models.save(variant, tmp_path / "model", dtype=torch.bfloat16)
    (whole,) = logits(tmp_path / "model", IDS, 1, tmp_path / "one", steps=6)
    first, second = logits(tmp_path / "model", IDS, 2, tmp_path / "two", steps=6)
    assert torch.equal(first, second), "the ranks' sums have the same bits"
    assert nmse(first, whole) < 1e-10
    assert torch.equal(first.argmax(-1), whole.argmax(-1))


@pytest.mark.parametrize("variant", ["mixtral", "qwen3_moe-some-dense"])
def test_experts_are_split_by_their_inner_columns(variant: str, tmp_path: Path) -> None:
    save_moe(variant, tmp_path / "model")
    (whole,) = logits(tmp_path / "model", IDS, 1, tmp_path / "one", steps=3)
    first, second = logits(tmp_path / "model", IDS, 2, tmp_path / "two", steps=3)
    assert torch.equal(first, second)
    assert nmse(first, whole) < 1e-10


def test_operators_by_reference_share_memory_as_well(tmp_path: Path) -> None:
    tiny_models.save("qwen2", tmp_path / "model", dtype=torch.bfloat16)
    (whole,) = logits(tmp_path / "model", IDS, 1, tmp_path / "one", steps=3, opened=CpuDevice)
    first, second = logits(tmp_path / "model", IDS, 2, tmp_path / "two", steps=3, opened=CpuDevice)
    assert torch.equal(first, second)
    assert nmse(first, whole) < 1e-10


@pytest.mark.parametrize("size", [3, 4])
def test_more_ranks_than_kv_heads_and_uneven_parts(size: int, tmp_path: Path) -> None:
    """KV heads are replicated for 4, inner columns and vocabulary do not divide for 3."""
    heads = {"num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 96} if size == 3 else {}
    tiny_models.save("llama", tmp_path / "model", intermediate_size=100, vocab_size=161, head_dim=16, **heads)
    (whole,) = logits(tmp_path / "model", IDS, 1, tmp_path / "one")
    for found in logits(tmp_path / "model", IDS, size, tmp_path / "many"):
        assert nmse(found, whole) < 1e-10


CONTAINERS = {
    "fp8-dynamic": 5e-3,
    "fp8-static": 5e-3,
    "mxfp4": 1e-10,
    "nvfp4": 1e-10,
    "nvfp4a16": 1e-10,
    "w3a16": 1e-10,
    "w4a16": 1e-10,
    "w4a16-asymmetric": 1e-10,
    "w4a16-channel": 1e-10,
    "w4a8": 5e-3,
    "w8a16": 1e-10,
    "w8a8-asymmetric": 5e-3,
    "w8a8-dynamic": 5e-3,
    "w8a8-static": 5e-3,
}
"""Largest error by stored checkpoint. A scale that is drawn from a row of inputs is drawn from each rank's part of the
row: those differ by rounding."""


@pytest.mark.parametrize("variant", CONTAINERS)
def test_every_container_is_cut(variant: str, tmp_path: Path) -> None:
    (whole,) = logits(DATA / variant, IDS, 1, tmp_path / "one")
    first, second = logits(DATA / variant, IDS, 2, tmp_path / "two")
    assert torch.equal(first, second)
    assert nmse(first, whole) < CONTAINERS[variant]


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_ggufs_are_cut_between_blocks(kind: str, tmp_path: Path) -> None:
    model = tiny_models.make("llama", head_dim=32, intermediate_size=160)
    path = tmp_path / "model.gguf"
    export(model, path, Type[kind])
    (whole,) = logits(path, IDS, 1, tmp_path / "one")
    first, _ = logits(path, IDS, 2, tmp_path / "two")
    assert nmse(first, whole) < 1e-10


def test_integer_arithmetic_agrees_within_its_rounding(tmp_path: Path) -> None:
    """The engine's default arithmetic, and the same greedy tokens."""
    (whole,) = logits(DATA / "w4a16", IDS, 1, tmp_path / "one", dtype=None, steps=6)
    first, _ = logits(DATA / "w4a16", IDS, 2, tmp_path / "two", dtype=None, steps=6)
    assert nmse(first, whole) < 1e-4
    assert torch.equal(first.argmax(-1), whole.argmax(-1))


def test_tiles_that_fall_between_ranks_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(
        HeadraceError, match=r"of \d+ columns is stored as fp8_e4m3 for inputs in fp8_group128, which can be split"
    ):
        logits(DATA / "fp8-tiles", IDS, 2, tmp_path)
