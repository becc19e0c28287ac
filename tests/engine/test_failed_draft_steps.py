"""A step that fails while a draft model's passes for the next one are in flight: what they have computed serves nobody
else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from draft_engine import watch
from engine_harness import alone, answer, engine, idle, in_turn, request
from test_engine_bits import VOCAB, same
from tiny_models import prompt as random_prompt

from headrace.engine.head_passes import HeadPasses
from headrace.engine.head_plans import HeadPass
from headrace.engine.runner import LaunchedStep
from headrace.errors import PlatformError
from headrace.platforms.cpu.native import missing
from headrace.platforms.interface import Pending
from headrace.types import StepResult

pytestmark = pytest.mark.skipif(missing() is not None, reason="the native kernels are not built")


def test_entries_of_a_sequence_whose_step_has_failed_are_not_found_again(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, computed, placed = watch(monkeypatch), list[int](), [0]
    known, result = HeadPasses.known, LaunchedStep.result

    def counting(passes: HeadPasses, step: HeadPass, timed: bool) -> list[Pending]:
        computed.append(step.plan.num_tokens)
        return known(passes, step, timed)

    def failing(step: LaunchedStep) -> StepResult:
        found = result(step)
        placed[0] += step._plan.lengths is not None
        if placed[0] == 20:
            placed[0] += 1
            raise PlatformError("a kernel failed")
        return found

    monkeypatch.setattr(HeadPasses, "known", counting)
    monkeypatch.setattr(LaunchedStep, "result", failing)
    first = request(random_prompt(20, VOCAB), "a", max_tokens=120)
    (whole,) = alone(tiny_llama, [first])
    text = [*first.prompt, *whole.ids[:50]]
    again = [request(text, "b", max_tokens=12), request(text, "c", max_tokens=12)]
    expected = alone(tiny_llama, again)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"draft:{tiny_llama}") as client:
            computed.clear()
            failed = await answer(client, first)
            assert failed.finish[0] == "error"
            assert len(failed.ids) > 50
            assert failed.ids == whole.ids[: len(failed.ids)]
            totals = [sum(computed)]
            for one, right in zip(again, expected, strict=True):
                same(await in_turn(client, [one]), [right])
                totals.append(sum(computed))
            await idle(client)
            built.check()
            assert totals[0] < 30, "its prompt"
            assert totals[1] - totals[0] > 50, "computed once more"
            assert totals[2] - totals[1] < 20, "what has ended without a failure is shared"

    asyncio.run(main())
    assert built.counts.accepted == built.counts.drafted > 0
