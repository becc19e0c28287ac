"""A smaller model drafts: the answers are those of the engine without it, and the target as its own draft is always
right."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from draft_engine import Built, blocks_of_waiting, fail_following, save_draft, watch
from engine_harness import Answer, alone, engine, idle, in_turn, request, together
from test_engine_bits import COUNT, VOCAB, WAYS, crowded, leave_half, mixed, same
from tiny_models import prompt as random_prompt

from headrace.engine.head_drafter import HeadDrafter
from headrace.engine.head_passes import HeadPasses
from headrace.engine.head_plans import HeadPass
from headrace.errors import ConfigError, DeviceLost, ModelNotFound, PlatformError
from headrace.llm import LLM
from headrace.platforms.cpu.native import missing
from headrace.platforms.interface import Pending
from headrace.structured_outputs import StructuredOutputs
from headrace.types import SamplingParams

TOKENS = 24


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> list[Answer]:
    return alone(tiny_llama, mixed(COUNT, max_tokens=TOKENS))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_draft(tmp_path_factory.mktemp("draft"))


def own(built: Built, answers: int) -> None:
    """The drafts of a model for itself were right."""
    counts = built.counts
    assert counts.drafted > answers * TOKENS // 4
    assert counts.accepted == counts.drafted


@pytest.mark.parametrize("params", WAYS, ids=str)
def test_the_target_as_its_own_draft_is_always_right(
    tiny_llama: Path, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = watch(monkeypatch)
    requests = [request(random_prompt(9 + at, VOCAB), f"d{at}", max_tokens=TOKENS, **params) for at in range(4)]
    expected = alone(tiny_llama, requests)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"draft:{tiny_llama}") as client:
            same(await together(client, requests), expected)
            same(await in_turn(client, requests[:2]), expected[:2])
            await idle(client)
            built.check()

    asyncio.run(main())
    own(built, 6)


@pytest.mark.parametrize("model", ["own", "other"])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"chunk": 16},
        {"chunk": 11, "seqs": 3},
        {"blocks": 20, "chunk": 24},
        {"caching": False},
    ],
    ids=str,
)
def test_in_a_batch_cold_then_warm(
    tiny_llama: Path,
    other: Path,
    wanted: list[Answer],
    sizes: dict[str, Any],
    model: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = watch(monkeypatch)
    draft = tiny_llama if model == "own" else other

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"draft:{draft}", **sizes) as client:
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            await idle(client)
            built.check()

    asyncio.run(main())
    counts = built.counts
    assert counts.drafted > 10
    if model == "own":
        assert counts.rate > 0.8
    else:
        assert counts.accepted < counts.drafted


def test_preempted(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = watch(monkeypatch)
    waiting = blocks_of_waiting(monkeypatch, built)
    requests = crowded()
    expected = alone(tiny_llama, requests[::5])

    async def main() -> None:
        async with engine(tiny_llama, blocks=41, chunk=16, speculate=f"draft:{tiny_llama}") as client:
            same((await together(client, requests))[::5], expected)
            assert (await idle(client)).scheduler.preemptions > 0
            assert len(waiting) > 10
            assert not any(waiting)
            built.check()

    asyncio.run(main())
    assert built.counts.accepted > 100


def test_a_long_prompt_is_computed_in_parts(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = watch(monkeypatch)
    requests = [request(random_prompt(200 + at, VOCAB), f"l{at}", max_tokens=TOKENS) for at in range(2)]
    expected = alone(tiny_llama, requests)

    async def main() -> None:
        async with engine(tiny_llama, chunk=32, speculate=f"draft:{tiny_llama}") as client:
            passes, tokens = built.model._passes, list[int]()
            launch = passes.known

            def counting(step: HeadPass, timed: bool) -> Any:
                tokens.append(step.plan.num_tokens)
                return launch(step, timed)

            monkeypatch.setattr(passes, "known", counting)
            same(await together(client, requests), expected)
            await idle(client)
            built.check()
            assert max(tokens) <= 32
            assert sum(tokens) > 350

    asyncio.run(main())
    assert built.counts.accepted == built.counts.drafted > 0


def test_a_draft_with_less_context_stops_there(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = watch(monkeypatch)
    draft = save_draft(tmp_path / "short", max_position_embeddings=64)
    requests = [request(random_prompt(40, VOCAB), "s", max_tokens=80, ignore_eos=True)]
    expected = alone(tiny_llama, requests)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"draft:{draft}") as client:
            same(await in_turn(client, requests), expected)
            await idle(client)
            built.check()

    asyncio.run(main())
    assert 0 < built.counts.rounds <= 24


def test_stops_predictions_and_limits_of_a_request(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = watch(monkeypatch)
    free = request(random_prompt(20, VOCAB), "f", max_tokens=TOKENS)
    (whole,) = alone(tiny_llama, [free])
    requests = [
        request(random_prompt(20, VOCAB), "t", max_tokens=TOKENS, stop_token_ids=(whole.ids[9],), min_tokens=3),
        request(random_prompt(20, VOCAB), "e", max_tokens=400, ignore_eos=False, temperature=1.0, seed=4),
        request(random_prompt(20, VOCAB), "o", max_tokens=1),
    ]
    expected = alone(tiny_llama, requests)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"draft:{tiny_llama}") as client:
            same(await together(client, requests), expected)
            await idle(client)
            built.check()

    asyncio.run(main())
    counts = built.counts
    assert counts.drafted > 6
    # Two answers end within a step, before the last of its drafts.
    assert counts.accepted >= counts.drafted - 2 * 8


def test_requests_that_are_left_free_every_block(
    tiny_llama: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = watch(monkeypatch)
    rng = random.Random(3)

    async def main() -> None:
        async with engine(tiny_llama, blocks=40, chunk=32, speculate=f"draft:{other}") as client:
            for _ in range(8):
                await leave_half(client, mixed(COUNT, max_tokens=TOKENS), rng)
            await idle(client)
            built.check()

    asyncio.run(main())
    assert built.counts.rounds > 0


def test_a_draft_that_does_not_pay_is_not_asked(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pass is measured to take a second more than it does."""
    built, observe = watch(monkeypatch, eager=False), HeadDrafter._observe
    monkeypatch.setattr(HeadDrafter, "_observe", lambda self, step, seconds: observe(self, step, seconds + 1.0))

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"draft:{tiny_llama}") as client:
            await together(client, mixed(COUNT, max_tokens=60))
            await idle(client)
            built.check()

    asyncio.run(main())
    assert built.counts.rounds <= 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"vocab_size": 300}, r"has 300 tokens and .*tiny-llama\S* has 260"),
        ({}, "has b'\"' as token 4 and .* has b'!'"),
    ],
    ids=["size", "tokens"],
)
def test_another_vocabulary_is_refused_by_name(
    tiny_llama: Path, tmp_path: Path, changes: dict[str, int], why: str
) -> None:
    draft = save_draft(tmp_path / "foreign", **changes)
    if not changes:
        file = draft / "tokenizer.json"
        text = file.read_text()
        file.write_text(text.replace('"!": 4', '"!": 5').replace('"\\"": 5', '"\\"": 4'))
        assert file.read_text() != text

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"draft:{draft}"):
            raise AssertionError("it was taken")

    with pytest.raises(ConfigError, match=rf"foreign.*cannot draft for.*{why}: choose a smaller model"):
        asyncio.run(main())


def test_a_name_or_path_that_is_no_model_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ModelNotFound, match="no-such-draft"):
        LLM(str(tiny_llama), speculate="draft:no-such-draft", platform="cpu")


@pytest.mark.parametrize("lost", [False, True])
def test_a_round_that_fails_ends_drafting_alone(
    tiny_llama: Path,
    wanted: list[Answer],
    lost: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    built = watch(monkeypatch)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"draft:{tiny_llama}") as client:
            error = DeviceLost("it is gone") if lost else PlatformError("a kernel failed")
            passes, calls = built.model._passes, [0]
            launch = passes.following

            def failing(step: HeadPass, depth: int) -> Any:
                calls[0] += 1
                if calls[0] > 20:
                    raise error
                return launch(step, depth)

            monkeypatch.setattr(passes, "following", failing)
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            await idle(client)

    if lost:
        with pytest.raises(Exception, match="it is gone"):
            asyncio.run(main())
        return
    asyncio.run(main())
    assert built.model.failures == 1
    assert caplog.text.count("failed, and drafts no more: a kernel failed") == 1


@pytest.mark.skipif(missing() is not None, reason="the native kernels are not built")
def test_a_pass_that_nothing_waits_for_may_fail(
    tiny_llama: Path, wanted: list[Answer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is found with a later round, and answers stay the same."""
    built = watch(monkeypatch)
    fail_following(monkeypatch, built)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"draft:{tiny_llama}") as client:
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            await idle(client)

    asyncio.run(main())
    assert built.model.failures == 1
    assert caplog.text.count("failed, and drafts no more: a kernel failed") == 1


@pytest.mark.skipif(missing() is not None, reason="the native kernels are not built")
def test_rounds_are_launched_while_steps_are_in_flight(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for them, and a round computes two entries of a sequence whose last round had drafts."""
    built, sizes, first = watch(monkeypatch), list[tuple[int, bool]](), HeadPasses.first

    def counting(passes: HeadPasses, step: HeadPass, timed: bool) -> list[Pending]:
        sizes.append((step.plan.num_tokens, int(step.bounds[0]) >= 0))
        return first(passes, step, timed)

    monkeypatch.setattr(HeadPasses, "first", counting)
    requests = [request(random_prompt(9, VOCAB), "a", max_tokens=80)]
    expected = alone(tiny_llama, requests)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"draft:{tiny_llama}") as client:
            sizes.clear()
            same(await in_turn(client, requests), expected)
            await idle(client)
            built.check()

    asyncio.run(main())
    ahead = [size for size, uncertain in sizes if uncertain]
    assert len(ahead) > 5
    # A step without drafts between two rounds leaves one more.
    assert min(ahead) == 2
    assert sum(ahead) < 4 * len(ahead)
    assert built.counts.accepted == built.counts.drafted > 20


def test_an_answer_that_has_ended_serves_a_prompt_that_begins_with_it(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its full blocks are found again, but not under another salt."""
    built, computed, known = watch(monkeypatch), list[int](), HeadPasses.known

    def counting(passes: HeadPasses, step: HeadPass, timed: bool) -> list[Pending]:
        computed.append(step.plan.num_tokens)
        return known(passes, step, timed)

    monkeypatch.setattr(HeadPasses, "known", counting)
    first = request(random_prompt(100, VOCAB), "a", max_tokens=TOKENS)
    (answer,) = alone(tiny_llama, [first])
    text = [*first.prompt, *answer.ids, *random_prompt(3, VOCAB)]
    again = [request(text, "b", max_tokens=TOKENS), replace(request(text, "c", max_tokens=TOKENS), salt="other")]
    expected = alone(tiny_llama, again)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"draft:{tiny_llama}") as client:
            computed.clear()
            totals = []
            for one in (first, *again):
                await in_turn(client, [one])
                totals.append(sum(computed))
            same(await in_turn(client, again), expected)
            await idle(client)
            built.check()
            assert totals[0] > 80
            assert totals[1] - totals[0] < 50
            assert totals[2] - totals[1] > 100

    asyncio.run(main())
    assert built.counts.accepted == built.counts.drafted > 0


def test_grammars_beside_sequences_that_the_device_places(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar's sequence waits for its drafts, which end before the first token that it does not allow."""
    built, texts = watch(monkeypatch), list[list[str]]()
    form = StructuredOutputs(regex="[ -~]{30,60}")
    params = [
        SamplingParams(max_tokens=20, temperature=heat, seed=at, structured_outputs=form if at % 2 else None)
        for at, heat in enumerate((0.0, 0.0, 1.0, 1.0))
    ]
    for speculate in (None, f"draft:{tiny_llama}"):
        with LLM(
            str(tiny_llama), platform="cpu", threads=1, num_blocks=100, packed_cache=0, speculate=speculate
        ) as llm:
            texts.append([one.outputs[0].text for one in llm.generate(["Hello"] * 4, params, progress=False)])
            if speculate:
                built.check()
                assert built.counts.accepted > 10
    assert texts[0] == texts[1]
