"""What one kind of drafts has lost keeps the other from nothing: predictions have an account of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from naive_drafts import NAMESPACE
from speculation_simulation import cpu_seconds
from test_speculation_model import FakeModel

from headrace.speculation.accounts import SpeculationAccounts
from headrace.speculation.drafter import Guess
from headrace.speculation.loading import make
from headrace.speculation.model_speculator import ModelSpeculator
from headrace.speculation.policy import SpeculationPolicy, StepChoice, StepShape
from headrace.speculation.speculator import DraftRow, Speculator

ONE = StepShape(1, 1, 10)
PREDICTED, OTHER = Guess([1] * 4, [0.9] * 4, "predicted"), Guess([1] * 4, [0.9] * 4, "ngram")


def overdrawn() -> SpeculationPolicy:
    """Knows the times of steps of 1 to 9 tokens; its drafts have been wrong."""
    policy = SpeculationPolicy()
    for tokens in range(1, 10):
        for _ in range(3):
            policy.cost.observe(tokens, 10, cpu_seconds(tokens))
    lost = StepChoice(ONE, [8], 0, cpu_seconds(1), cpu_seconds(9))
    for _ in range(8):
        policy.settle(lost, 1, cpu_seconds(9))
    return policy


def with_ngram(policy: SpeculationPolicy) -> Speculator:
    return Speculator(make("ngram"), policy=policy)


def with_model(policy: SpeculationPolicy) -> ModelSpeculator:
    model = FakeModel(0.1, 0.0, cpu_seconds)
    model.lengths["s"] = 3
    return ModelSpeculator(model, policy=policy)


def steps(speculator: Speculator | ModelSpeculator, predicted: Sequence[int]) -> int:
    """Those of an output of 100 times token 1 behind the first."""
    speculator.begin("s", NAMESPACE, [5, 6, 7], predicted)
    speculator.extend("s", [1])
    made = count = 0
    while made < 100:
        rows = [DraftRow("s", 8, 10)] if speculator.held("s") else []
        drafts = speculator.draft(ONE, rows)
        right = [each.index(0) if 0 in each else len(each) for each in drafts.tokens]
        emitted = 1 + sum(right)
        speculator.settle(drafts, right, emitted, cpu_seconds(1 + drafts.choice.total))
        speculator.extend("s", [1] * emitted)
        made, count = made + emitted, count + 1
    speculator.end("s", True)
    return count


@pytest.mark.parametrize("made", [with_ngram, with_model])
def test_a_prediction_is_followed_whatever_else_was_lost(
    made: Callable[[SpeculationPolicy], Speculator | ModelSpeculator],
) -> None:
    speculator = made(overdrawn())
    assert steps(speculator, [1] * 101) < 25
    assert set(speculator.counts) == {"predicted"}


def test_without_a_prediction_what_was_lost_counts() -> None:
    speculator = with_model(overdrawn())
    assert steps(speculator, ()) == 100
    assert speculator.counts == {}


def test_a_step_of_both_kinds_has_the_predictions_alone_if_the_others_may_not_be_drafted() -> None:
    accounts = SpeculationAccounts(overdrawn())
    shape = StepShape(2, 2, 20)
    assert accounts.choose(shape, [OTHER, OTHER], [10, 10]).total == 0
    choice = accounts.choose(shape, [OTHER, PREDICTED], [10, 10])
    assert choice.drafts[0] == 0 < choice.drafts[1]
    counts = accounts.wanted(shape, [OTHER, PREDICTED])
    assert counts[0] == 0 < counts[1]
    assert accounts.worth(ONE, PREDICTED, 1)
    assert not accounts.worth(ONE, OTHER, 1)


def test_wrong_predictions_are_given_up_and_leave_the_others_alone() -> None:
    policy = SpeculationPolicy(overdrawn().cost)
    accounts, rounds = SpeculationAccounts(policy), 0
    while (choice := accounts.choose(ONE, [PREDICTED], [10])).total and rounds < 50:
        accounts.settle(choice, [PREDICTED.method], 1, cpu_seconds(1 + choice.total))
        rounds += 1
    assert 0 < rounds < 50
    assert accounts.choose(ONE, [OTHER], [10]).total > 0


def test_plain_steps_pay_into_both_accounts() -> None:
    accounts = SpeculationAccounts(SpeculationPolicy(overdrawn().cost))
    while (choice := accounts.choose(ONE, [PREDICTED], [10])).total:
        accounts.settle(choice, [PREDICTED.method], 1, cpu_seconds(1 + choice.total))
    for _ in range(1000):
        plain = accounts.choose(ONE, [], [])
        accounts.settle(plain, [], 1, cpu_seconds(1))
    assert accounts.choose(ONE, [PREDICTED], [10]).total > 0
