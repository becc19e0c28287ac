"""The engine over two ranks with complete experts, each rank a process: bits in any company, and what it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from engine_harness import GroupingClient, config_of, idle, in_turn, request, together
from moe_models import save_moe
from parallel_tokens import Letters
from test_parallel_engine import Alone, refused

from headrace.config import Config, DeviceConfig, ModelConfig, ParallelConfig
from headrace.engine import startup
from headrace.errors import ConfigError
from headrace.platforms.cpu.native import missing
from headrace.types import COLLECTIVES

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

DRAWN: tuple[dict[str, Any], ...] = ({}, {"temperature": 1.0, "seed": 3})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_moe("qwen2_moe", path, dtype=torch.bfloat16, vocab_size=260)
    return path


def distributed(model: Path, size: int = 2, **sizes: Any) -> Config:
    parallel = ParallelConfig(tensor_parallel_size=size, expert_parallel=True)
    return config_of(model, **sizes).model_copy(update={"parallel": parallel})


def requests() -> list[Any]:
    """Greedy and sampled, two of which open alike. Each fits five blocks, no two do in the end."""
    shared = tiny_models.prompt(33, 260)
    prompts = [tiny_models.prompt(9, 260), [*shared, 7, 8], tiny_models.prompt(20, 260), [*shared[:20], 5]]
    return [
        request(ids, f"r{at}", max_tokens=max(41 - len(ids), 0) + 10 + at, logprobs=2, **DRAWN[at // 2])
        for at, ids in enumerate(prompts)
    ]


async def played(config: Config, *rounds: Any) -> tuple[list[Any], Any]:
    client = GroupingClient(config, Letters())
    await client.start()
    try:
        found = [answer for play, wanted in rounds for answer in await play(client, wanted)]
        return found, await idle(client)
    finally:
        await client.close()


def test_the_same_bits_alone_in_a_crowd_in_chunks_preempted_and_warm(model: Path) -> None:
    async def run() -> None:
        wanted, _ = await played(distributed(model, seqs=1, blocks=40, caching=False), (in_turn, requests()))
        assert len({str(one.logprobs) for one in wanted}) == len(wanted)
        crowd = distributed(model, seqs=4, blocks=6, chunk=13)
        found, stats = await played(crowd, (together, requests()), (together, requests()))
        assert [one.bits for one in found] == 2 * [one.bits for one in wanted]
        assert stats.scheduler.cached_tokens > 0
        assert stats.scheduler.preemptions > 0

    asyncio.run(run())


@pytest.mark.parametrize("native", ["1", "0"])
def test_the_tokens_of_one_rank(model: Path, native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In exact arithmetic, by kernels and by reference. Sums of attention are in another order, so bits may differ."""

    async def run() -> None:
        monkeypatch.setenv("HEADRACE_NATIVE", native)
        exact = ModelConfig(model=str(model), dtype="float32")
        wanted = [request(one.prompt, one.id, max_tokens=6, **DRAWN[at % 2]) for at, one in enumerate(requests())]
        one = config_of(model).model_copy(update={"model": exact})
        expected, _ = await played(one, (together, wanted))
        found, _ = await played(distributed(model).model_copy(update={"model": exact}), (together, wanted))
        assert [answer.ids for answer in found] == [answer.ids for answer in expected]

    asyncio.run(run())


def test_stages_whose_ranks_hold_complete_experts(model: Path) -> None:
    """Four ranks, two a stage: a stage changes no bit, so they answer as two ranks, in company and in chunks."""

    async def run() -> None:
        def wanted() -> list[Any]:
            return [
                request(one.prompt, one.id, max_tokens=3, logprobs=2, **DRAWN[at // 2])
                for at, one in enumerate(requests())
            ]

        expected, _ = await played(distributed(model, seqs=1), (in_turn, wanted()))
        parallel = ParallelConfig(tensor_parallel_size=2, expert_parallel=True, pipeline_parallel_size=2)
        staged = distributed(model, seqs=4, chunk=13).model_copy(update={"parallel": parallel})
        found, _ = await played(staged, (together, wanted()))
        assert [one.bits for one in found] == [one.bits for one in expected]

    asyncio.run(run())


def test_models_without_experts_and_one_rank_are_refused(model: Path, tmp_path: Path) -> None:
    tiny_models.save("llama", tmp_path)
    error = refused(distributed(tmp_path))
    assert isinstance(error, ConfigError)
    assert "llama has no experts: leave expert_parallel out" in str(error)
    assert "raise tensor_parallel_size" in str(refused(distributed(model, size=1)))


def test_platforms_without_the_collective_are_refused(model: Path) -> None:
    platform: Any = Alone(COLLECTIVES, 2)
    with pytest.raises(ConfigError, match=r"expert_parallel with .* 2: platform alone has no all_to_all between ranks"):
        startup._check_room(platform, platform, distributed(model).model_copy(update={"device": DeviceConfig()}))
