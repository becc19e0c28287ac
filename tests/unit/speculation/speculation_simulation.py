"""A device with known step times and sequences with known acceptance, to see what a policy makes of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from headrace.speculation.acceptance import PositionAcceptance
from headrace.speculation.policy import SpeculationPolicy, StepShape

MOST = 8


def cpu_seconds(tokens: int, context: int = 0) -> float:
    """A model of 135 M weights of 4 bits on two cores."""
    return (2.9 + 0.51 * (tokens - 1)) * 1e-3 + 2e-7 * context


def gpu_seconds(tokens: int, context: int = 0) -> float:
    """A device that reads the weights once for any small number of tokens."""
    return 8e-3 + 5e-6 * max(tokens - 64, 0) + 1e-9 * context


def stepped_seconds(tokens: int, context: int = 0) -> float:
    """Kernels for up to 8 tokens, and others that take twice the time."""
    return 5e-3 if tokens <= 8 else 10e-3 + 1e-5 * tokens


@dataclass
class Simulation:
    """`hit(token, sequence)`: the probability that a draft is right if those before it were, at this token of the
    output."""

    seconds: Callable[[int, int], float]
    hit: Callable[[int, int], float]
    batch: int = 1
    gap: float = 0.0
    blind: bool = False
    """Only a verification tells whether a draft was right, as for a draft model that runs only if it is asked."""
    noise: float = 0.03
    drift: float = 0.0
    """The spread of the machine's speed, which changes within some hundred steps. All drafts and steps are judged by
    the times that they have at the same speed."""
    seed: int = 0

    def run(self, tokens: int, fixed: int | None = None) -> float:
        """Tokens per second until so many are made, with this number of drafts or with the policy's."""
        rng, speeds, speed = random.Random(self.seed), random.Random(self.seed), 0.0
        policy, rates = SpeculationPolicy(gap=self.gap), PositionAcceptance(MOST)
        names = [str(at) for at in range(self.batch)]
        for name in names:
            rates.begin(name)
        time, prompts = 0.0, [100 + 10 * at for at in range(self.batch)]
        lengths = list(prompts)
        while (made := sum(lengths) - sum(prompts)) < tokens * self.batch:
            shape = StepShape(self.batch, self.batch, sum(lengths))
            survivals = [rates.survival(name, MOST) for name in names]
            choice = policy.choose(shape, survivals, lengths)
            drafts = choice.drafts if fixed is None else [fixed] * self.batch
            emitted = 0
            for at, name in enumerate(names):
                right = self._right(rng, self.hit(lengths[at] - prompts[at], at))
                yielded = min(right, drafts[at]) + 1
                if not self.blind:
                    # The output is the same without verification, so it judges the draft all the same.
                    rates.verified(name, min(yielded, MOST), min(right, yielded, MOST))
                elif drafts[at]:
                    rates.verified(name, drafts[at], yielded - 1)
                else:
                    rates.skipped(name)
                lengths[at] += yielded
                emitted += yielded
            context = shape.context + sum(count * length for count, length in zip(drafts, lengths, strict=True))
            speed = 0.99 * speed + (1 - 0.99**2) ** 0.5 * self.drift * speeds.gauss(0, 1)
            took = self.seconds(self.batch + sum(drafts), context) * rng.gauss(1, self.noise)
            if rng.random() < 0.002:
                took *= 20
            elif fixed is None:
                policy.settle(choice, emitted, took * math.exp(speed))
            time += min(took, 1.2 * self.seconds(self.batch + sum(drafts), context)) + (self.gap if sum(drafts) else 0)
        return made / time

    def _right(self, rng: random.Random, hit: float) -> int:
        right = 0
        while right < MOST and rng.random() < hit:
            right += 1
        return right
