"""The engine over two ranks, each a process: the answers of one, clean ends, and a rank that is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import tiny_models
import torch
from engine_forks import forks
from engine_harness import choices, config_of, request
from parallel_tokens import Letters
from seeded_drafts import ByRequest, EngineDrafts, EnginePlaced, use

from headrace.client.in_process_client import InProcessClient
from headrace.config import Config, DeviceConfig, ModelConfig, ParallelConfig
from headrace.engine import startup
from headrace.engine.ranks import leader
from headrace.engine.startup import build_engine
from headrace.errors import ConfigError, EngineDead, HeadraceError, PlatformError
from headrace.platforms.cpu.native import missing
from headrace.types import COLLECTIVES, Capabilities, DeviceInfo

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
PROMPTS = [tiny_models.prompt(n) for n in (30, 5, 17)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny_models.save("llama", path, dtype=torch.bfloat16)
    return path


def parallel(model: Path, size: int) -> Config:
    exact = ModelConfig(model=str(model), dtype="float32")
    changes = {"parallel": ParallelConfig(tensor_parallel_size=size), "model": exact}
    return config_of(model, chunk=16).model_copy(update=changes)


async def answers(client: InProcessClient) -> list[list[int]]:
    wanted = [request(ids, id=f"r{n}", max_tokens=12, logprobs=None) for n, ids in enumerate(PROMPTS)]
    wanted.append(request(PROMPTS[0], id="drawn", max_tokens=12, logprobs=None, temperature=1.0, seed=7))
    return [found[0].ids for found in await asyncio.gather(*(choices(client, one) for one in wanted))]


def followers() -> list[psutil.Process]:
    """The processes of this process's ranks; a suite has others."""
    started = forks().running.items()
    return [psutil.Process(pid) for pid, command in started if "headrace.engine.ranks.follower" in command]


@asynccontextmanager
async def started(config: Config) -> AsyncIterator[InProcessClient]:
    client = InProcessClient(config, Letters())
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def end_of(client: InProcessClient) -> str:
    """The error of a request when the engine has exited."""
    found = await choices(client, request(PROMPTS[0], id="long", max_tokens=200, logprobs=None))
    return str(found[0].finish)


def test_two_ranks_report_named_tokens_and_take_scores_from_the_cache(model: Path) -> None:
    async def run() -> None:
        scored = request(PROMPTS[0], id="scored", max_tokens=2, prompt_logprobs=2)
        wanted = request(PROMPTS[0], id="named", max_tokens=6, logprobs=0, logprob_token_ids=(3, 150))
        found = []
        for size in (1, 2):
            async with started(parallel(model, size)) as ranks:
                found.append((await choices(ranks, wanted))[0].logprobs)
                cold, warm = [(await choices(ranks, scored))[0] for _ in range(2)]
                assert cold.bits == warm.bits
                assert [one.usage.cached_tokens for one in (cold, warm)] == [0, len(PROMPTS[0]) - 1]
        for one, two in zip(*found, strict=True):
            assert [token for token, *_ in two.top] == [3, 150]
            # The order of a sum over ranks is another.
            assert [value for *_, value in two.top] == pytest.approx([value for *_, value in one.top], abs=1e-4)

    asyncio.run(run())


def test_two_ranks_verify_drafts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of drafts are those of one rank."""

    async def run() -> None:
        async with started(parallel(model, 1)) as one:
            wanted = await answers(one)
        known = ByRequest(zip(("r0", "r1", "r2", "drawn"), wanted, strict=True))
        made = use(monkeypatch, lambda: EngineDrafts(known, 0.8, 0.9, 0, 260))
        async with started(parallel(model, 2)) as two:
            assert await answers(two) == wanted
            assert made[0].accepted > 5

    asyncio.run(run())


def test_two_ranks_place_the_same_drafts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device finds them in its own history, and counts those that are right."""

    async def run() -> None:
        async with started(parallel(model, 1)) as one:
            wanted = await answers(one)
        made = use(monkeypatch, lambda: EnginePlaced(1.0, 2))
        config = parallel(model, 2)
        scheduler = config.scheduler.model_copy(update={"speculate": "ngram"})
        async with started(config.model_copy(update={"scheduler": scheduler})) as two:
            assert await answers(two) == wanted
        assert made[0].ahead > 0

    asyncio.run(run())


def test_two_ranks_answer_as_one_and_the_exit_of_one_is_reported(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "_ERROR_TIMEOUT", 300.0)

    async def run() -> None:
        async with started(parallel(model, 1)) as one:
            wanted = await answers(one)
        async with started(parallel(model, 2)) as two:
            (rank,) = followers()
            assert await answers(two) == wanted
            await killed(two, rank)
        assert followers() == []

    asyncio.run(run())


async def killed(client: InProcessClient, rank: psutil.Process) -> None:
    """Kill the only follower during a step: what waits and what comes then are told."""
    rank.suspend()  # so that steps are under way, and wait, when the rank dies
    waiting = asyncio.create_task(end_of(client))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    rank.kill()
    with pytest.raises(EngineDead, match=r"rank 1 was killed by signal 9"):
        await waiting
    with pytest.raises(EngineDead, match="rank 1"):
        await end_of(client)


def refused(config: Config) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        build_engine(config, lambda stage, done: None)
    assert followers() == []
    return caught.value


def test_heads_that_do_not_divide_are_refused_before_a_process_is_started(model: Path) -> None:
    error = refused(parallel(model, 3))
    assert isinstance(error, ConfigError)
    assert "llama's 4 query heads and 2 KV heads do not divide among 3 ranks: choose 1, 2 or 4" in str(error)


def test_platforms_without_collectives_are_refused(model: Path) -> None:
    config = parallel(model, 2).model_copy(update={"device": DeviceConfig(platform="sim")})
    error = refused(config)
    assert isinstance(error, PlatformError)
    assert "rank 0 of 2 cannot open a device of platform sim: sim: unknown option" in str(error)


class Alone:
    """A platform whose devices know no ranks."""

    name = "alone"

    def __init__(self, collectives: frozenset[str], count: int) -> None:
        self._able = Capabilities(frozenset({"float32"}), frozenset({"float32"}), collectives=collectives)
        self._count = count

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(index, "a device", 1) for index in range(self._count)]

    def capabilities(self) -> Capabilities:
        return self._able


@pytest.mark.parametrize(
    ("platform", "said"),
    [
        (Alone(frozenset({"broadcast"}), 2), "platform alone has no all_gather and no all_reduce between ranks"),
        (Alone(COLLECTIVES, 1), "platform alone has 1 device, and device 0 is the first to be used: choose at most 1"),
    ],
)
def test_too_few_devices_and_too_few_collectives_are_reported(model: Path, platform: Alone, said: str) -> None:
    device: Any = platform
    with pytest.raises(ConfigError, match=said):
        startup._check_room(device, device, parallel(model, 2))


def test_ranks_have_devices_of_their_own_where_there_are_several(model: Path) -> None:
    config = parallel(model, 2).model_copy(update={"device": DeviceConfig(index=1)})
    several, one = (Alone(COLLECTIVES, count) for count in (4, 1))
    assert startup._device_index(several, config, 2) == 3  # type: ignore[arg-type]
    assert startup._device_index(one, config.model_copy(update={"device": DeviceConfig()}), 2) == 0  # type: ignore[arg-type]
