"""Complete experts per rank: logits of every family and of every stored form, held to one rank and to split experts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import quantized_export as export
import torch
from expert_harness import COMPLETE, with_whole_attention
from gguf import GGMLQuantizationType as Type
from moe_models import export_moe, save_moe
from parallel_formats import WIDE_EXPERTS, quantized_experts
from parallel_harness import logits, nmse

from headrace.checkpoints.quantizing import quantizing
from headrace.errors import ConfigError
from headrace.platforms.cpu.device import CpuDevice
from headrace.platforms.cpu.native import missing
from headrace.platforms.interface import Communicator

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
IDS = [5, 17, 80, 33, 2, 9, 64, 71, 12, 12, 90, 41]
FAMILIES = (
    "qwen3_moe", "qwen3_moe-some-dense", "qwen2_moe", "qwen2_moe-some-dense", "dots1", "glm4_moe", "mixtral",
)  # fmt: skip


@pytest.mark.parametrize("variant", FAMILIES)
def test_two_ranks_give_what_one_gives(variant: str, tmp_path: Path) -> None:
    """Only the sums of attention and of dense layers are in another order, as with experts in part."""
    save_moe(variant, tmp_path / "model", torch.bfloat16)
    (whole,) = logits(tmp_path / "model", IDS, 1, tmp_path / "one", steps=3)
    first, second = logits(tmp_path / "model", IDS, 2, tmp_path / "two", steps=3, shard=COMPLETE)
    assert torch.equal(first, second)
    assert nmse(first, whole) < 1e-10
    assert torch.equal(first.argmax(-1), whole.argmax(-1))


@pytest.mark.parametrize("variant", ["qwen3_moe", "qwen2_moe", "dots1", "mixtral-window"])
@pytest.mark.parametrize("dtype", ["float32", None])
def test_the_bits_of_one_rank_where_attention_is_whole(variant: str, dtype: str | None, tmp_path: Path) -> None:
    """Shared experts are whole on every rank; 5 experts of `mixtral-window` are 2 and 3."""
    save_moe(variant, tmp_path / "model", torch.bfloat16)
    (whole,) = logits(tmp_path / "model", IDS, 1, tmp_path / "one", dtype, steps=3)
    for found in with_whole_attention(tmp_path / "model", IDS, 2, tmp_path / "two", dtype):
        assert torch.equal(found, whole)


@pytest.mark.parametrize("size", [3, 4])
def test_more_ranks_and_uneven_numbers_of_experts(size: int, tmp_path: Path) -> None:
    """8 experts on 3 ranks are 2, 3 and 3; KV heads are replicated for 4."""
    heads = {"num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 96} if size == 3 else {}
    save_moe("qwen3_moe", tmp_path / "model", torch.bfloat16, intermediate_size=100, **heads)
    (whole,) = logits(tmp_path / "model", IDS, 1, tmp_path / "one", steps=3)
    for found in logits(tmp_path / "model", IDS, size, tmp_path / "many", steps=3, shard=COMPLETE):
        assert nmse(found, whole) < 1e-10
    for found in with_whole_attention(tmp_path / "model", IDS, size, tmp_path / "whole"):
        assert torch.equal(found, whole)


def test_operators_by_reference(tmp_path: Path) -> None:
    save_moe("qwen2_moe", tmp_path / "model", torch.bfloat16)
    (whole,) = logits(tmp_path / "model", IDS, 1, tmp_path / "one", steps=3, opened=CpuDevice)
    first, second = logits(tmp_path / "model", IDS, 2, tmp_path / "two", steps=3, opened=CpuDevice, shard=COMPLETE)
    assert torch.equal(first, second)
    assert nmse(first, whole) < 1e-10
    for found in with_whole_attention(tmp_path / "model", IDS, 2, tmp_path / "whole", opened=CpuDevice):
        assert torch.equal(found, whole)


class GlooDevice(CpuDevice):
    """As on machines that share no memory."""

    def communicator(self, group: Sequence[int]) -> Communicator:
        return self._world.communicator(group, "gloo")


def test_over_a_network(tmp_path: Path) -> None:
    save_moe("qwen3_moe", tmp_path / "model", torch.bfloat16)
    (whole,) = logits(tmp_path / "model", IDS, 1, tmp_path / "one", steps=3, opened=CpuDevice)
    for found in with_whole_attention(tmp_path / "model", IDS, 2, tmp_path / "two", opened=GlooDevice):
        assert torch.equal(found, whole)


STORED = {
    "int4": export.packed_int(4, 32, True),
    "awq": export.awq(32),
    "gptq-act-order": export.gptq(4, 32, True, True),
    "fp8-blocks": export.fp8("block", export.inputs(8, "float", "group", group_size=128), "fp8_group128"),
    "mxfp4": export.fp4("mxfp4", None, None),
}


@pytest.mark.parametrize("name", STORED)
def test_quantised_experts_are_held_complete(name: str, tmp_path: Path) -> None:
    """Nothing is cut, so whatever can be read can be distributed; the default arithmetic has the bits of one rank."""
    quantized_experts("qwen3_moe", STORED[name], tmp_path / "model", **WIDE_EXPERTS)
    (whole,) = logits(tmp_path / "model", IDS, 1, tmp_path / "one", None, steps=2)
    assert whole.std() > 1e-3
    for found in with_whole_attention(tmp_path / "model", IDS, 2, tmp_path / "two", None, steps=2):
        assert torch.equal(found, whole)


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0"])
def test_experts_of_a_gguf(kind: str, tmp_path: Path) -> None:
    """Of 32 inner columns, which cannot be cut between blocks."""
    path = tmp_path / "model.gguf"
    export_moe("qwen3_moe", path, Type[kind])
    (whole,) = logits(path, IDS, 1, tmp_path / "one", None, steps=2)
    for found in with_whole_attention(path, IDS, 2, tmp_path / "two", None, steps=2):
        assert torch.equal(found, whole)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_experts_that_are_quantised_on_load(kind: str, tmp_path: Path) -> None:
    save_moe("qwen2_moe", tmp_path / "model", torch.bfloat16)
    (whole,) = logits(tmp_path / "model", IDS, 1, tmp_path / "one", read=lambda found: quantizing(found, kind))
    first, second = logits(
        tmp_path / "model", IDS, 2, tmp_path / "two", read=lambda found: quantizing(found, kind), shard=COMPLETE
    )
    assert torch.equal(first, second)
    assert nmse(first, whole) < 1e-10


def test_more_ranks_than_experts_are_refused(tmp_path: Path) -> None:
    save_moe("mixtral", tmp_path / "model", num_local_experts=3)
    with pytest.raises(ConfigError, match="mixtral has 3 experts: choose at most as many ranks"):
        logits(tmp_path / "model", IDS, 4, tmp_path / "four", shard=COMPLETE)
