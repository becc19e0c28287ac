"""Stages of layers: which layers and which tables each has, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_models_sharding import decoder

from headrace.errors import ConfigError
from headrace.models.config import DecoderConfig, LayerConfig
from headrace.models.sharding import Shard, local_config


def deep(count: int) -> DecoderConfig:
    """Layer i has a window of i tokens."""
    return decoder(layers=tuple(LayerConfig(window=index + 1) for index in range(count)))


def runs(stages: int, count: int) -> list[tuple[int, int]]:
    return [Shard(stage=stage, stages=stages).layers(deep(count)) for stage in range(stages)]


def test_runs_cover_all_layers_and_the_last_is_never_the_longest() -> None:
    assert runs(1, 5) == [(0, 5)]
    assert runs(2, 5) == [(0, 3), (3, 5)]
    assert runs(3, 7) == [(0, 3), (3, 5), (5, 7)]
    for stages in range(1, 9):
        for count in range(stages, 30):
            found = runs(stages, count)
            assert [begin for begin, _ in found] == [0, *(end for _, end in found[:-1])]
            assert found[-1][1] == count
            sizes = [end - begin for begin, end in found]
            assert max(sizes) - min(sizes) <= 1
            assert sizes[-1] == min(sizes)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"pipeline_parallel_size 4: llama's 3 layers .*: choose at most 3"):
        local_config(deep(3), Shard(stages=4))


def test_a_stage_has_its_own_layers_and_their_cache() -> None:
    config = deep(5)
    local = local_config(config, Shard(stage=1, stages=2))
    assert [layer.window for layer in local.layers] == [4, 5]
    assert len(local.kv_layers) == len(local.attention_needs) == len(local.operator_needs) == 2
    both = local_config(config, Shard(1, 2, stage=1, stages=2))
    assert (len(both.layers), both.num_q_heads, both.num_kv_heads) == (2, 4, 2)
    assert local_config(replace(config), Shard()) == config


def test_ranks_of_a_stage_stand_one_behind_the_other() -> None:
    found = [Shard.of(number, 2, 3) for number in range(6)]
    assert [(shard.stage, shard.rank) for shard in found] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [shard.number for shard in found] == list(range(6))
    assert {shard.ranks for shard in found} == {6}
    assert [shard.embeds for shard in found] == [True, True, False, False, False, False]
    assert [shard.samples for shard in found] == [False, False, False, False, True, True]
    alone = Shard.of(0, 1, 1)
    assert alone == Shard()
    assert (alone.embeds, alone.samples) == (True, True)
