"""The method of speculation that needs a model, and the memory that the model's cache shares with the target's."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import CacheConfig, Config, SchedulerConfig
from headrace.errors import ConfigError
from headrace.options import make_config
from headrace.resolution import ModelFacts, resolve
from headrace.types import Capabilities, KVLayout, LayerKV

DEVICE = Capabilities(frozenset({"float32"}), frozenset({"float32"}), host_memory=True)
FACTS = ModelFacts((LayerKV(2, 8),) * 4, 64, 100, "float32")
BESIDE = KVLayout((LayerKV(1, 8),) * 2, 16, "float32")
BLOCK = KVLayout(FACTS.layers, 16, "float32").bytes_per_block


@pytest.mark.parametrize("text", ["draft", "draft:"])
def test_the_method_without_a_model_names_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"--speculate {text}: .*write it as draft:MODEL"):
        make_config("m", {"speculate": text}, flags=True)


def test_other_methods_take_no_model() -> None:
    with pytest.raises(ConfigError, match=r"the method ngram takes no checkpoint, as draft, .* do: leave out :some"):
        make_config("m", {"speculate": "ngram:some"})


def test_the_models_name_becomes_its_path() -> None:
    given = SchedulerConfig(speculate="draft:some")
    found = given.with_draft_model(lambda name, is_model: Path("/models") / f"{name}-{is_model}.gguf")
    assert (given.draft_model, found.draft_model) == ("some", "/models/some-True.gguf")
    other = SchedulerConfig(speculate="suffix")
    assert other.draft_model is None
    assert other.with_draft_model(lambda name, is_model: Path(name)) is other


def test_a_precision_that_is_none_is_refused_with_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"--draft-quantization int3: .*'auto', 'none', 'int8' or 'int4'"):
        make_config("m", {"draft_quantization": "int3"}, flags=True)


def test_both_caches_share_the_memory() -> None:
    config = Config(cache=CacheConfig(kv_memory=30 * BLOCK))
    alone, _ = resolve(config, DEVICE, FACTS, 0)
    shared, reasons = resolve(config, DEVICE, FACTS, 0, beside=BESIDE)
    assert alone.num_blocks == 30
    assert shared.num_blocks == 30 * BLOCK // (BLOCK + BESIDE.bytes_per_block) == 24
    assert "24 KV blocks of the draft model, in the same memory" in reasons
    head = config.model_copy(update={"scheduler": SchedulerConfig(speculate="eagle3:head")})
    assert "24 KV blocks of the eagle3 drafter, in the same memory" in resolve(head, DEVICE, FACTS, 0, beside=BESIDE)[1]
    assert resolve(Config(cache=CacheConfig(num_blocks=9)), DEVICE, FACTS, 0, beside=BESIDE)[0].num_blocks == 9
