"""Plans of a draft head's passes: which entries a round computes while it is not known how many drafts were right."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.core.drafts import DraftRow
from headrace.engine.head_plans import Drafted, catch_up_pass, deeper_pass, draws, following_pass, known_pass
from headrace.kernels.inputs import plan_arrays
from headrace.sampling import DEVICE_ROWS
from headrace.types import GIVEN, NO_TOKEN, Request, SamplingParams

BLOCK = 16
GREEDY = SamplingParams(temperature=0.0)
TABLE = np.array([7, 3, 9, 4], np.int32)


def drafted(tokens: int, lag: int = 1, params: SamplingParams = GREEDY) -> Drafted:
    request = Request("r", tuple(range(tokens)), params)
    found = Drafted(request, list(range(tokens)), 100, lag)
    found.blocks = [5, 6, 2, 8]
    return found


def place(seq: Drafted, known: int, ahead: int | None, uncertain: int = 0, wrong: int = 0) -> None:
    seq.place(DraftRow("r", 8, known + 1, 3, TABLE, ahead, uncertain, wrong))


def test_tokens_in_flight_come_from_the_device() -> None:
    seq = drafted(20)
    seq.caught_up(17)
    place(seq, 22, ahead=2)
    step = catch_up_pass([seq.begin_round(3)], BLOCK, zero_first=True)
    assert step.plan.positions.tolist() == [17, 18, 19, 20]
    assert step.plan.token_ids.tolist() == [NO_TOKEN] * 4
    assert step.bounds.tolist() == [GIVEN]
    assert step.plan.slot_mapping.tolist() == [6 * BLOCK + at for at in (1, 2, 3, 4)]
    assert step.places.tolist() == [3 * BLOCK + at for at in (1, 2, 3, 4)]
    assert step.tables.tolist() == [TABLE.tolist()]
    assert (step.plan.context_lens.tolist(), step.plan.sampling.position.tolist()) == ([21], [22])
    after = following_pass([seq], 2, BLOCK)
    assert (after.plan.positions.tolist(), after.token_positions.tolist()) == ([22], [23])


def test_committed_tokens_are_given() -> None:
    seq = drafted(20)
    place(seq, 20, ahead=None)
    step = catch_up_pass([seq.begin_round(3)], BLOCK, zero_first=True)
    assert step.plan.token_ids.tolist() == [-1, *range(2, 20)]
    assert seq.computed == 19
    place(seq, 23, ahead=3, uncertain=2)
    known = known_pass([seq.missing()._replace(start=4, stop=6)], BLOCK, zero_first=True)
    assert known.plan.token_ids.tolist() == [5, 6]
    assert known.plan.row_target.tolist() == [7]
    assert known.bounds.tolist() == [GIVEN]


def test_an_entry_of_a_model_is_that_of_its_own_token() -> None:
    seq = drafted(20, lag=0)
    place(seq, 20, ahead=None)
    step = catch_up_pass([seq.begin_round(4)], BLOCK, zero_first=False)
    assert step.plan.token_ids.tolist() == list(range(20))
    assert (step.token_positions[-1], step.plan.context_lens.tolist(), step.plan.sampling.position.tolist()) == (
        19,
        [20],
        [20],
    )
    after = following_pass([seq], 1, BLOCK)
    assert (after.plan.positions.tolist(), after.plan.sampling.position.tolist()) == ([20], [21])
    known = known_pass([seq.missing()._replace(start=4, stop=6)], BLOCK, zero_first=False)
    assert known.plan.token_ids.tolist() == [4, 5]
    assert known.plan.row_target.tolist() == [6]


@pytest.mark.parametrize(("right", "missing"), [(0, 1), (2, 1), (3, 1), (4, 2)])
def test_entries_of_right_drafts_of_a_model_stay(right: int, missing: int) -> None:
    """The last draft has no entry yet."""
    seq = drafted(20, lag=0)
    place(seq, 20, ahead=None)
    seq.begin_round(4)
    seq.guessed = [50, 51, 52]
    seq.extend([*[50, 51, 52, 53][:right], 99])
    assert seq.entries - seq.computed == missing


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("seed", range(30))
def test_no_entry_is_missed_whatever_was_right(seed: int, lag: int) -> None:
    """Two steps in flight: each round sees the result of the step before the last one."""
    rng = random.Random(seed)
    seq, true, computed = drafted(12, lag), 13, 0
    """The tokens that the device knows, and the entries in the drafter's cache that are right"""
    known, uncertain, wrong = 13, 0, 0
    in_flight: list[tuple[int, int]] = []
    for _ in range(40):
        place(seq, known, known - len(seq.tokens), uncertain, wrong)
        assert known - uncertain <= true <= known
        drafts = min(rng.choice([0, 1, 3, 8]), known - uncertain - 1)
        if drafts > 0:
            span, back = seq.begin_round(drafts), known - true
            assert 0 <= span.start - back <= computed
            assert span.stop - back == true - lag
            computed = true - lag
        right = rng.randint(0, drafts)
        if drafts > 0 and not lag:
            computed += min(right, drafts - 1)
        true += 1 + right
        known, uncertain = known + 1 + drafts, uncertain + drafts
        in_flight.append((drafts, right))
        while len(in_flight) > rng.randint(0, 1):
            drafts, right = in_flight.pop(0)
            known, uncertain, wrong = known - drafts + right, uncertain - drafts, wrong + drafts - right
            seq.tokens += [0] * (1 + right)


@pytest.mark.parametrize("bias", [(), ((7, -1.0),)])
def test_a_deeper_pass_is_the_following_pass_of_its_depth(bias: tuple[tuple[int, float], ...]) -> None:
    """From the pass before where the sequences are the same, across the end of a block."""
    seqs = [drafted(13, params=SamplingParams(temperature=0.5, seed=4, logit_bias=bias)), drafted(30)]
    for seq in seqs:
        place(seq, len(seq.tokens), ahead=None)
    before = following_pass(seqs, 1, BLOCK)
    for depth, left in ((2, seqs), (3, seqs), (4, seqs[:1]), (5, seqs[:1])):
        step, wanted = deeper_pass(before, left, depth, BLOCK), following_pass(left, depth, BLOCK)
        found, expected = plan_arrays(step.plan, 100), plan_arrays(wanted.plan, 100)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, name, strict=True)
        np.testing.assert_array_equal(step.token_positions, wanted.token_positions, strict=True)
        np.testing.assert_array_equal(step.bounds, wanted.bounds, strict=True)
        before = step


def test_draws_have_the_parameters_of_their_sequences() -> None:
    params = [
        SamplingParams(temperature=0.5, top_k=3, seed=-2, repetition_penalty=1.5),
        SamplingParams(top_p=0.25, seed=9, logit_bias=((7, 2.0),), allowed_token_ids=(7, 8)),
    ]
    seqs = [drafted(4, params=one) for one in params]
    positions = np.arange(6, dtype=np.int32)
    batch = draws(seqs, positions, 3)
    assert batch.params.keys() == DEVICE_ROWS.keys()
    for name, row in DEVICE_ROWS.items():
        wanted = np.array([getattr(one, name) for one in params for _ in range(3)], row.dtype)
        np.testing.assert_array_equal(batch.params[name], wanted, name, strict=True)
    assert batch.seed.tolist() == [2**64 - 2] * 3 + [9] * 3
    assert batch.position is positions
    assert (batch.bias_row.tolist(), batch.bias_token.tolist()) == ([3, 4, 5], [7, 7, 7])
    assert batch.allowed_row is not None
    assert batch.allowed_row.tolist() == [-1, -1, -1, 0, 1, 2]
