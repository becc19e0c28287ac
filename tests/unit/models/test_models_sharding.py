"""Each rank.s part of a decoder, and the sizes that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.models.config import DecoderConfig, LayerConfig, Rope
from headrace.models.sharding import WHOLE, Shard, head_columns, local_config


def decoder(**changes: Any) -> DecoderConfig:
    config = DecoderConfig(
        family="llama", hidden=64, num_q_heads=8, num_kv_heads=4, head_dim=8, intermediate=96, vocab=160,
        layers=(LayerConfig(),), ropes=(Rope(1e4, 8),), max_position=64, norm_eps=1e-5,
    )  # fmt: skip
    return replace(config, **changes)


def runs(size: int, count: int, unit: int = 1) -> list[tuple[int, int]]:
    return [Shard(rank, size).split(count, "things", unit) for rank in range(size)]


def test_ranges_cover_everything_once_and_are_as_equal_as_units_allow() -> None:
    assert runs(2, 96) == [(0, 48), (48, 96)]
    assert runs(3, 100) == [(0, 33), (33, 66), (66, 100)]
    assert runs(2, 160, 64) == [(0, 64), (64, 160)]
    assert runs(1, 5) == [(0, 5)]


def test_more_ranks_than_units_are_refused_with_the_largest_possible_number() -> None:
    with pytest.raises(ConfigError, match=r"size 4: 512 inner columns in units of 256 cannot .*: choose at most 2"):
        Shard(0, 4).split(512, "inner columns", 256)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_query_heads_find_their_kv_heads(size: int) -> None:
    config = decoder()
    for rank in range(size):
        shard = Shard(rank, size)
        q, kv = shard.q_heads(config), shard.kv_heads(config)
        wanted = {head * config.num_kv_heads // config.num_q_heads for head in range(*q)}
        assert set(range(*kv)) == wanted
        local = local_config(config, shard)
        assert (local.num_q_heads, local.num_kv_heads) == (q[1] - q[0], kv[1] - kv[0])
        assert local.kv_layers[0].num_kv_heads == len(wanted)


def test_heads_that_do_not_divide_are_refused_with_the_sizes_that_do() -> None:
    smollm = decoder(num_q_heads=9, num_kv_heads=3)
    with pytest.raises(ConfigError) as caught:
        local_config(smollm, Shard(0, 2))
    assert str(caught.value) == (
        "tensor_parallel_size 2: llama's 9 query heads and 3 KV heads do not divide among 2 ranks: choose 1, 3 or 9"
    )
    with pytest.raises(ConfigError, match=r"6 query heads and 2 KV heads .*: choose 1, 2 or 6"):
        Shard(0, 3).kv_heads(decoder(num_q_heads=6, num_kv_heads=2))


def test_a_vocabulary_is_split_if_it_divides(caplog: pytest.LogCaptureFixture) -> None:
    assert Shard(1, 2).vocabulary(decoder()) == (80, 160)
    assert WHOLE.vocabulary(decoder()) is None
    with caplog.at_level("INFO"):
        assert [Shard(rank, 2).vocabulary(decoder(vocab=161)) for rank in range(2)] == [None, None]
    assert caplog.messages == ["every rank holds the complete vocabulary: 161 does not divide by 2"]


def test_one_rank_changes_nothing() -> None:
    config = decoder()
    assert local_config(config, WHOLE) is config
    assert head_columns((2, 4), 8) == (16, 32)
    assert WHOLE.first()
    assert not Shard(1, 2).first()
