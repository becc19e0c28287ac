"""The engine over stages, each a process: the bits of one rank, clean ends, and a rank that is killed."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parallel_follower
import pytest
import tiny_models
from embedding_harness import embed, pooled
from engine_harness import Answer, alone, config_of, engine, idle, in_turn, request, together
from pipeline_harness import pipeline, split
from test_engine_bits import COUNT, leave_half, mixed, same
from test_parallel_engine import end_of, followers, killed, refused
from tiny_models import prompt as random_prompt

from headrace import LLM, SamplingParams
from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.packed import cache
from headrace.config import DeviceConfig
from headrace.engine.ranks import leader, step_patience
from headrace.engine.startup import build_engine
from headrace.errors import ConfigError, EngineDead
from headrace.platforms.cpu.native import missing
from headrace.structured_outputs import StructuredOutputs
from headrace.types import Request

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
VOCAB = 260


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> list[Answer]:
    return alone(tiny_llama, mixed(COUNT))


def test_two_stages_answer_as_one_rank(tiny_llama: Path, wanted: list[Answer]) -> None:
    """In company and alone, cold and warm, in chunks, and with half of the requests left."""

    async def main() -> None:
        async with pipeline(tiny_llama, 2, chunk=16) as client:
            same(await together(client, mixed(COUNT)), wanted)
            same(await together(client, mixed(COUNT)), wanted)
            same(await in_turn(client, mixed(COUNT)[:3]), wanted[:3])
            await leave_half(client, mixed(COUNT), random.Random(3), wanted)
            stats = await idle(client)
            assert stats.scheduler.cached_tokens > 0
        assert followers() == []

    asyncio.run(main())


def test_three_stages_preempt_and_pool_as_one(tmp_path: Path, tiny_llama: Path) -> None:
    """One layer each, a pool of few blocks, and embeddings beside."""
    path = tmp_path / "model"
    path.mkdir()
    for file in tiny_llama.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    tiny_models.save("llama", path, vocab_size=VOCAB, max_position_embeddings=512, hidden_size=32)
    requests = [request(random_prompt(40 + at, VOCAB), f"p{at}", max_tokens=24, logprobs=None) for at in range(8)]

    async def main() -> None:
        async with engine(path) as client:
            expected = await together(client, requests)
            vectors = [await embed(client, pooled(random_prompt(30, VOCAB), kind, kind)) for kind in ("last", "mean")]
        async with pipeline(path, 3, blocks=21, chunk=32) as client:
            found = await together(client, requests)
            assert (await idle(client)).scheduler.preemptions > 0
            assert [one.ids for one in found] == [one.ids for one in expected]
            for kind, vector in zip(("last", "mean"), vectors, strict=True):
                assert await embed(client, pooled(random_prompt(30, VOCAB), kind, kind)) == vector

    asyncio.run(main())


def generated(model: Path, stages: int) -> Iterator[Any]:
    """Texts under constraints, with drafts, and with both."""
    forms = [StructuredOutputs(regex="[a-f]{3}[0-9]+x"), StructuredOutputs(choice=["yes", "no, never"]), None]
    params = [
        SamplingParams(max_tokens=20, temperature=heat, seed=at, structured_outputs=form, logprobs=1)
        for at, (heat, form) in enumerate((heat, form) for heat in (0.0, 1.0) for form in forms)
    ]
    options: dict[str, Any] = {"platform": "cpu", "threads": 1, "num_blocks": 60, "speculate": "ngram"}
    with LLM(str(model), pipeline_parallel_size=stages, **options) as llm:
        for answer in llm.generate(["Hello, hello, hello"] * len(params), params):
            yield [(one.token_ids, one.text, one.finish_reason, one.logprobs) for one in answer.outputs]


def test_constraints_and_drafts_give_the_texts_of_one_rank(tiny_llama: Path) -> None:
    assert list(generated(tiny_llama, 2)) == list(generated(tiny_llama, 1))


def test_stages_of_two_ranks_answer_as_two_ranks(tiny_llama: Path) -> None:
    """Four ranks: each stage sums in the order of its two."""
    requests = mixed(6, longest=40)

    async def main() -> None:
        async with pipeline(tiny_llama, 1, 2) as client:
            expected = await together(client, requests)
        async with pipeline(tiny_llama, 2, 2, chunk=32) as client:
            same(await together(client, requests), expected)

    asyncio.run(main())


def test_the_end_of_a_stage_is_reported(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "_ERROR_TIMEOUT", 300.0)

    async def run() -> None:
        async with pipeline(tiny_llama, 2) as client:
            (rank,) = followers()
            await killed(client, rank)
        assert followers() == []

    asyncio.run(run())


def test_a_stage_that_stands_still_is_ended(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "_EXIT_TIMEOUT", 0.1)

    async def run() -> None:
        async with pipeline(tiny_llama, 2) as client:
            await together(client, mixed(1))
            for name in ("_LEAST", "_TIMES", "_ROWS"):
                monkeypatch.setattr(step_patience, name, 0.05)
            (rank,) = followers()
            rank.suspend()
            with pytest.raises(EngineDead, match=r"gave no result within .*: rank 1: its process is stopped"):
                await end_of(client)
        assert followers() == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("stages", "more", "said"),
    [
        (3, {}, "pipeline_parallel_size 3: llama's 2 layers cannot be split over so many stages: choose at most 2"),
        (2, {"speculate": "draft:m"}, "pipeline_parallel_size 2: what draft drafts with reads a model that is whole"),
        (2, {"disk": "/tmp/none:1GiB", "caching": False}, "kv_disk needs blocks of cached prefixes"),
    ],
    ids=str,
)
def test_what_stages_cannot_have_is_refused(tiny_llama: Path, stages: int, more: dict[str, Any], said: str) -> None:
    error = refused(split(config_of(tiny_llama, **more), stages))
    assert isinstance(error, ConfigError)
    assert said in str(error)


def test_platforms_that_pass_no_rows_are_refused(tiny_llama: Path) -> None:
    config = split(config_of(tiny_llama), 2).model_copy(update={"device": DeviceConfig(platform="sim")})
    assert "rank 0 of 2 cannot open a device of platform sim" in str(refused(config))


def test_each_stage_starts_from_its_packed_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_WORTH", 0)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "home"))
    tiny_models.save("llama-tied-bias", tmp_path / "model")
    config = split(config_of(tmp_path / "model", blocks=30), 2)
    config = config.model_copy(update={"model": config.model.model_copy(update={"packed_cache": 1 << 30})})

    def answer(follower: str) -> list[Any]:
        built = build_engine(
            config, lambda stage, done: None, (sys.executable, str(parallel_follower.__file__), follower)
        )
        try:
            params = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, logprobs=2)
            built.core.add([Request("r", tuple(tiny_models.prompt(12)), params, (2,))])
            found: list[Any] = []
            while built.core.has_work():
                found += [(delta.token_ids, delta.logprobs) for delta in built.core.step()]
            return found
        finally:
            built.close()

    cold = answer("cold")
    parts = sorted(str(entry.about["part"]) for entry in cache.kept(tmp_path / "home" / "packed"))
    assert parts == ["rank 0 of 2", "rank 1 of 2"]
    monkeypatch.setattr(Checkpoint, "build", parallel_follower.refuse)
    assert answer("warm") == cold
