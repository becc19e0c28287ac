"""Drafts of the device on two ranks: steps with drafts overlap, and every token, logprob and end is that of two ranks
without drafts; a rank that dies while drafts are in flight ends the engine with its own error."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from block_draft_checkpoints import save
from draft_engine import Built, save_draft, watch
from engine_harness import Answer, GroupingClient, answer, idle, in_turn, request, together
from pipeline_harness import pipeline
from seeded_drafts import EnginePlaced, use
from test_draft_heads import balanced, save_target_with_heads
from test_engine_bits import leave_half, same
from test_head_bits import drafted, method_of
from test_parallel_engine import followers
from test_speculation_bits import repeats

from headrace.client.api import GenerateRequest
from headrace.engine.head_drafter import HeadDrafter
from headrace.engine.ranks import leader
from headrace.errors import EngineDead
from headrace.platforms.cpu.native import missing
from headrace.structured_outputs import Constraint

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))
TIGHT = {"chunk": 11, "seqs": 4, "blocks": 20}
"""Sequences are cut, wait and are preempted."""
FORMED: dict[str, Any] = {"allowed_token_ids": None, "stop_token_ids": (), "ignore_eos": False, "max_tokens": 30}
"""Of requests with a grammar."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with a head of its own, and beside it an EAGLE-3 head."""
    path = save_target_with_heads(tmp_path_factory.mktemp("target"), "deepseek")
    save_draft(path / "small")
    return path


def run(target: Path, use_it: Callable[[GroupingClient], Awaitable[Any]], **sizes: Any) -> Any:
    """What is done with an engine of two ranks."""

    async def main() -> Any:
        async with pipeline(target, 1, 2, **sizes) as client:
            return await use_it(client)

    return asyncio.run(main())


def asked() -> list[GenerateRequest]:
    """Requests in whose text there are drafts, and some with a grammar, whose steps are launched in two parts."""
    found = repeats()
    for at, one in enumerate(found[2:6]):
        formed = Constraint("regex", "([abc]{3}x)+y{1,3}z")
        found.append(GenerateRequest(f"formed{at}", one.prompt, replace(one.params, **FORMED), constraint=formed))
    return found


def alone(target: Path) -> list[Answer]:
    """The answers of two ranks to one request at a time, without drafts."""
    return run(target, lambda client: in_turn(client, asked()), caching=False, seqs=1)


@pytest.fixture(scope="module")
def wanted(target: Path) -> list[Answer]:
    return alone(target)


async def all_ways(client: GroupingClient, wanted: list[Answer]) -> int:
    """Together, with and without cached prefixes, and left. Returns how often a sequence was preempted."""
    same(await together(client, asked()), wanted)
    same(await together(client, asked()), wanted)
    rng = random.Random(4)
    for _ in range(1):
        await leave_half(client, asked(), rng, wanted)
    stats = await idle(client)
    assert stats.scheduler.cached_tokens > 0
    return stats.scheduler.preemptions


@pytest.mark.parametrize("sizes", [{}, TIGHT], ids=str)
def test_every_rank_finds_the_same_drafts(
    target: Path, wanted: list[Answer], sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in its own history of tokens."""
    made = use(monkeypatch, lambda: EnginePlaced(0.9, 3))
    preempted = run(target, lambda client: all_ways(client, wanted), speculate="ngram", **sizes)
    assert (preempted > 0) == bool(sizes)
    assert made[0].ahead > 10
    assert 10 < made[0].accepted < made[0].drafted


@pytest.mark.parametrize(("method", "sizes"), [("eagle3", {}), ("eagle3", TIGHT), ("mtp", TIGHT)], ids=str)
def test_every_rank_gets_the_drafts_of_a_head(
    target: Path, wanted: list[Answer], method: str, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 alone has it, and its rounds are launched while steps of all ranks are in flight."""
    built = watch(monkeypatch)
    speculate = method_of(method, target)
    preempted = run(target, lambda client: all_ways(client, wanted), speculate=speculate, **sizes)
    assert (preempted > 0) == bool(sizes)
    balanced(built)
    made, right = drafted(built, method)
    assert 10 < right < made
    assert unwaited(built) > 0


def test_every_rank_gets_the_drafts_of_a_model(
    target: Path, wanted: list[Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 alone has it, whole."""
    built = watch(monkeypatch)
    preempted = run(target, lambda client: all_ways(client, wanted), speculate=f"draft:{target / 'small'}", **TIGHT)
    assert preempted > 0
    built.check()
    assert built.counts.drafted > 10
    assert built.model.unwaited > 0


@pytest.mark.parametrize("layout", ["zlab", "zlab-mask-vector", "dspark"])
def test_every_rank_gets_drafted_blocks(
    layout: str, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 alone has the drafter."""
    method = "dspark" if layout == "dspark" else "dflash"
    expected, speculate = alone(tiny_llama), f"{method}:{save(layout, tmp_path / layout)}"
    built = watch(monkeypatch)
    preempted = run(tiny_llama, lambda client: all_ways(client, expected), speculate=speculate, **TIGHT)
    assert preempted > 0
    blocks = built.engines[-1].blocks
    assert blocks is not None
    assert blocks.failures == 0
    assert blocks.unwaited > 0
    assert built.counts.drafted > 10


def unwaited(built: Built) -> float:
    head = built.engines[-1].head
    assert head is not None
    return head.unwaited


async def killed(client: GroupingClient, ahead: Callable[[], float]) -> None:
    """Kill the other rank in the middle of an answer, when steps with drafts are in flight."""
    (rank,) = followers()
    while True:
        waiting = asyncio.create_task(answer(client, request((70, 71) * 9, max_tokens=400, logit_bias=((70, 99.0),))))
        while not (ahead() or waiting.done()):
            await asyncio.sleep(0.001)
        rank.suspend()  # so that steps wait for it
        await asyncio.sleep(0.2)
        if not waiting.done():
            break
        rank.resume()  # The answer had come before: once more.
    rank.kill()
    with pytest.raises(EngineDead, match=r"rank 1 was killed by signal 9"):
        await waiting
    with pytest.raises(EngineDead, match="rank 1"):
        await answer(client, request((70, 71)))


def test_a_rank_that_dies_while_drafts_are_in_flight(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "_ERROR_TIMEOUT", 300.0)
    made = use(monkeypatch, lambda: EnginePlaced(1.0, 3))
    run(target, lambda client: killed(client, lambda: made[0].ahead), speculate="ngram")
    assert followers() == []


@pytest.mark.parametrize("waits", [False, True])
def test_a_rank_that_dies_while_a_head_drafts(target: Path, waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`waits`: rank 0 stands in a round of the head, not in the result of a step, when it finds that."""
    monkeypatch.setattr(leader, "_ERROR_TIMEOUT", 300.0)
    built = watch(monkeypatch)
    monkeypatch.setattr(HeadDrafter, "_measures", lambda drafter, sizes: waits and drafter.unwaited > 0)
    run(target, lambda client: killed(client, lambda: unwaited(built)), speculate=method_of("eagle3", target))
    assert followers() == []
