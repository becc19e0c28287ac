"""The planned size of a block is the size that the platform allocates: rows of full lanes for the Pallas kernels."""

from __future__ import annotations

import pytest
from fake_xla import FakeXla

from headrace.config import CacheConfig, Config, ModelConfig
from headrace.errors import ConfigError
from headrace.kernels.pallaslib import torch_operators as pallas_table
from headrace.platforms.tpu.device import TpuDevice
from headrace.platforms.tpu.tpu_chips import CHIPS, HOST, TpuChip
from headrace.platforms.tpu.tpu_options import TpuOptions
from headrace.platforms.tpu.xla_step import tensors_of
from headrace.resolution import ModelFacts, resolve
from headrace.types import KVLayout, LayerKV

LAYERS = (LayerKV(2, 64), LayerKV(2, 64))
FACTS = ModelFacts(LAYERS, 1 << 20, 1000, "bfloat16")
MEMORY = 4 << 20


@pytest.fixture(autouse=True)
def _without_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas_table, "operators", lambda call, dtype, interpret: {})


def opened(chip: TpuChip, kernels: str) -> TpuDevice:
    return TpuDevice(FakeXla().runtime(), 0, chip, TpuOptions(kernels=kernels))


def config(memory: int = MEMORY) -> Config:
    return Config(model=ModelConfig(model="m"), cache=CacheConfig(kv_memory=memory))


@pytest.mark.parametrize(("chip", "kernels"), [(CHIPS["0x0063"], "auto"), (HOST, "auto"), (HOST, "interpret")])
def test_the_cache_takes_what_it_was_given_and_no_more(chip: TpuChip, kernels: str) -> None:
    device = opened(chip, kernels)
    resolved, reasons = resolve(config(), device.capabilities(), FACTS, MEMORY)
    kv = device.alloc_kv(resolved.kv_layout, resolved.num_blocks)
    taken = sum(tensor.nbytes for tensor in tensors_of(kv))
    assert MEMORY - taken < taken / resolved.num_blocks
    assert taken <= MEMORY
    padded = device.capabilities().kv_lanes == 128
    assert padded == (chip is not HOST or kernels == "interpret")
    assert any("rows are padded to 128 values" in reason for reason in reasons) == padded
    assert kv.layout == resolved.kv_layout, "the model sees its own rows"
    device.close()


def test_too_little_memory_is_reported_with_the_size_of_blocks() -> None:
    device = opened(CHIPS["0x0063"], "auto")
    size = 2 * 2 * 2 * 2 * 128 * 128  # keys and values, layers, heads, bytes, places, lanes
    with pytest.raises(ConfigError, match=f"needs {2 * size} bytes for two blocks"):
        resolve(config(2 * size - 1), device.capabilities(), FACTS, MEMORY)
    device.close()


def test_rows_are_padded_to_a_multiple() -> None:
    layout = KVLayout((LayerKV(2, 64), LayerKV(1, 129, 7)), 16, "int8")
    assert layout.padded(1) == layout
    assert layout.padded(128) == KVLayout((LayerKV(2, 128), LayerKV(1, 256, 7)), 16, "int8")
