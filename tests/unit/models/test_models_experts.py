"""Complete experts per rank: which ones, and the models and numbers of ranks for which that is refused."""

from __future__ import annotations

import re

import pytest
from test_models_sharding import decoder

from headrace.errors import ConfigError
from headrace.kernels.moe.routing import Routing
from headrace.models.config import DecoderConfig, LayerConfig
from headrace.models.moe import MoE
from headrace.models.sharding import Shard, local_config


def mixture(experts: int = 5, hidden: int = 64, **more: object) -> DecoderConfig:
    layers = (LayerConfig(), LayerConfig(dense=False))
    moe = MoE(experts, 32, Routing(2), **more)  # type: ignore[arg-type]
    return decoder(family="mixtral", hidden=hidden, moe=moe, layers=layers)


def test_each_rank_knows_its_experts() -> None:
    found = [local_config(mixture(), Shard(rank, 2, expert_parallel=True)).moe for rank in range(2)]
    assert [(moe.first, moe.ranks, moe.experts) for moe in found if moe is not None] == [(0, 2, 5), (2, 2, 5)]
    assert [Shard(rank, 2, True).experts(mixture()) for rank in range(2)] == [(0, 2), (2, 5)]


def test_attention_is_split_as_without_it() -> None:
    one, other = (local_config(mixture(), Shard(1, 2, complete)) for complete in (False, True))
    assert (one.num_q_heads, one.num_kv_heads) == (other.num_q_heads, other.num_kv_heads)
    assert one.moe is not None
    assert one.moe.ranks == 1


def test_layers_need_the_operators_of_distributed_experts() -> None:
    assert mixture().operator_needs == (frozenset(), {"moe"})
    whole = local_config(mixture(), Shard(0, 2, True))
    assert whole.operator_needs == (frozenset(), {"own_experts", "mix_experts"})
    gated = local_config(mixture(shared=16, shared_gated=True), Shard(0, 2, True))
    assert gated.operator_needs[1] == {"own_experts", "mix_experts", "moe"}


@pytest.mark.parametrize(
    ("config", "shard", "said"),
    [
        (decoder(), Shard(0, 2, True), "expert_parallel with tensor_parallel_size 2: llama has no experts: leave"),
        (mixture(), Shard(0, 1, True), "experts are distributed over ranks: raise tensor_parallel_size"),
        (mixture(3), Shard(0, 4, True), "mixtral has 3 experts: choose at most as many ranks"),
        (mixture(hidden=66), Shard(0, 4, True), "mixtral's 66 hidden columns do not divide among 4 ranks"),
    ],
)
def test_what_is_impossible_is_refused_by_name(config: DecoderConfig, shard: Shard, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        local_config(config, shard)
