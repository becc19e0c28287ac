"""`resolve` refuses a model whose attention the device does not declare, by layer, need and the device's name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.config import Config
from headrace.errors import UnsupportedModel
from headrace.kernels.moe.routing import Routing
from headrace.models.config import DecoderConfig, LayerConfig, Rope
from headrace.models.moe import MoE
from headrace.resolution import ModelFacts, resolve
from headrace.types import ATTENTION_FEATURES, Capabilities, LayerKV

PLAIN = Capabilities(frozenset({"float32"}), frozenset({"float32"}))
GQA = replace(PLAIN, attention_features=frozenset({"gqa"}))
FREE = 1 << 30


def facts(*needs: set[str], head: int = 8) -> ModelFacts:
    return ModelFacts((LayerKV(2, head),) * len(needs), 64, 100, "float32", tuple(map(frozenset, needs)))


def test_a_window_is_refused_by_layer_need_and_device() -> None:
    window = {"gqa", "sliding_window"}
    with pytest.raises(UnsupportedModel) as refused:
        resolve(Config(), GQA, facts({"gqa"}, window, {"gqa"}, window), FREE, "mill device 1")
    assert str(refused.value) == (
        "layers 1, 3 need attention with sliding_window, which mill device 1 does not compute "
        "(its attention_features: gqa): "
        "choose another platform"
    )


@pytest.mark.parametrize("need", sorted(ATTENTION_FEATURES))
def test_every_feature_is_asked_for(need: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"layers 0 need attention with {need}.*attention_features: none"):
        resolve(Config(), PLAIN, facts({need}), FREE)
    resolve(Config(), replace(PLAIN, attention_features=frozenset({need})), facts({need}), FREE)


def test_many_layers_are_counted() -> None:
    with pytest.raises(UnsupportedModel, match=r"layers 0, 1, 2, 3, 4, 5, 6, 7 and 92 more need"):
        resolve(Config(), PLAIN, facts(*[{"sinks"}] * 100), FREE)


def test_head_sizes_are_refused_where_the_device_has_a_list() -> None:
    picky = replace(PLAIN, head_sizes=frozenset({64, 128}))
    resolve(Config(), picky, facts(set(), head=64), FREE)
    resolve(Config(), PLAIN, facts(set(), head=80), FREE)
    with pytest.raises(UnsupportedModel, match=r"layers 0 need heads of 80, but mill computes head sizes 64, 128"):
        resolve(Config(), picky, facts(set(), head=80), FREE, "mill")


def test_an_operator_is_refused_by_layer_and_device() -> None:
    plain, experts = frozenset[str](), frozenset({"moe"})
    model = replace(facts(set(), set(), set()), operators=(plain, experts, experts))
    resolve(Config(), PLAIN, model, FREE)
    lacking = replace(PLAIN, missing_operators=frozenset({"mla", "moe"}))
    resolve(Config(), lacking, facts(set()), FREE)
    with pytest.raises(UnsupportedModel) as refused:
        resolve(Config(), lacking, model, FREE, "mill device 1")
    assert str(refused.value) == (
        "layers 1, 2 need the operator moe, which mill device 1 does not have: choose another platform"
    )


def test_a_decoders_needs_follow_from_its_configuration() -> None:
    layers = (LayerConfig(), LayerConfig(window=7))
    config = DecoderConfig("llama", 32, 4, 4, 8, 48, 100, layers, (Rope(1e4, 8),), 64, 1e-6)
    assert config.attention_needs == (frozenset(), frozenset({"sliding_window"}))
    assert config.operator_needs == (frozenset(), frozenset())
    mixed = replace(config, layers=(LayerConfig(), LayerConfig(dense=False)), moe=MoE(4, 16, Routing(2)))
    assert mixed.operator_needs == (frozenset(), frozenset({"moe"}))
    capped = replace(config, num_kv_heads=2, attention_soft_cap=5.0)
    assert capped.attention_needs == ({"gqa", "soft_cap"}, {"gqa", "soft_cap", "sliding_window"})
