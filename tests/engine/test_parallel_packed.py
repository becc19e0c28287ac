"""Every rank keeps its packed part and loads it at the next start, without a look at the checkpoint's weights."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import parallel_follower
import pytest
import tiny_models
import torch
from moe_models import save_moe
from parallel_harness import greedy

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.packed import cache
from headrace.config import CacheConfig, Config, DeviceConfig, ModelConfig, ParallelConfig
from headrace.engine.rank_loading import load_follower, packing_threads
from headrace.engine.ranks.rank_messages import Sizes, Start
from headrace.engine.startup import build_engine
from headrace.models.decoder import Decoder
from headrace.platforms.cpu.native import missing
from headrace.platforms.cpu.native_device import NativeDevice
from headrace.types import Request, SamplingParams

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
IDS = tiny_models.prompt(12)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that takes tiny models too."""
    monkeypatch.setattr(cache, "_WORTH", 0)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "home"))
    return tmp_path / "home" / "packed"


def config_of(path: Path, size: int, complete: bool = False, **model: Any) -> Config:
    return Config(
        model=ModelConfig(model=str(path), **model),
        cache=CacheConfig(num_blocks=30),
        device=DeviceConfig(platform="cpu", threads=1),
        parallel=ParallelConfig(tensor_parallel_size=size, expert_parallel=complete),
    )


def logits(path: Path, directory: Path, size: int = 2, complete: bool = False, **model: Any) -> list[torch.Tensor]:
    """Of each rank, loaded as its process would, in a thread."""
    directory.mkdir()
    start = config_of(path, size, complete, **model).model_dump_json(exclude={"server"})

    def rank_main(rank: int) -> torch.Tensor:
        sizes = Sizes(64, 16, "float32", 8, 1, 64)
        loaded = load_follower(
            Start(start, rank, size, 0, f"file://{directory}/meeting"), lambda said: None, lambda: sizes
        )
        try:
            return greedy(loaded.device, cast(Decoder, loaded.runner._model), [*IDS], 2)
        finally:
            loaded.close()

    with ThreadPoolExecutor(size) as pool:
        return [found.result(300) for found in [pool.submit(rank_main, rank) for rank in range(size)]]


@pytest.mark.parametrize(
    ("variant", "options"), [("llama", {}), ("llama-tied-bias", {"quantize": "int8"}), ("qwen2_moe", {})], ids=str
)
def test_packed_parts_are_read_again(
    variant: str, options: dict[str, Any], tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (save_moe if variant == "qwen2_moe" else tiny_models.save)(variant, tmp_path / "model", torch.bfloat16)
    cold = logits(tmp_path / "model", tmp_path / "cold", **options)
    assert sorted(str(entry.about["part"]) for entry in cache.kept(home)) == ["rank 0 of 2", "rank 1 of 2"]
    monkeypatch.setattr(Checkpoint, "build", parallel_follower.refuse)
    assert torch.equal(torch.stack(logits(tmp_path / "model", tmp_path / "warm", **options)), torch.stack(cold))


def test_parts_with_complete_experts_are_kept_beside_those_with_a_part_of_each(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_moe("qwen2_moe", tmp_path / "model", torch.bfloat16)
    logits(tmp_path / "model", tmp_path / "cut")
    cold = logits(tmp_path / "model", tmp_path / "cold", complete=True)
    parts = {str(entry.about["part"]) for entry in cache.kept(home)}
    wanted = ("", ", complete experts")
    assert parts == {f"rank {rank} of 2{complete}" for rank in range(2) for complete in wanted}
    monkeypatch.setattr(Checkpoint, "build", parallel_follower.refuse)
    warm = logits(tmp_path / "model", tmp_path / "warm", complete=True)
    assert torch.equal(torch.stack(warm), torch.stack(cold))


def test_parts_are_of_one_rank_and_one_number_of_ranks(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_models.save("llama", tmp_path / "model", torch.bfloat16)
    cold = logits(tmp_path / "model", tmp_path / "two", dtype="float32")
    logits(tmp_path / "model", tmp_path / "four", size=4, dtype="float32")
    parts = {str(entry.about["part"]): entry for entry in cache.kept(home)}
    assert parts.keys() == {f"rank {rank} of {size}" for size in (2, 4) for rank in range(size)}
    assert parts["rank 0 of 4"].size < parts["rank 0 of 2"].size
    # One rank's part is lost: that rank alone packs again.
    parts["rank 1 of 2"].path.write_bytes(b"damaged")
    reading, build = list[int](), Checkpoint.build

    def watched(self: Checkpoint, *args: Any, **more: Any) -> Decoder:
        reading.append(more["shard"].rank)
        return build(self, *args, **more)

    monkeypatch.setattr(Checkpoint, "build", watched)
    again = logits(tmp_path / "model", tmp_path / "again", dtype="float32")
    assert reading == [1]
    assert torch.equal(again[0], cold[0])
    assert torch.equal(again[1], cold[1])


def answer(path: Path, follower: str) -> list[Any]:
    """Tokens and logprobs of a greedy answer, from an engine of two processes."""
    command = (sys.executable, str(parallel_follower.__file__), follower)
    engine = build_engine(config_of(path, 2), lambda stage, done: None, command)
    try:
        params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, logprobs=2)
        engine.core.add([Request("r", tuple(IDS), params, (2,))])
        found: list[Any] = []
        while engine.core.has_work():
            found += [(delta.token_ids, delta.logprobs) for delta in engine.core.step()]
        return found
    finally:
        engine.close()


def test_an_engine_of_two_processes_starts_from_packed_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_models.save("llama", tmp_path / "model", torch.bfloat16)
    cold = answer(tmp_path / "model", "cold")
    monkeypatch.setattr(Checkpoint, "build", parallel_follower.refuse)
    assert answer(tmp_path / "model", "warm") == cold


@pytest.mark.parametrize(("cores", "ranks", "threads"), [(8, 2, 2), (2, 2, 1), (1, 4, 1), (1, 1, 2)])
def test_ranks_of_one_host_share_its_cores_to_pack(
    cores: int, ranks: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    device = NativeDevice(threads=1)
    try:
        assert packing_threads(device, ranks) == threads
    finally:
        device.close()
