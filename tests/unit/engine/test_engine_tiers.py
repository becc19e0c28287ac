"""What the tiers' options may be combined with, and the names of layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from headrace.config import CacheConfig, Config, ModelConfig, ParallelConfig, SchedulerConfig, TransferConfig
from headrace.engine.tier_loading import check_tiers
from headrace.errors import ConfigError
from headrace.types import Capabilities

DEVICE = Capabilities(frozenset({"float32"}), frozenset({"float32"}))
HOST = Capabilities(frozenset({"float32"}), frozenset({"float32"}), host_memory=True)


def config(cache: dict[str, Any], **others: Any) -> Config:
    return Config(model=ModelConfig(model="m"), cache=CacheConfig(**cache), **others)


@pytest.mark.parametrize(
    "cache", [{}, {"kv_disk": "/d:1G"}, {"kv_host_memory": 10}, {"kv_host_memory": 1, "kv_disk": "d:1"}]
)
def test_allowed(cache: dict[str, Any]) -> None:
    check_tiers(config(cache), DEVICE, "cuda")


def test_host_memory_is_refused_where_the_device_is_the_host() -> None:
    with pytest.raises(ConfigError, match=r"kv_host_memory: platform cpu .*kv_memory.*kv_disk"):
        check_tiers(config({"kv_host_memory": 10}), HOST, "cpu")
    check_tiers(config({"kv_disk": "/d:1G"}), HOST, "cpu")


@pytest.mark.parametrize("parallel", [(2, 1), (1, 2), (2, 2)])
def test_ranks_go_with_tiers_and_roles(parallel: tuple[int, int]) -> None:
    size, stages = parallel
    ranks = ParallelConfig(tensor_parallel_size=size, pipeline_parallel_size=stages)
    check_tiers(config({"kv_disk": "/d:1G"}, parallel=ranks, transfer=TransferConfig(role="both")), HOST, "cpu")


@pytest.mark.parametrize("method", [None, "ngram", "suffix", "draft:small", "mtp", "eagle3:head", "dflash:d"])
def test_every_drafter_goes_with_tiers(method: str | None) -> None:
    check_tiers(config({"kv_disk": "/d:1G"}, scheduler=SchedulerConfig(speculate=method)), HOST, "cpu")


def test_without_prefix_caching_there_is_nothing_to_keep() -> None:
    with pytest.raises(ConfigError, match=r"kv_disk.*prefix_caching"):
        check_tiers(config({"kv_disk": "/d:1G", "prefix_caching": False}), HOST, "cpu")


@pytest.mark.parametrize(
    ("text", "folder", "size"),
    [("/var/kv:2GiB", "/var/kv", 2 << 30), ("C:x:500M", "C:x", 5 * 10**8), ("kv:1000", "kv", 1000)],
)
def test_a_folder_and_its_size(text: str, folder: str, size: int) -> None:
    assert CacheConfig(kv_disk=text).disk == (Path(folder), size)
    assert CacheConfig().disk is None


@pytest.mark.parametrize("text", ["/var/kv", "/var/kv:", ":1G", "/var/kv:0", "/var/kv:much", ""])
def test_bad_folders_and_sizes(text: str) -> None:
    with pytest.raises(ValidationError, match=r"DIR|size|100GiB"):
        CacheConfig(kv_disk=text)
