"""The memory that several models of one server share: the parts of their caches, limits below one model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pool_fakes import FakeEngines, plan, pool_server

from headrace.config import Config
from headrace.errors import ConfigError
from headrace.server.model_budget import PROCESS, kv_parts, with_kv
from headrace.server.model_loader import OpenedEngine
from headrace.server.several import make_pool


def test_the_memory_of_caches() -> None:
    gib = 1 << 30
    # Both fit with a quarter to spare: what is left is halved.
    assert kv_parts([2 * gib, gib], 8 * gib, None) == 5 * gib // 2
    # Only one fits so: it gets all that it leaves.
    assert kv_parts([6 * gib, 5 * gib], 8 * gib, None) == 2 * gib
    assert kv_parts([2 * gib, gib], 8 * gib, 1) == 6 * gib
    with pytest.raises(ConfigError, match=r"the largest model needs about 9\.00 GiB"):
        kv_parts([9 * gib], 8 * gib, None)
    config = Config()
    assert with_kv(config, gib, 2).cache.kv_memory == gib
    assert with_kv(config, None, 2).cache.kv_share == 0.4
    own = Config.model_validate({"cache": {"kv_memory": 5}})
    assert with_kv(own, gib, 2) is own
    assert with_kv(config, gib, None).cache.kv_memory == gib


@pytest.mark.parametrize(
    ("names", "loading", "share"), [("a", {}, None), ("ab", {}, 0.4), ("ab", {"models_max": 1}, 0.8)]
)
def test_the_only_model_keeps_its_default_share(names: str, loading: dict[str, Any], share: float | None) -> None:
    engines = RecordingEngines()

    async def scenario() -> None:
        async with pool_server(*map(plan, names), engines=engines, **loading) as server:
            await server.text("a")

    asyncio.run(scenario())
    assert [config.cache.kv_share for config in engines.configs] == [share]


class RecordingEngines(FakeEngines):
    """Keeps the configurations."""

    def __init__(self) -> None:
        super().__init__()
        self.configs: list[Config] = []

    async def __call__(self, config: Config, progress: Any) -> OpenedEngine:
        self.configs.append(config)
        return await super().__call__(config, progress)


def test_a_limit_below_the_largest_model_is_refused_at_the_start() -> None:
    config = Config.model_validate({"loading": {"models_memory": PROCESS // 2}})
    with pytest.raises(ConfigError, match="--models-memory"):
        make_pool(config, [plan("a")], FakeEngines())
