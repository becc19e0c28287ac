"""Drafts of a model whose rounds are launched while the device computes: the host's work for them slows that step."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count

import pytest

from headrace.speculation.acceptance import PositionAcceptance
from headrace.speculation.policy import SpeculationPolicy, StepChoice, StepShape

HITS = [0.7, 0.6, 0.66, 0.6, 0.69]
"""By position in the draft, given that those before it are right: a head that was trained for its text."""
LENGTHS = [24, 35, 38, 51, 79, 128, 128, 128]


def step_seconds(tokens: int) -> float:
    """Of a model of 135 M weights of 4 bits on two cores."""
    return (3.6 + 0.6 * (tokens - 1)) * 1e-3


def pass_seconds(blocks: int) -> float:
    """Of a drafter of two layers."""
    return (0.63 + 0.3 * (blocks - 1)) * 1e-3 if blocks else 0.0


def block_times(owners: list[int]) -> list[float]:
    return [pass_seconds(len(set(owners[: at + 1]))) for at in range(len(owners))]


def speed(batch: int, host: float, drafts: bool = True, rounds: int = 12, told: bool = True) -> float:
    """Tokens per second of sequences that begin together, `rounds` times. A step is planned while the one before it
    runs, and the host takes `host` seconds and a little for each block, by which that one becomes longer."""
    policy, rates = SpeculationPolicy(), PositionAcceptance(len(HITS))
    rng, lengths = random.Random(1), random.Random(9)
    names, total, made = map(str, count()), 0.0, 0
    for _ in range(rounds):
        left = {name: lengths.choice(LENGTHS) for name, _ in zip(names, range(batch), strict=False)}
        for name in left:
            rates.begin(name)
        running: tuple[StepChoice, int, float] | None = None
        while left or running is not None:
            choice, work = None, 0.0
            if left:
                most = [min(len(HITS), length - 1) if drafts else 0 for length in left.values()]
                survivals = [rates.survival(name, each) for name, each in zip(left, most, strict=True)]
                choice = policy.choose(StepShape(len(left), len(left)), survivals, (), block_times)
                work = host + 0.1 * host * blocks_of(choice) if choice.total else 0.0
            if running is not None:
                before, emitted, seconds = running
                drafting, seconds = pass_seconds(blocks_of(before)), seconds + work
                policy.settle(before, emitted, seconds, drafting, shared=told and work > 0)
                total, made, running = total + seconds + drafting, made + emitted, None
            if choice is not None:
                emitted = sum(
                    yielded(name, left, wanted, rates, rng)
                    for name, wanted in zip(list(left), choice.drafts, strict=True)
                )
                seconds = step_seconds(choice.shape.tokens + choice.total) * max(0.8, rng.gauss(1, 0.05))
                running = choice, emitted, seconds
    return made / total


def blocks_of(choice: StepChoice) -> int:
    return sum(each > 0 for each in choice.drafts)


def yielded(name: str, left: dict[str, int], wanted: int, rates: PositionAcceptance, rng: random.Random) -> int:
    """The tokens that a step gives a sequence."""
    right = next((at for at in range(wanted) if rng.random() >= HITS[at]), wanted)
    if wanted:
        rates.verified(name, wanted, right)
    else:
        rates.skipped(name)
    tokens = min(right + 1, left[name])
    left[name] -= tokens
    if not left[name]:
        del left[name]
        rates.end(name)
    return tokens


@pytest.mark.parametrize("batch", [4, 8])
def test_work_of_the_host_that_slows_steps_ends_drafts_that_do_not_pay(batch: int) -> None:
    assert speed(batch, 1e-3) > 0.97 * speed(batch, 1e-3, drafts=False)


def test_drafts_that_pay_in_spite_of_the_hosts_work_are_made() -> None:
    assert speed(1, 5e-4, rounds=24) > 1.2 * speed(1, 5e-4, drafts=False, rounds=24)


def test_steps_that_the_hosts_work_does_not_slow_cost_the_account_nothing() -> None:
    """A device with processors of its own: half of its steps are shorter than predicted."""
    policy, rng, shape = SpeculationPolicy(), random.Random(2), StepShape(4, 4)
    for step in range(500):
        choice = policy.choose(shape, [])
        policy.settle(choice, 4, rng.gauss(10e-3, 5e-4), shared=step % 4 > 0)
    assert policy.cost.seconds(4) == pytest.approx(10e-3, rel=0.03)
    # It holds at most eight such steps, and 5 % of noise moves what is known of their time.
    assert policy._covered(10e-3) > 60e-3


def test_the_time_of_a_step_is_learnt_without_the_hosts_work_beside_it() -> None:
    policy, shape = SpeculationPolicy(), StepShape(4, 4)
    for step in range(200):
        shared = step > 20 and step % 4 > 0
        choice = policy.choose(shape, [])
        policy.settle(choice, 4, 11e-3 if shared else 10e-3, shared=shared)
    assert policy.cost.seconds(4) == pytest.approx(10e-3, rel=1e-3)
    assert policy._slowed == pytest.approx(1e-3, rel=0.05)
    # All these rounds for nothing have emptied the account.
    assert policy.choose(shape, [[0.99]] * 4).total == 0
    policy._balance = 1.0
    drafted = policy.choose(shape, [[0.99]] * 4, (), lambda owners: [1e-3] * len(owners))
    assert drafted.total == 4
    assert drafted.seconds - policy.cost.seconds(8) == pytest.approx(2e-3, rel=0.05)


def test_steps_with_drafts_are_learnt_without_the_hosts_work_beside_them() -> None:
    policy, shape = SpeculationPolicy(), StepShape(4, 4)
    for step in range(200):
        policy.settle(policy.choose(shape, []), 4, 11e-3 if step % 2 else 10e-3, shared=step % 2 > 0)
    for _ in range(9):
        policy.settle(replace(policy.choose(shape, []), drafts=[2, 0, 0, 0]), 6, 13e-3, shared=True)
    assert policy.cost.seconds(6) == pytest.approx(12e-3, rel=0.01)
