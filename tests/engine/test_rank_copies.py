"""The stored bytes over all ranks, against the matrices that the ranks load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as Type
from model_harness import reference_ops
from moe_models import export_moe, save_moe
from tiny_models import save

from headrace.checkpoints.checkpoint import Checkpoint, open_checkpoint
from headrace.checkpoints.rank_copies import stored_on_ranks
from headrace.kernels.weight import Weight
from headrace.models.sharding import Shard


def loaded(checkpoint: Checkpoint, shard: Shard) -> int:
    """The bytes of a rank's matrices; a tied table that both ends of one stage use counts once."""
    found = dict[int, int]()

    def finish(weight: Weight, operators: tuple[str, ...]) -> Weight:
        for part in weight.parts or (weight,):
            found[id(part)] = part.nbytes
            kept.append(part)
        return weight

    kept: list[Weight] = []
    checkpoint.build(reference_ops(), 32, shard=shard, group=Alone(), finish=finish)
    return sum(found.values())


class Alone:
    """Stands for collectives that are never called."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: pytest.fail("nothing runs here")


def check(checkpoint: Checkpoint, size: int, stages: int, complete: bool = False, biases: int = 0) -> int:
    """Returns the bytes that lie in several ranks."""
    ranks = [Shard.of(number, size, stages, complete) for number in range(size * stages)]
    together = sum(loaded(checkpoint, rank) for rank in ranks)
    again = stored_on_ranks(checkpoint, ranks[0]) - checkpoint.total_bytes
    assert again - biases == together - loaded(checkpoint, Shard())
    return again


def test_a_tied_table_of_several_stages(tmp_path: Path) -> None:
    save("llama-tied-bias", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert check(checkpoint, 1, 2) == check(checkpoint, 1, 3) == 160 * 64 * 4
    assert check(checkpoint, 1, 1) == 0


def test_tables_of_their_own_are_there_once(tmp_path: Path) -> None:
    save("llama", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert check(checkpoint, 1, 2) == check(checkpoint, 2, 1) == 0


@pytest.mark.parametrize("variant", ["qwen2_moe", "dots1"])
@pytest.mark.parametrize("gguf", [False, True])
def test_complete_shared_experts_and_routers(variant: str, gguf: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf" if gguf else tmp_path / "m"
    if gguf:
        export_moe(variant, path, Type.F32)
    else:
        save_moe(variant, path)
    checkpoint = open_checkpoint(path)
    config = checkpoint.decoder_config
    assert config.moe is not None
    sparse = sum(not layer.dense for layer in config.layers)
    # A router's correction bias, which is no matrix, has the beginning of its name in safetensors.
    biases = sparse * config.moe.experts * 4 if variant == "dots1" and not gguf else 0
    routers = check(checkpoint, 2, 1, biases=biases)
    assert routers >= sparse * config.moe.experts * config.hidden * 4
    shared = sparse * 3 * config.moe.shared * config.hidden * 4
    assert check(checkpoint, 2, 1, complete=True, biases=biases) == routers + shared
