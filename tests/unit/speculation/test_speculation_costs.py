"""Step times are learnt from few and noisy measurements; acceptance is counted by position."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from speculation_simulation import cpu_seconds, stepped_seconds

from headrace.speculation.acceptance import AcceptanceCounts, PositionAcceptance
from headrace.speculation.step_cost import StepCost


def test_before_the_first_step_the_prior_gives_ratios() -> None:
    cost = StepCost(share=0.5)
    assert cost.seconds(3) / cost.seconds(1) == pytest.approx(2.0)
    assert not cost.known(1)


def test_one_size_scales_the_prior() -> None:
    cost = StepCost(share=0.5)
    for _ in range(3):
        cost.observe(3, 0, 8.0)
    assert cost.seconds(3) == pytest.approx(8.0)
    assert cost.seconds(1) == pytest.approx(4.0)
    assert cost.seconds(5) == pytest.approx(12.0)
    assert cost.known(3)
    assert not cost.known(4)


def known_costs() -> StepCost:
    cost = StepCost()
    for tokens in [tokens for tokens in range(1, 17) for _ in range(3)]:
        cost.observe(tokens, 0, cpu_seconds(tokens))
    return cost


def test_the_speed_of_reference_steps_is_that_of_all() -> None:
    cost = known_costs()
    cost.observe(4, 0, 1.3 * cpu_seconds(4))
    assert cost.seconds(8) == pytest.approx(cpu_seconds(8)), "other steps say nothing of the rest"
    for _ in range(3):
        cost.observe(4, 0, 1.3 * cpu_seconds(4), reference=True)
    for tokens in (1, 4, 12, 16):
        assert cost.seconds(tokens) == pytest.approx(1.3 * cpu_seconds(tokens), rel=0.02)
    assert cost.at_least(16, 0) == pytest.approx(1.3 * cpu_seconds(16), rel=0.02)
    for _ in range(2):
        cost.observe(4, 0, cpu_seconds(4), reference=True)
    assert cost.seconds(16) == pytest.approx(cpu_seconds(16), rel=0.02), (
        "a machine that has become faster shows at once"
    )


@pytest.mark.parametrize("ratios", [(1.0, 100.0, 1.0), (1.0, 1.0, 100.0, 2.0, 2.0)])
def test_interrupted_reference_steps_do_not_change_the_speed(ratios: tuple[float, ...]) -> None:
    cost = known_costs()
    for ratio in ratios:
        cost.observe(4, 0, ratio * cpu_seconds(4), reference=True)
    assert cost.seconds(16) == pytest.approx(cpu_seconds(16), rel=0.01)


def test_what_lasts_at_one_size_alone_is_its_own() -> None:
    """Its first times were too long: other sizes tell that the machine is as fast as before."""
    cost = StepCost()
    for tokens in [tokens for tokens in range(1, 17) for _ in range(3)]:
        cost.observe(tokens, 0, cpu_seconds(tokens) * (1.5 if tokens == 4 else 1.0))
    for _ in range(40):
        for tokens in [4] * 20 + [8] * 20:
            cost.observe(tokens, 0, cpu_seconds(tokens), reference=True)
    assert cost.seconds(4) == pytest.approx(cpu_seconds(4), rel=0.05)
    assert cost.seconds(8) == pytest.approx(cpu_seconds(8), rel=0.05)


def test_noise_and_interruptions_do_not_matter() -> None:
    cost, rng = StepCost(), random.Random(3)
    for _ in range(3000):
        tokens = rng.choice([1, 2, 3, 4, 8, 16, 24, 64, 300])
        cost.observe(tokens, 0, cpu_seconds(tokens) * rng.gauss(1, 0.05) * (30 if rng.random() < 0.05 else 1))
    for tokens in (1, 2, 5, 8, 12, 24, 40, 64, 150, 300):
        assert cost.seconds(tokens) == pytest.approx(cpu_seconds(tokens), rel=0.08)


def test_the_curve_never_falls() -> None:
    cost, rng = StepCost(), random.Random(4)
    for _ in range(600):
        cost.observe(rng.randrange(1, 200), 0, rng.random() + 0.1)
    curve = cost.table(400)
    assert all(one <= other for one, other in pairwise(curve))
    assert cost.seconds(40) == curve[40]


def test_a_step_between_two_numbers_of_tokens_is_seen() -> None:
    cost = StepCost()
    for tokens in [tokens for tokens in range(1, 17) for _ in range(3)]:
        cost.observe(tokens, 0, stepped_seconds(tokens))
    assert cost.seconds(8) == pytest.approx(stepped_seconds(8))
    assert cost.seconds(9) == pytest.approx(stepped_seconds(9), rel=0.01)


def test_the_slope_of_the_context_is_learnt_from_growing_sequences() -> None:
    cost, rng = StepCost(), random.Random(5)
    for context in range(100, 4000, 3):
        tokens = rng.choice([1, 4])
        cost.observe(tokens, tokens * context, (2.0 + 1e-3 * tokens * context + tokens) * rng.gauss(1, 0.02))
    assert cost.slope == pytest.approx(1e-3, rel=0.15)
    assert cost.seconds(4, 4 * 4000) == pytest.approx(6 + 16, rel=0.1)
    assert cost.seconds(1, 500) == pytest.approx(3.5, rel=0.15)


def test_what_the_device_does_now_counts() -> None:
    cost = StepCost()
    for _ in range(100):
        cost.observe(2, 0, 1.0)
    for _ in range(40):
        cost.observe(2, 0, 3.0)
    assert cost.seconds(2) == pytest.approx(3.0)


def test_old_times_are_not_believed() -> None:
    cost = StepCost()
    for _ in range(9):
        cost.observe(4, 0, 1.0)
    for _ in range(4097):
        cost.observe(2, 0, 1.0)
    assert not cost.known(4)
    assert cost.known(2)
    for _ in range(2):
        cost.observe(4, 0, 5.0)
        assert not cost.known(4), "new times alone count"
    cost.observe(4, 0, 5.0)
    assert cost.known(4)
    assert cost.seconds(4) == pytest.approx(5.0)


def test_no_time_is_no_measurement() -> None:
    cost = StepCost()
    for seconds in (0.0, -1.0, float("nan")):
        cost.observe(1, 0, seconds)
        cost.observe(0, 0, 1.0)
    assert not cost.known(1)


def test_known_sizes_as_a_table() -> None:
    cost = StepCost()
    assert not any(cost.known_table(50))
    for tokens in (1, 3, 100):
        for _ in range(3):
            cost.observe(tokens, 0, 1.0)
    assert cost.known_table(5)[:5] == [False, True, False, True, False]
    assert cost.known_table(200)[:200] == [cost.known(tokens) for tokens in range(200)]


def test_what_lies_between_two_near_sizes_is_known() -> None:
    """Each number of tokens was tried for itself, which costs more than what is left to learn is worth."""
    cost = StepCost()
    for tokens in [*range(1, 17), 20, 24, 48]:
        for _ in range(3):
            cost.observe(tokens, 0, cpu_seconds(tokens))
    known = cost.known_table(60)
    assert all(known[tokens] for tokens in (17, 18, 19, 21, 22, 23))
    assert not any(known[tokens] for tokens in (30, 36, 42, 59)), "far from all that was measured"
    alone = StepCost()
    for tokens in (2, 4):
        for _ in range(3):
            alone.observe(tokens, 0, cpu_seconds(tokens))
    assert not alone.known_table(5)[3], "kernels change their form at small sizes"


def test_a_step_takes_no_less_than_smaller_ones_took() -> None:
    cost = StepCost()
    assert cost.at_least(4, 100) == 0.0
    for tokens, context, seconds in ((2, 100, 2.0), (2, 1000, 3.0), (8, 1000, 9.0)):
        for _ in range(3):
            cost.observe(tokens, context, seconds)
    assert cost.at_least(4, 500) == 2.0
    assert cost.at_least(4, 5000) == 3.0
    assert cost.at_least(9, 5000) == 9.0
    assert cost.at_least(1, 5000) == 0.0
    assert cost.known_with(2, 1000)
    assert not cost.known_with(2, 5000)


def test_accepted_tokens_are_counted_by_position() -> None:
    counts = AcceptanceCounts()
    assert (counts.mean_length, counts.rate) == (1.0, 0.0)
    for drafted, accepted in ((3, 2), (1, 1), (2, 0), (0, 0)):
        counts.add(drafted, accepted)
    assert (counts.rounds, counts.drafted, counts.accepted) == (3, 6, 3)
    assert counts.drafted_by_position == [3, 2, 1]
    assert counts.accepted_by_position == [2, 1, 0]
    assert counts.mean_length == 2.0
    assert counts.rate == 0.5


def test_acceptance_by_position_is_learnt_for_each_sequence() -> None:
    acceptance = PositionAcceptance(3)
    for name in "ab":
        acceptance.begin(name)
    assert acceptance.survival("a", 2) == pytest.approx([0.6, 0.42])
    for _ in range(200):
        acceptance.verified("a", 3, 3)
        acceptance.verified("b", 3, 1)
    assert acceptance.survival("a", 3)[2] > 0.8
    first, second, third = acceptance.survival("b", 3)
    assert first > 0.9
    assert second < 0.25
    assert third < second
    for _ in range(600):
        acceptance.skipped("b")
    assert acceptance.survival("b", 2)[1] > 2 * second, "what was of no use is tried again"
    for name in "ab":
        acceptance.end(name)
    acceptance.begin("a")
    assert 0.3 < acceptance.survival("a", 2)[1] < 0.7, "a new sequence expects what the others had"


def test_times_of_a_trial_count_until_there_are_others() -> None:
    cost = StepCost()
    for _ in range(9):
        cost.observe(4, 0, 1.0)
    cost.replace_soon()
    assert cost.known(4)
    assert cost.seconds(4) == 1.0
    cost.observe(4, 0, 3.0)
    cost.observe(4, 0, 3.0)
    assert cost.seconds(4) == 1.0, "two are not enough"
    for _ in range(24):
        cost.observe(4, 0, 3.0)
    assert cost.seconds(4) == 3.0
