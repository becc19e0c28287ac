"""Drafts of a model are made if they pay together, and cost next to nothing if they don't."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from naive_drafts import NAMESPACE
from speculation_simulation import cpu_seconds, gpu_seconds

from headrace.speculation.model_speculator import ModelDrafts, ModelSpeculator
from headrace.speculation.policy import DraftingTime, SpeculationPolicy, StepShape
from headrace.speculation.speculator import DraftRow
from headrace.speculation.step_cost import StepCost


@dataclass
class FakeModel:
    """Its steps take a share of the target's time; its drafts are right with probability `hit`."""

    share: float
    hit: float
    seconds: Callable[[int, int], float]
    own: Callable[[int], float] | None = None
    """The time of its own steps, if not that share."""
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    overhead: float = 0.0
    limit: int = 10**6
    block: int = 0
    """Rows of a block, all of whose tokens it guesses in one step."""
    estimates: Callable[[list[int]], list[float]] | None = None
    """Of the survival of a block's tokens."""

    def __post_init__(self) -> None:
        self.cost = StepCost()
        self.lengths: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        self.rounds, self.spent, self.caught_up = 0, 0.0, 0.0
        for tokens in (1, 2, 4, 8, 16, 32, 500):
            for _ in range(3):
                self.cost.observe(tokens, 64, self.takes(tokens))

    def takes(self, tokens: int) -> float:
        return self.share * self.seconds(tokens, 0) if self.own is None else self.own(tokens)

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        self.lengths[sequence] += len(tokens)

    def pause(self, sequence: str, keep: bool) -> None:
        self.computed[sequence] = 0

    def end(self, sequence: str, keep: bool) -> None:
        del self.lengths[sequence]

    def room(self, sequence: str) -> int:
        return max(0, self.limit - self.lengths[sequence])

    def behind(self, sequence: str) -> int:
        return self.lengths[sequence] - self.computed.get(sequence, 0)

    def draft(self, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        self.rounds += 1
        caught_up = [0.0] * len(wanted)
        for at, (name, _) in enumerate(wanted):
            if self.behind(name) > 16:
                caught_up[at] = self.takes(self.behind(name))
            self.computed[name] = self.lengths[name]
        if self.block:
            return self.draft_blocks(len(wanted))
        depths = [sum(count > depth for _, count in wanted) for depth in range(max(count for _, count in wanted))]
        seconds = sum(map(self.takes, depths))
        self.spent += seconds + sum(caught_up)
        # 1: right, 0: wrong. The target's tokens are all 1.
        return ModelDrafts(
            [[int(self.rng.random() < self.hit) for _ in range(n)] for _, n in wanted], seconds, caught_up
        )

    def draft_blocks(self, count: int) -> ModelDrafts:
        """Blocks whose tokens are wrong from the first miss on."""
        seconds = self.takes(count * self.block)
        self.spent += seconds
        blocks = [[int(self.rng.random() < self.hit) for _ in range(self.block)] for _ in range(count)]
        survival = None if self.estimates is None else list(map(self.estimates, blocks))
        return ModelDrafts(blocks, seconds, [0.0] * count, survival)


def speed(model: FakeModel, batch: int = 1, tokens: int = 3000, prompt: int = 20) -> float:
    """Tokens per second relative to no speculation, with the time of the model's own steps."""
    speculator, names = ModelSpeculator(model), [str(at) for at in range(batch)]
    for name in names:
        model.lengths[name] = prompt
        speculator.begin(name, NAMESPACE, [1] * prompt)
    time, made = 0.0, 0
    while made < tokens * batch:
        held = [name for name in names if speculator.held(name)]
        context = sum(model.lengths.values())
        before = model.spent
        rows = [DraftRow(name, 16, model.lengths[name]) for name in held]
        drafts = speculator.draft(StepShape(batch, batch, context), rows)
        accepted = [each.index(0) if 0 in each else len(each) for each in drafts.tokens]
        emitted = batch + sum(accepted)
        for name in names:
            count = 1 + (accepted[held.index(name)] if name in held else 0)
            for _ in range(count):
                speculator.extend(name, [1])
        took = model.seconds(batch + drafts.choice.total, context + drafts.choice.context)
        speculator.settle(drafts, accepted, emitted, took * model.rng.gauss(1, 0.02))
        time += took + model.spent - before
        made += emitted
    for name in names:
        speculator.end(name, True)
    plain = made / batch * model.seconds(batch, batch * (prompt + tokens // 2))
    return plain / time


@pytest.mark.parametrize(("hit", "least"), [(0.95, 2.2), (0.85, 1.7), (0.7, 1.25)])
def test_a_cheap_good_model_pays(hit: float, least: float) -> None:
    assert speed(FakeModel(0.1, hit, gpu_seconds)) > least


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(("share", "hit"), [(0.1, 0.02), (0.3, 0.2), (1.0, 0.99), (0.5, 0.5)])
@pytest.mark.parametrize("seconds", [cpu_seconds, gpu_seconds])
def test_a_model_that_does_not_pay_costs_little(
    seconds: Callable[[int, int], float], share: float, hit: float, batch: int
) -> None:
    """Allowances of three quarters of a percent in all, and what the accounts hold at first: 36 steps of 3000."""
    assert speed(FakeModel(share, hit, seconds), batch) > 0.97


@pytest.mark.parametrize(("batch", "least"), [(1, 0.99), (16, 1.12)])
def test_what_does_not_pay_alone_pays_in_company(batch: int, least: float) -> None:
    """A step of the model takes the same time for one row and for many; a longer step of the target is worth more."""
    model = FakeModel(0, 0.9, lambda tokens, context: 1e-3 * (1 + tokens**0.5), own=lambda tokens: 1.7e-3)
    assert speed(model, batch) > least
    assert (model.rounds > 0) == (batch > 1)


def test_rounds_are_rare_if_they_do_not_pay() -> None:
    model = FakeModel(1.0, 0.99, cpu_seconds)
    speed(model)
    assert model.rounds == 0
    model = FakeModel(0.2, 0.05, gpu_seconds)
    speed(model)
    assert model.rounds < 100


def test_prompts_count() -> None:
    """A long prompt whose output is short is not worth the model's time for it."""
    model = FakeModel(0.5, 0.3, cpu_seconds)
    assert speed(model, tokens=400, prompt=4000) > 0.97


def test_no_drafts_beyond_the_models_own_limits() -> None:
    model = FakeModel(0.1, 0.9, gpu_seconds, limit=60)
    speed(model, tokens=200)
    assert 0 < model.rounds < 60


def test_a_prediction_is_followed_without_the_model() -> None:
    model = FakeModel(0.1, 0.9, gpu_seconds)
    speculator = ModelSpeculator(model)
    model.lengths["s"] = 3
    speculator.begin("s", NAMESPACE, [5, 6, 7], [1] * 50)
    for _ in range(40):
        rows = [DraftRow("s", 8, 10)] if speculator.held("s") else []
        drafts = speculator.draft(StepShape(1, 1, 10), rows)
        for _ in range(1 + sum(map(len, drafts.tokens))):
            speculator.extend("s", [1])
        speculator.settle(drafts, [len(each) for each in drafts.tokens], 1 + sum(map(len, drafts.tokens)), 8e-3)
    assert speculator.counts["predicted"].accepted > 20
    speculator.end("s", True)


def test_a_request_may_refuse_the_model() -> None:
    model = FakeModel(0.1, 0.9, gpu_seconds)
    speculator = ModelSpeculator(model)
    model.lengths["s"] = 3
    speculator.begin("s", NAMESPACE, [5, 6, 7], [1] * 5, predicted_only=True)
    for _ in range(40):
        rows = [DraftRow("s", 8, 10)] if speculator.held("s") else []
        drafts = speculator.draft(StepShape(1, 1, 10), rows)
        speculator.extend("s", [2])
        speculator.settle(drafts, [0] * len(rows), 1, 8e-3)
    assert model.rounds == 0


def test_drafts_for_which_the_device_has_no_token_are_given_up() -> None:
    """All that a head may guess can be forbidden. The steps end before such drafts, so their times say nothing of steps
    with drafts."""
    model = FakeModel(0.1, 0.9, gpu_seconds)
    speculator = ModelSpeculator(model)
    model.lengths["s"] = 3
    speculator.begin("s", NAMESPACE, [5, 6, 7])
    for _ in range(1000):
        speculator.extend("s", [2])
        drafts = speculator.draft(StepShape(1, 1, 10), [DraftRow("s", 8, 10)] if speculator.held("s") else [])
        none = drafts._replace(tokens=[[] for _ in drafts.tokens])
        speculator.settle(none, [0] * len(none.tokens), 1, gpu_seconds(1, 10))
    assert 0 < model.rounds < 75
    assert "draft" not in speculator.counts
    assert not any(speculator.policy.cost.known(1 + count) for count in range(1, 9))


def test_a_sequence_is_held_rarely_if_steps_admit_nothing() -> None:
    """A sequence that is held cannot be planned ahead, so a review that hopes in vain must not repeat at once."""

    class Hoping(SpeculationPolicy):
        def wanted(
            self, shape: StepShape, survivals: Sequence[Sequence[float]], drafting: DraftingTime | None = None
        ) -> list[int]:
            return [len(each) for each in survivals]

    model = FakeModel(1.0, 0.5, cpu_seconds)
    speculator, held = ModelSpeculator(model, policy=Hoping()), 0
    model.lengths["s"] = 3
    speculator.begin("s", NAMESPACE, [5, 6, 7])
    for _ in range(400):
        speculator.extend("s", [2])
        held += speculator.held("s")
        drafts = speculator.draft(StepShape(1, 1, 10), [DraftRow("s", 8, 10)] if speculator.held("s") else [])
        speculator.settle(drafts, [0] * len(drafts.tokens), 1, cpu_seconds(1))
    assert model.rounds == 0
    assert held < 120


def sure(block: list[int]) -> list[float]:
    """The estimates of one who knows which tokens are right."""
    right = block.index(0) if 0 in block else len(block)
    return [0.99] * right + [0.01] * (len(block) - right)


@pytest.mark.parametrize("estimates", [None, sure])
def test_blocks_pay(estimates: Any) -> None:
    assert speed(FakeModel(0.3, 0.85, gpu_seconds, block=6, estimates=estimates)) > 1.8


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(("share", "hit"), [(0.1, 0.02), (1.5, 0.7)])
@pytest.mark.parametrize("estimates", [None, sure, lambda block: [0.99] * len(block)])
def test_blocks_that_do_not_pay_cost_little(estimates: Any, share: float, hit: float, batch: int) -> None:
    assert speed(FakeModel(share, hit, cpu_seconds, block=6, estimates=estimates), batch) > 0.97


def test_estimates_choose_how_far_to_verify() -> None:
    """Rows cost on such a device, so drafts that are known to be wrong are not verified."""
    knowing = FakeModel(0.05, 0.6, cpu_seconds, block=6, estimates=sure)
    guessing = FakeModel(0.05, 0.6, cpu_seconds, block=6)
    assert speed(knowing) > 1.1 * speed(guessing)


def test_blocks_of_which_nothing_is_verified_become_rare() -> None:
    """Their makers know that they are wrong."""
    model = FakeModel(0.2, 0.0, cpu_seconds, block=6, estimates=lambda block: [0.01] * len(block))
    assert speed(model, tokens=2000) > 0.98
    assert model.rounds < 150


def test_steps_that_went_by_bring_the_next_review_and_the_allowance() -> None:
    """As if the engine had asked in each of them."""
    asked, rested = (ModelSpeculator(FakeModel(0.5, 0.0, cpu_seconds)) for _ in range(2))
    for speculator in (asked, rested):
        speculator._model.lengths["s"] = 10  # type: ignore[attr-defined]
        speculator.begin("s", NAMESPACE, [1] * 10)
    questions = {id(asked): 0, id(rested): 0}

    def ask(speculator: ModelSpeculator) -> None:
        rows = [DraftRow("s", 16, 20)] if speculator.held("s") else []
        drafts = speculator.draft(StepShape(1, 1, 20), rows)
        speculator.settle(drafts, [0] * len(rows), 1, cpu_seconds(1 + drafts.choice.total, 20))
        questions[id(speculator)] += 1

    for _ in range(400):
        ask(asked)
        asked.extend("s", [1])
    step = 0
    while step < 400:
        ask(rested)
        steps = rested.rest() + 1
        if steps > 1:
            rested.passed(steps - 1, (steps - 1) * cpu_seconds(1, 20))
        rested.extend("s", [1] * steps)
        step += steps
    assert questions[id(asked)] == 400
    assert questions[id(rested)] < 100
    assert rested._step == pytest.approx(asked._step, abs=16)
    assert rested._funds == pytest.approx(asked._funds, rel=0.2)
    assert rested.counts["draft"].rounds == pytest.approx(asked.counts["draft"].rounds, rel=0.5)


def test_sequences_that_begin_between_two_reviews_are_reviewed_at_once() -> None:
    """All that begin with one step together."""
    model = FakeModel(0.1, 0.9, gpu_seconds, limit=500)
    speculator = ModelSpeculator(model)
    model.lengths.update(full=600, one=10, other=10)
    for name in model.lengths:
        speculator.begin(name, NAMESPACE, [1] * model.lengths[name])
    while speculator.rest() < 15:
        speculator.settle(speculator.draft(StepShape(1, 1, 600), []), [], 1, gpu_seconds(1, 600))
        speculator.extend("full", [1])
    assert not speculator.held("full")
    for name in ("one", "other"):
        speculator.extend(name, [1])
        assert speculator.rest() == 15
    assert speculator.held("one")
    assert speculator.held("other")
    assert speculator.rest() == 0


def test_sequences_that_begin_put_the_next_review_off_for_nobody() -> None:
    """Each is reviewed when it begins; those that wait for a review have theirs at the step that was foreseen."""
    model = FakeModel(0.1, 0.9, gpu_seconds, limit=500)
    speculator = ModelSpeculator(model)
    names = [f"full {at}" for at in range(8)]
    model.lengths.update(dict.fromkeys(names, 600))
    steps = list[int]()
    for name in names:
        speculator.begin(name, NAMESPACE, [1] * 600)
        speculator.extend(name, [1])
        assert not speculator.held(name)
    for _ in range(3):
        drafts = speculator.draft(StepShape(8, 8, 600), [])
        speculator.settle(drafts, [], 8, gpu_seconds(8, 600))
        steps.append(speculator.rest())
    assert steps == [1, 0, 3], "two steps later, then four, then eight"


def test_a_sequence_that_waits_to_go_on_keeps_nobody_waiting() -> None:
    """It is in no review, it takes nothing of the funds, and it is reviewed when it goes on."""
    model = FakeModel(0.1, 0.9, gpu_seconds)
    speculator = ModelSpeculator(model)

    def step() -> None:
        speculator.settle(speculator.draft(StepShape(1, 1, 500), []), [], 1, gpu_seconds(1, 500))

    for _ in range(5):
        step()
    model.lengths["a"] = 500
    speculator.begin("a", NAMESPACE, [1] * 500)
    speculator.extend("a", [1])
    assert speculator.held("a")
    funds = speculator._funds
    assert speculator._funded("a", speculator._states["a"], reserve=True)
    assert speculator._funds < funds
    speculator.pause("a", True)
    assert speculator._funds == funds
    reviewed, names = list[list[str]](), speculator._guess

    def guess(sequence: str, most: int, reserve: bool = False) -> Any:
        reviewed[-1].append(sequence)
        return names(sequence, most, reserve)

    speculator._guess = guess  # type: ignore[method-assign]
    rests = []
    for _ in range(40):
        reviewed.append([])
        step()
        rests.append(speculator.rest())
    assert max(rests) == 15
    assert not any(reviewed)
    speculator.extend("a", [1])
    assert speculator.held("a")
    assert reviewed[-1] == ["a"]
    assert model.behind("a") == 502
