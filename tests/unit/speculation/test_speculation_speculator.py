"""Sequences are held while their drafts are worth it; others cost next to nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain

import pytest
from naive_drafts import NAMESPACE

from headrace.speculation.drafter import Guess
from headrace.speculation.ngram import NgramDrafter
from headrace.speculation.policy import StepShape
from headrace.speculation.speculator import MOST_DRAFTS, DraftRow, Speculator


class Counting(NgramDrafter):
    """Counts the questions."""

    asked = 0

    def guess(self, sequence: str, most: int) -> Guess:
        self.asked += 1
        return super().guess(sequence, most)


def seconds(tokens: int) -> float:
    return 1.0 + 0.2 * (tokens - 1)


def play(speculator: Speculator, name: str, output: Sequence[int], ahead: int = 1) -> tuple[int, int]:
    """Decode an output alone, planning one step ahead while the sequence is not held. Returns the number of steps, and
    of those for which it was held."""
    at = steps = held = 0
    while at < len(output):
        steps += 1
        holds = speculator.held(name)
        held += holds
        most = len(output) - at - 1
        rows = [DraftRow(name, most, at)] if holds else []
        drafts = speculator.draft(StepShape(1, 1), rows)
        right = 0
        while rows and right < len(drafts.tokens[0]) and drafts.tokens[0][right] == output[at + right]:
            right += 1
        speculator.settle(drafts, [right] * len(rows), right + 1, seconds(1 + drafts.choice.total))
        speculator.extend(name, output[at : at + right + 1], 0 if holds else ahead)
        at += right + 1
    return steps, held


def started(drafter: NgramDrafter | None = None) -> Speculator:
    speculator = Speculator(drafter or NgramDrafter())
    speculator.begin("s", NAMESPACE, [1, 2, 3])
    return speculator


def test_a_copying_sequence_is_held_and_takes_few_steps() -> None:
    speculator = started()
    steps, held = play(speculator, "s", list(range(10, 50)) * 8)
    assert steps < 120
    assert held > 0.3 * steps
    counts = speculator.counts["ngram"]
    assert counts.rounds + counts.accepted > 80
    assert counts.mean_length > 3


def test_a_sequence_without_use_for_drafts_is_left_alone() -> None:
    rng, drafter = random.Random(1), Counting()
    speculator = started(drafter)
    steps, held = play(speculator, "s", [rng.randrange(7) for _ in range(600)])
    assert steps > 570
    assert held < 0.15 * steps
    assert drafter.asked < 0.3 * steps


def test_a_sequence_that_begins_to_copy_is_noticed() -> None:
    rng = random.Random(2)
    noise = [rng.randrange(300) for _ in range(300)]
    speculator = started()
    play(speculator, "s", noise)
    steps, _ = play(speculator, "s", noise[:200])
    assert steps < 100


def test_no_more_drafts_than_fit() -> None:
    speculator = started()
    speculator.extend("s", [1, 2, 3, 1, 2, 3])
    for _ in range(3):
        speculator.settle(speculator.draft(StepShape(1, 1), []), [], 1, 1.0)
    shape = StepShape(1, 1)
    assert speculator.draft(shape, [DraftRow("s", 0, 9)]).tokens == [[]]
    assert speculator.draft(shape, [DraftRow("s", 1, 9)]).tokens == [[1]]
    assert len(speculator.draft(shape, [DraftRow("s", 99, 9)]).tokens[0]) <= MOST_DRAFTS


def test_void_rows_are_not_counted() -> None:
    speculator = started()
    speculator.extend("s", [1, 2, 3, 1, 2, 3])
    for _ in range(3):
        speculator.settle(speculator.draft(StepShape(1, 1), []), [], 1, 1.0)
    drafts = speculator.draft(StepShape(1, 1), [DraftRow("s", 2, 9)])
    speculator.settle(drafts, [None], 1, 1.0)
    assert speculator.counts == {}
    speculator.settle(drafts, [1], 2, 1.0)
    assert speculator.counts["ngram"].accepted == 1


@pytest.mark.parametrize("right", [True, False])
def test_drafts_behind_tokens_in_flight_are_judged_by_their_own_results(right: bool) -> None:
    """A guess is there throughout, but it is not known which of it the device has used up."""
    speculator = started()
    speculator.extend("s", [1, 2, 3] * 4)
    for _ in range(3):
        speculator.settle(speculator.draft(StepShape(1, 1), []), [], 1, seconds(1))
    made = []
    for _ in range(40):
        drafts = speculator.draft(StepShape(1, 1), [DraftRow("s", 6, 9, ahead=4)])
        made.append(drafts.choice.total)
        count = drafts.choice.total * right
        speculator.settle(drafts, [count], count + 1, seconds(1 + drafts.choice.total))
    assert made[0] > 0
    assert sum(made[-10:]) == 60 if right else sum(made[-10:]) <= 2, "what failed is tried again rarely"


def test_the_time_of_a_step_that_may_have_ended_early_is_not_learnt() -> None:
    """The device had drafts for none of the rows, or for one of them."""
    speculator = started()
    speculator.extend("s", [1, 2, 3] * 4)
    for _ in range(3):
        speculator.settle(speculator.draft(StepShape(1, 1), []), [], 1, seconds(1))
    for made in (0, 1, 0, 1):
        drafts = speculator.draft(StepShape(1, 1), [DraftRow("s", 6, 9, ahead=4)])
        total = drafts.choice.total
        speculator.settle(drafts._replace(tokens=[drafts.tokens[0][:made]]), [made], 1 + made, seconds(1 + made))
        assert total > 1
        assert not speculator.policy.cost.known(1 + total)


def test_without_a_guess_nothing_is_asked_of_the_device() -> None:
    speculator = started()
    speculator.extend("s", [7])
    for _ in range(3):
        speculator.settle(speculator.draft(StepShape(1, 1), []), [], 1, seconds(1))
    assert speculator.draft(StepShape(1, 1), [DraftRow("s", 6, 9, ahead=4)]).choice.total == 0


def test_an_ended_sequence_leaves_nothing() -> None:
    speculator = started()
    play(speculator, "s", [1, 2, 3] * 5)
    speculator.end("s", keep=True)
    assert speculator._states == {}


class Reading(NgramDrafter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[list[int]] = []

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        self.told.append(list(tokens))
        super().extend(sequence, tokens)


@pytest.mark.parametrize("keep", [True, False])
def test_a_sequence_that_is_not_held_is_read_when_it_is_asked_and_at_its_end(keep: bool) -> None:
    drafter = Reading()
    speculator = started(drafter)
    output = list(range(100, 120))
    for token in output:
        speculator.extend("s", [token])
    assert not speculator.held("s")
    # After 1, 2 and 4 tokens more, then after every sixth.
    assert list(map(len, drafter.told)) == [1, 2, 4, 6, 6]
    speculator.end("s", keep)
    assert list(chain.from_iterable(drafter.told)) == (output if keep else output[:19])


def test_a_draft_reads_what_the_drafter_does_not_have() -> None:
    drafter = Reading()
    speculator = started(drafter)
    for token in (1, 2, 3, 1):
        speculator.extend("s", [token])
    speculator.draft(StepShape(1, 1), [DraftRow("s", 4, 7)])
    assert list(chain.from_iterable(drafter.told)) == [1, 2, 3, 1]


def test_while_no_sequence_is_held_the_engine_need_not_ask() -> None:
    rng, speculator = random.Random(1), started()
    assert speculator.rest() == 0, "a new sequence is asked about soon"
    noise = [rng.randrange(300) for _ in range(60)]
    at = 0
    while at < len(noise):
        speculator.settle(speculator.draft(StepShape(1, 1), []), [], 1, 1.0)
        steps = speculator.rest() + 1
        speculator.passed(steps - 1, steps - 1.0)
        speculator.extend("s", noise[at : at + steps], 1)
        at += steps
    assert speculator.rest() == 5
    speculator.begin("new", NAMESPACE, [4, 5])
    assert speculator.rest() == 0
    speculator.end("new", True)
    play(speculator, "s", noise)
    while not speculator.held("s"):
        play(speculator, "s", noise[:20])
    assert speculator.rest() == 0, "a sequence is held"


def test_a_sequence_that_waits_to_go_on_is_asked_about_when_it_does() -> None:
    rng, speculator = random.Random(1), started()
    noise = [rng.randrange(300) for _ in range(60)]
    play(speculator, "s", noise)
    speculator.begin("held", NAMESPACE, [4, 5])
    while not speculator.held("held"):
        play(speculator, "held", noise[:20])
    assert speculator.rest() == 0
    speculator.pause("held", True)
    assert speculator.rest() == 5, "nothing is to be asked while it waits"
    speculator.extend("held", [noise[0]])
    assert speculator.held("held"), "at its first token"
    speculator.begin("new", NAMESPACE, [4, 5])
    assert speculator._states["new"].interval == 1
    speculator.pause("new", True)
    speculator.pause("held", True)
    assert speculator.rest() == 5
