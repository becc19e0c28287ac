"""Drafts through the engine and its client: the same outputs, and counts that agree."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from engine_fakes import FakeEngine, expected, in_process, make_engine, make_request

from headrace.client.api import GenerateRequest, Output, Usage
from headrace.client.in_process_client import InProcessClient
from headrace.client.speculation_choice import SpeculationChoice
from headrace.config import Config
from headrace.core.drafts import DraftRow, StepSize
from headrace.engine.drafting import Drafting
from headrace.engine.plans import single_sequence_plan
from headrace.engine.stats import SpeculationTotals
from headrace.errors import ContextOverflow, InvalidRequest
from headrace.speculation.loading import make
from headrace.speculation.ngram import NgramDrafter
from headrace.speculation.policy import ALLOWANCE, DraftingTime, SpeculationPolicy, StepChoice, StepShape
from headrace.speculation.speculator import MOST_DRAFTS, Drafts, Speculator
from headrace.speculation.speculator import DraftRow as SpeculatorRow
from headrace.types import Request, SamplingParams, StepPlan

PROMPT = tuple(b"ab")
NGRAM = Config.model_validate({"scheduler": {"speculate": "ngram"}})


class Always(SpeculationPolicy):
    """Verifies all drafts, independently of the time that steps take."""

    def choose(
        self,
        shape: StepShape,
        survivals: Sequence[Sequence[float]],
        contexts: Sequence[int] = (),
        drafting: DraftingTime | None = None,
        again: bool = False,
    ) -> StepChoice:
        return StepChoice(shape, [len(survival) for survival in survivals], 0, 1.0, 1.0)

    def settle(
        self, choice: StepChoice, emitted: int, seconds: float, drafting: float = 0.0, typical: bool = True
    ) -> None:
        pass

    def worth(self, shape: StepShape, survival: Sequence[float]) -> bool:
        return bool(survival)


def engine(method: str = "predicted", predicted_only: bool = True) -> FakeEngine:
    """Its clock counts the readings."""
    ticks = count()
    speculator = Speculator(make(method), policy=Always())
    return make_engine(drafting=Drafting(speculator, predicted_only, clock=lambda: float(next(ticks))))


async def answer(client: InProcessClient, request: GenerateRequest) -> tuple[dict[int, list[int]], Usage]:
    ids: dict[int, list[int]] = {}
    last: Output | None = None
    async for last in client.generate(request):
        ids.setdefault(last.index, []).extend(last.token_ids)
    assert last is not None
    assert last.usage is not None
    return ids, last.usage


def ask(
    request: GenerateRequest, made: FakeEngine, config: Config | None = None
) -> tuple[dict[int, list[int]], Usage, SpeculationTotals]:
    async def main() -> tuple[dict[int, list[int]], Usage, SpeculationTotals]:
        async with in_process(made, config) as client:
            ids, usage = await answer(client, request)
            return ids, usage, (await client.stats()).speculation

    return asyncio.run(main())


def test_a_right_prediction_is_accepted() -> None:
    right = expected(PROMPT, 40)
    made = engine()
    ids, usage, totals = ask(replace(make_request(PROMPT, max_tokens=40, seed=0), predicted=tuple(right)), made)
    assert ids == {0: right}
    assert usage.accepted_drafts > 25
    assert usage.rejected_drafts == 0
    (method,) = totals.methods
    assert method.method == "predicted"
    assert (sum(method.drafted), sum(method.accepted)) == (usage.accepted_drafts, usage.accepted_drafts)
    assert len(method.drafted) == len(method.accepted) == MOST_DRAFTS
    assert method.mean_length == 1 + usage.accepted_drafts / method.rounds
    assert totals.seconds > method.rounds, "every call of the drafter took a second of this clock, at least"
    assert made.runner.steps < 40


def test_a_wrong_prediction_changes_nothing_and_is_counted() -> None:
    right = expected(PROMPT, 40)
    wrong = [token if at % 10 else (token + 1) % 256 for at, token in enumerate(right)]
    request = replace(make_request(PROMPT, max_tokens=40, seed=0, n=2, logprobs=1), predicted=tuple(wrong))
    ids, usage, totals = ask(request, engine())
    assert ids == {0: right, 1: expected(PROMPT, 40, seed=1)}
    assert usage.completion_tokens == 80
    assert usage.accepted_drafts > 0
    assert usage.rejected_drafts > 0
    assert sum(sum(method.accepted) for method in totals.methods) == usage.accepted_drafts
    assert sum(sum(method.drafted) - sum(method.accepted) for method in totals.methods) == usage.rejected_drafts


@pytest.mark.parametrize("choice", [SpeculationChoice(max_tokens=0), SpeculationChoice(max_tokens=2)])
def test_the_most_drafts_of_a_step(choice: SpeculationChoice) -> None:
    right = expected(PROMPT, 30)
    request = replace(make_request(PROMPT, max_tokens=30, seed=0), predicted=tuple(right), speculation=choice)
    ids, usage, totals = ask(request, engine())
    assert ids == {0: right}
    assert max((len(method.drafted) for method in totals.methods), default=0) == choice.max_tokens
    assert (usage.accepted_drafts > 0) == bool(choice.max_tokens)


def test_without_a_prediction_nothing_is_drafted() -> None:
    ids, usage, totals = ask(make_request(PROMPT, max_tokens=30, seed=0), engine())
    assert ids == {0: expected(PROMPT, 30)}
    assert (usage.accepted_drafts, usage.rejected_drafts, totals.methods, totals.seconds) == (0, 0, (), 0.0)


def test_the_method_predicted_uses_no_other_drafter() -> None:
    # The fake model goes on by the last token and its position: this prompt holds its own continuation.
    prompt = (*PROMPT, *expected((0,) * 38 + PROMPT, 36), *PROMPT)
    right = expected(prompt, 30)
    base = make_request(prompt, max_tokens=30, seed=0)
    predicted = tuple(right[:20])
    every = ask(replace(base, predicted=predicted), engine("ngram", False), NGRAM)
    alone = ask(
        replace(base, predicted=predicted, speculation=SpeculationChoice("predicted")), engine("ngram", False), NGRAM
    )
    assert every[0] == alone[0] == {0: right}
    assert "ngram" in {method.method for method in every[2].methods}
    assert {method.method for method in alone[2].methods} == {"predicted"}


def test_a_method_that_is_not_there() -> None:
    request = replace(make_request(PROMPT), speculation=SpeculationChoice("suffix"))
    with pytest.raises(InvalidRequest, match="not what this engine drafts with: ngram, predicted"):
        ask(request, engine("ngram", False), NGRAM)


def test_a_prediction_has_at_most_the_tokens_of_the_context() -> None:
    base = make_request(PROMPT, max_tokens=5, seed=0)
    assert ask(replace(base, predicted=(1,) * 128), engine())[0] == {0: expected(PROMPT, 5)}
    with pytest.raises(ContextOverflow, match="`prediction` has 129") as caught:
        ask(replace(base, predicted=(1,) * 129), engine())
    assert caught.value.param == "prediction"
    with pytest.raises(InvalidRequest, match="`prediction`: token id 300") as wrong:
        ask(replace(base, predicted=(1, 300)), engine())
    assert wrong.value.param == "prediction"


class Spy(NgramDrafter):
    """Writes down its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def begin(
        self, sequence: str, namespace: tuple[str, str], prompt: Sequence[int], predicted: Sequence[int] = ()
    ) -> None:
        self.calls.append(f"begin {sequence}")
        super().begin(sequence, namespace, prompt, predicted)

    def end(self, sequence: str, keep: bool) -> None:
        self.calls.append(f"end {sequence}")
        super().end(sequence, keep)


def test_a_drafter_reads_a_prompt_with_the_first_token() -> None:
    spy = Spy()
    drafting = Drafting(Speculator(spy))
    for name in ("waits", "runs"):
        assert drafting.begin(Request(name, PROMPT, SamplingParams()))
        assert not drafting.held(name)
    assert spy.calls == [], "what waits for a place takes no memory of the drafter"
    drafting.extend("runs", [5], 0)
    drafting.extend("runs", [6], 0)
    drafting.end("waits", keep=False)
    drafting.end("runs", keep=True)
    assert spy.calls == ["begin runs", "end runs"]


def test_the_time_between_two_requests_is_no_wait_for_drafts() -> None:
    """It would count as the price of every step with drafts."""
    drafting = Drafting(Speculator(make("ngram"), policy=Always()))
    engine = make_engine(drafting=drafting)
    now = [0.0]
    engine.core._clock = lambda: now[0]
    for number in range(3):
        engine.core.add([Request(f"r{number}", PROMPT * 4, SamplingParams(max_tokens=6, temperature=0.0, seed=0))])
        while engine.core.has_work():
            engine.core.step()
            now[0] += 0.001
        now[0] += 100.0
    assert drafting._speculator.policy.gap < 0.01


class Foretold:
    """A model whose rounds are not waited for; each is expected to take a second."""

    wall = busy = unwaited = 0.0

    def begin(self, request: Request) -> None:
        pass

    def place(self, row: DraftRow) -> None:
        self.busy += 1.0

    def learn_times(self) -> None:
        pass


@pytest.mark.parametrize("compiled", [(0,), (1,), (0, 1, 2), (5, 6, 7)])
def test_launches_that_compile_first_do_not_make_drafts_dear(compiled: tuple[int, ...]) -> None:
    policy = Always()
    drafting = Drafting(Speculator(make("ngram"), policy=policy))
    drafting.begin(Request("r", PROMPT, SamplingParams()))
    for at in range(12):
        drafting.waited(30.0 if at in compiled else 1e-3)
    drafting.extend("r", [1], 0)
    assert policy.gap == 1e-3
    once = Drafting(Speculator(make("ngram"), policy=policy))
    for seconds in (30.0, 2e-3, 30.0):
        once.waited(seconds)
    once.begin(Request("s", PROMPT, SamplingParams()))
    once.extend("s", [1], 0)
    assert policy.gap == 2e-3, "the shortest, as long as there are few"


def test_a_round_that_was_shorter_than_foretold_leaves_no_negative_time() -> None:
    seen: list[float] = []

    class Recorded(Speculator):
        def settle(self, drafts: Drafts, accepted: Sequence[int | None], emitted: int, seconds: float) -> None:
            seen.append(seconds)

    drafting = Drafting(Recorded(make("ngram"), policy=Always()), model=Foretold(), on_device=True)
    drafting.begin(Request("r", PROMPT, SamplingParams(max_tokens=9)))
    drafting.extend("r", [97], 0)
    row = DraftRow("r", 4, 4, 0, np.zeros(1, np.int32), ahead=1)
    for step, seconds in enumerate((0.5, 3.0)):
        drafting.draft(step, StepSize(1, 1, 4), [row])
        drafting.settle(plan(step), 1, seconds)
    assert seen == [0.0, 2.0]


def plan(step: int, context: int = 5) -> StepPlan:
    """One token of one sequence."""
    return replace(single_sequence_plan(1, context - 1, 16), step=step)


class Chosen(SpeculationPolicy):
    """Drafts in the steps that are listed."""

    def __init__(self, drafted: Sequence[int]) -> None:
        super().__init__()
        self.drafted, self.step = drafted, 0

    def choose(
        self,
        shape: StepShape,
        survivals: Sequence[Sequence[float]],
        contexts: Sequence[int] = (),
        drafting: DraftingTime | None = None,
        again: bool = False,
    ) -> StepChoice:
        self.step += 1
        return StepChoice(shape, [int(self.step in self.drafted)] * len(survivals), 0, 1.0, 1.0)

    def worth(self, shape: StepShape, survival: Sequence[float]) -> bool:
        return True


def test_steps_that_were_not_asked_about_teach_their_time_and_pay() -> None:
    policy = Chosen([])
    drafting = Drafting(Speculator(make("ngram"), policy=policy), on_device=True)
    drafting.begin(Request("r", PROMPT, SamplingParams(max_tokens=90)))
    drafting.draft(1, StepSize(1, 1, 4), [])
    for step in range(1, 9):
        drafting.settle(plan(step), 1, 2.0)
    assert policy.cost.seconds(1, 5) == 2.0
    assert policy._owed == 0.0
    drafting.draft(9, StepSize(1, 1, 4), [])
    assert policy._owed == 7 * 2.0 * ALLOWANCE
    # Without `--speculate` there is nothing to learn for.
    idle = SpeculationPolicy()
    unused = Drafting(Speculator(make("predicted"), policy=idle), predicted_only=True)
    for step in range(1, 9):
        unused.settle(plan(step), 1, 2.0)
    assert not idle.cost.known(1)


def test_a_step_beside_which_drafts_were_made_teaches_no_time() -> None:
    """The host's work takes processor time from a device that computes on the same cores."""
    policy = Chosen(range(2, 100, 2))
    drafting = Drafting(Speculator(make("ngram"), policy=policy), on_device=True)
    drafting.begin(Request("r", PROMPT * 3, SamplingParams(max_tokens=90)))
    drafting.extend("r", [*PROMPT[:2]], 0)
    row = DraftRow("r", 1, 4, 0, np.zeros(1, np.int32), ahead=1)
    for step in range(1, 60):
        drafting.draft(step, StepSize(1, 1, 4), [row])
        drafting.verified(step, [0], [int(step % 2 == 0)])
        if step > 1:
            drafting.settle(plan(step - 1), 1, 7.0 if step % 2 == 0 else 3.0)
    assert not policy.cost.known(1), "after each of these steps came one with drafts"
    assert policy.cost.known(2)


def test_steps_in_flight_keep_what_they_may_lose_from_the_account() -> None:
    class Dear(Chosen):
        def choose(self, *args: Any, **kwargs: Any) -> StepChoice:
            return replace(super().choose(*args, **kwargs), seconds=1.5)

    policy = Dear([1, 2])
    drafting = Drafting(Speculator(make("ngram"), policy=policy), on_device=True)
    drafting.begin(Request("r", PROMPT * 3, SamplingParams(max_tokens=90)))
    drafting.extend("r", [*PROMPT[:2]], 0)
    row = DraftRow("r", 1, 4, 0, np.zeros(1, np.int32), ahead=1)
    found = []
    for step in range(1, 4):
        drafting.draft(step, StepSize(1, 1, 4), [row])
        found.append(policy.at_risk)
    for step in range(1, 4):
        drafting.settle(plan(step), 1, 1.0)
        found.append(policy.at_risk)
    assert found == [0.5, 1.0, 1.0, 0.5, 0.0, 0.0], "a step without drafts risks nothing"


class Timed:
    """A device that has worked 0.25 s for each mark when it has come there."""

    def __init__(self) -> None:
        self.marks = 0

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def busy_until(self, mark: int) -> float | None:
        return None if mark > 90 else 0.25 * mark


def test_the_time_of_a_round_is_the_devices_own_where_it_knows_it() -> None:
    seen: list[tuple[float, float]] = []

    class Recorded(Speculator):
        def draft(self, shape: StepShape, rows: Sequence[SpeculatorRow]) -> Drafts:
            return super().draft(shape, rows)._replace(seconds=1.0, caught_up=0.05)

        def settle(self, drafts: Drafts, accepted: Sequence[int | None], emitted: int, seconds: float) -> None:
            seen.append((seconds, drafts.seconds))

    times = Timed()
    drafting = Drafting(Recorded(make("ngram"), policy=Always()), model=Foretold(), on_device=True, times=times)
    drafting.begin(Request("r", PROMPT, SamplingParams(max_tokens=9)))
    drafting.extend("r", [97], 0)
    row = DraftRow("r", 4, 4, 0, np.zeros(1, np.int32), ahead=1)
    drafting.draft(1, StepSize(1, 1, 4), [row])
    drafting.settle(plan(1), 1, 3.0)
    times.marks = 100
    drafting.draft(2, StepSize(1, 1, 4), [row])
    drafting.settle(plan(2), 1, 3.0)
    (exact, making), foretold = seen
    assert (exact, making) == (2.75, pytest.approx(0.2))
    assert foretold == (2.0, 1.0), "what the device does not know is as it was foretold"


def test_the_account_pays_for_what_a_round_takes_from_the_step_before() -> None:
    policy = Chosen([9])
    drafting = Drafting(Speculator(make("ngram"), policy=policy), on_device=True)
    drafting.begin(Request("r", PROMPT * 3, SamplingParams(max_tokens=90)))
    drafting.extend("r", [*PROMPT[:2]], 0)
    row = DraftRow("r", 1, 4, 0, np.zeros(1, np.int32), ahead=1)
    for step in range(1, 9):
        drafting.draft(step, StepSize(1, 1, 4), [])
        if step < 8:
            drafting.settle(plan(step), 1, 2.0)
    drafting.draft(9, StepSize(1, 1, 4), [row])
    before = policy._covered(2.0)
    drafting.settle(plan(8), 1, 3.5)
    assert policy._covered(2.0) == pytest.approx(before - 1.5 + 2.0 * ALLOWANCE)
    assert policy.cost.seconds(1, 4) == 2.0
