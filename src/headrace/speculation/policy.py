"""How many drafted tokens each sequence of a step verifies.

A drafted token is worth the probability that it is accepted, and costs the time by which it makes the step longer. The
policy admits drafts in the order of their survival and takes the number with the most expected tokens per second. As in
DSpark (arXiv 2607.05147), this is one choice for the whole step, over all sequences; a draft's predecessors have no
lower survival, so they are always admitted before it.

An account bounds the cost of being wrong (two, with predictions: see `accounts`). Every step pays in `ALLOWANCE` of its
time. A step with drafts pays in the time that it has saved, compared with the predicted time of the same tokens without
drafts, or pays out what it has lost. Without balance nothing is speculated, and the balance has an upper limit, so that
early gains finance no later losses. A step verifies no more drafts than the balance covers if all are wrong, those of
steps in flight included. So over any longer time speculation costs at most the allowance. From the same account it
tries numbers of tokens whose step time is not known: the time is then taken to be as short as the known ones allow.

What drafts save is judged by the time of plain steps, which must not be old: the speed of a machine changes by a tenth
and more within seconds, where others share it. So steps go without drafts now and then, the more rarely the more these
gain, and their time scales all others (see `step_cost`). It is two in succession if the second is planned while the
device works on the first: on cores that both use, making drafts for it would make the first one longer.

Drafts of a model take time of their own, which is part of all of this: of a step's predicted time, of what it is
compared with, and of what the account pays. It grows with the number of drafts of the longest row and, less, with the
number of rows, so a draft that does not pay alone may pay in company.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.speculation.step_cost import StepCost

__all__ = ["ALLOWANCE", "DraftingTime", "SpeculationPolicy", "StepChoice", "StepShape"]

DraftingTime = Callable[[Sequence[int]], Sequence[float]]
"""Takes the sequences that get a further draft each, in the order of admission. Returns for each number of drafts the
seconds that it takes to make these."""

ALLOWANCE = 0.005
"""The share of all time that speculation may lose."""
_LIMIT, _FIRST = 8.0, 4.0
"""The most that the account holds and what it begins with, in steps of the current length. Single steps win or lose
much of one by chance, so less would end what pays on the average."""
_START, _STAY = 1.05, 1.02
"""The predicted gain that begins speculation, and the one that keeps it up."""
_WORST = 2.0
"""A step counts as at most this multiple of its predicted time: a longer one was interrupted."""
_OFTEN, _MEASURING = 6, 0.01
"""The steps with drafts after which some go without, so that the plain step is measured: so many, or so many more that
this costs no more than that share of the time."""
_FREE = 1.02
"""The least time of a step with drafts that is believed, relative to that without."""


@dataclass(frozen=True, slots=True)
class StepShape:
    """A step without drafts."""

    tokens: int
    """The number of tokens that it computes, prompts included."""
    sampled: int
    """The number of sequences that it gives a token."""
    context: int = 0
    """The number of tokens that its tokens attend to, in total."""


@dataclass(frozen=True, slots=True)
class StepChoice:
    """The decision for a step, and what was expected of it."""

    shape: StepShape
    drafts: list[int]
    """The number of drafts to verify, for each sequence."""
    context: int
    """Of the drafts."""
    plain_seconds: float
    """The predicted time without drafts."""
    seconds: float
    """The predicted time with them, and of making them."""
    gap: float = 0.0
    """The part of it in which the device waits."""
    predicted: bool = False
    """The account of predictions pays for its drafts (see `accounts`)."""

    @property
    def total(self) -> int:
        return sum(self.drafts)

    @property
    def at_risk(self) -> float:
        """The seconds that are lost if all drafts are wrong."""
        return max(0.0, self.seconds - self.plain_seconds) if any(self.drafts) else 0.0


class SpeculationPolicy:
    """Chooses drafts, step by step, and learns from each step's time. `gap`: seconds that a step with drafts keeps the
    device waiting, because it cannot be planned before the step before it has ended; it may be set anew at any time."""

    def __init__(self, cost: StepCost | None = None, gap: float = 0.0) -> None:
        self.cost = StepCost() if cost is None else cost
        self.gap = gap
        self.at_risk = 0.0
        """Seconds that steps in flight lose if all their drafts are wrong; it may be set anew at any time, too."""
        self._balance: float | None = None
        """Seconds; None until times are known."""
        self._owed = 0.0
        """Seconds of the allowance that the next payment adds."""
        self._speculating = False
        self._unmeasured = 0
        """Steps with drafts since the latest one without."""
        self._undisturbed = False
        """The next step goes without drafts, since the one before it is measured."""

    def beside(self) -> SpeculationPolicy:
        """A new policy with an account of its own, which shares what this one learns of times."""
        other = copy.copy(self)
        other._balance, other._speculating, other._owed = None, False, 0.0
        other._unmeasured, other._undisturbed = 0, False
        return other

    def choose(
        self,
        shape: StepShape,
        survivals: Sequence[Sequence[float]],
        contexts: Sequence[int] = (),
        drafting: DraftingTime | None = None,
        again: bool = False,
    ) -> StepChoice:
        """Decide a step. `survivals`: of the drafts at hand, for each sequence that may verify some; `contexts`: tokens
        that the first draft of each attends to; `drafting`: the time of making the drafts, if they are not made yet;
        `again`: the step was decided before, without their own estimates. At least as fast as without drafts, as far as
        is known."""
        plain = self._plain(shape)
        owners, times = self._admitted(shape, plain, survivals, contexts, drafting)
        drafts = [0] * len(survivals)
        context, seconds = 0, plain
        for owner in owners:
            drafts[owner] += 1
        if owners:
            context = sum(contexts[owner] for owner in owners) if contexts else 0
            making = times[len(owners) - 1] if times else 0.0
            seconds = self.cost.seconds(shape.tokens + len(owners), shape.context + context) + self.gap + making
        if not again and shape.tokens == shape.sampled and self._measures(shape, plain, seconds, survivals, drafts):
            return StepChoice(shape, [0] * len(survivals), 0, plain, plain, self.gap)
        self._speculating = bool(owners)
        return StepChoice(shape, drafts, context, plain, seconds, self.gap)

    def wanted(
        self, shape: StepShape, survivals: Sequence[Sequence[float]], drafting: DraftingTime | None = None
    ) -> list[int]:
        """The drafts of each sequence that `choose` would admit now, if all of them could verify some."""
        drafts = [0] * len(survivals)
        for owner in self._admitted(shape, self._plain(shape), survivals, (), drafting)[0]:
            drafts[owner] += 1
        return drafts

    def settle(
        self, choice: StepChoice, emitted: int, seconds: float, drafting: float = 0.0, typical: bool = True
    ) -> float:
        """Learn from a step that was chosen: the tokens that its sequences got, the device's time for it, and the
        seconds that making its drafts has taken; `typical`: its time is that of its tokens. Returns the seconds that
        its drafts have gained, below 0 for a loss."""
        shape, total = choice.shape, choice.total
        reference = not total and shape.tokens == shape.sampled
        # What makes a step longer does not explain that it is shorter than predicted.
        if typical or (reference and seconds < choice.plain_seconds):
            self.cost.observe(shape.tokens + total, shape.context + choice.context, seconds, reference)
        plain = self._plain(shape)
        if plain <= 0:
            return 0.0
        decode = self._decode(shape, plain)
        if not total:
            self._pay(ALLOWANCE * plain - drafting, decode)
            return -drafting
        spent = min(seconds + choice.gap + drafting, _WORST * choice.seconds)
        without = plain + decode * (emitted / shape.sampled - 1)
        self._pay(without - (1 - ALLOWANCE) * spent, decode)
        return without - spent

    def passed(self, seconds: float) -> None:
        """So much time was spent on steps without drafts that were not chosen here."""
        self._owed += ALLOWANCE * seconds

    def delayed(self, shape: StepShape, seconds: float) -> None:
        """A step without drafts took so long while those of the next one were made. The account pays what that has
        added, up to the time of the step."""
        plain = self._plain(shape)
        if plain > 0:
            self._pay(max(plain - seconds, -plain), self._decode(shape, plain))

    def worth(self, shape: StepShape, survival: Sequence[float]) -> bool:
        """Whether drafts of one sequence with this survival would be admitted to such a step: whether it is worth to
        wait for its last token, so that its next step can verify drafts."""
        plain = self._plain(shape)
        decode = self._decode(shape, plain)
        return self._hopeful(shape, decode, sum(survival)) and self._number(shape, plain, decode, survival, (), ()) > 0

    def _admitted(
        self,
        shape: StepShape,
        plain: float,
        survivals: Sequence[Sequence[float]],
        contexts: Sequence[int],
        drafting: DraftingTime | None,
    ) -> tuple[list[int], Sequence[float]]:
        """The owners of the drafts that are admitted, in order, and the times of making them."""
        decode = self._decode(shape, plain)
        if not self._hopeful(shape, decode, sum(map(sum, survivals))):
            return [], ()
        ordered = [(value, owner) for owner, each in enumerate(survivals) for value in each]
        ordered.sort(reverse=True)
        owners = [owner for _, owner in ordered]
        attended = [contexts[owner] for owner in owners] if contexts else []
        times = () if drafting is None else drafting(owners)
        return owners[: self._number(shape, plain, decode, [value for value, _ in ordered], attended, times)], times

    def _number(
        self,
        shape: StepShape,
        plain: float,
        decode: float,
        values: Sequence[float],
        contexts: Sequence[int],
        drafting: Sequence[float],
    ) -> int:
        """The number of drafts to admit of those with these survivals, which fall. A number whose time is unknown is
        tried if it might be better and the account covers the loss that is expected."""
        count, most, slope = len(values), decode + self._covered(decode), self.cost.slope
        first, stop, expected = shape.tokens + 1, shape.tokens + count + 1, float(shape.sampled)
        times, known = self.cost.table(stop)[first:stop], self.cost.known_table(stop)[first:stop]
        admitted, gain = 0, self._needed(shape, decode)
        # No step is faster than one of fewer tokens. The time that prompts take is spent in any case.
        least, more = decode * _FREE + self.gap, slope * shape.context + self.gap - (plain - decode)
        unknown = list[tuple[int, float, float, float]]()
        for at, value in enumerate(values):
            expected += value
            if contexts:
                more += slope * contexts[at]
            making = drafting[at] if drafting else 0.0
            seconds = times[at] + more + making
            # The rest is never better, or more than the account covers.
            if seconds > most or expected + (count - at - 1) * value < gain * least:
                break
            if expected > gain * seconds:
                admitted, gain = at + 1, expected / seconds
            if known[at]:
                least = max(least, seconds - making)
            else:
                unknown.append((at + 1, expected, seconds, least + making))
        hoped = [
            (expected / fastest, number)
            for number, expected, seconds, fastest in unknown
            if expected > gain * fastest and seconds - expected / gain <= most - decode
        ]
        return max(hoped)[1] if hoped else admitted

    def _measures(
        self,
        shape: StepShape,
        plain: float,
        seconds: float,
        survivals: Sequence[Sequence[float]],
        drafts: Sequence[int],
    ) -> bool:
        """Whether a step that would verify these drafts in so many seconds goes without. With nothing but old times of
        plain steps, drafts would seem to pay when a machine, and so steps of all kinds, has become faster."""
        self._unmeasured = self._unmeasured + 1 if any(drafts) else 0
        if self._undisturbed:
            self._undisturbed = False
            return True
        if self._unmeasured <= _OFTEN:
            return False
        expected = shape.sampled + sum(sum(each[:count]) for each, count in zip(survivals, drafts, strict=True))
        gain = expected * plain / (shape.sampled * seconds) - 1
        steps = 1 if self.gap else 2
        if self._unmeasured <= steps * gain / _MEASURING:
            return False
        self._unmeasured, self._undisturbed = 0, steps > 1
        return True

    def _plain(self, shape: StepShape) -> float:
        """The time of a step without drafts; 0 if it is unknown. While only shorter steps have been measured, it is
        theirs: what pays even then needs no measurement, and what does not pay leads to one."""
        if self.cost.known_with(shape.tokens, shape.context):
            return self.cost.seconds(shape.tokens, shape.context)
        return self.cost.at_least(shape.tokens, shape.context)

    def _decode(self, shape: StepShape, plain: float) -> float:
        """The time in which a step without prompts would give the same sequences a token: what an accepted draft
        saves is such a step, not one that computes prompts too."""
        if shape.tokens == shape.sampled or shape.sampled < 1:
            return plain
        known = self.cost.known(shape.sampled)
        alone = self.cost.seconds(shape.sampled) if known else self.cost.at_least(shape.sampled, shape.context)
        return min(alone, plain) if alone > 0 else plain

    def _needed(self, shape: StepShape, decode: float) -> float:
        """The tokens per second for which drafts are verified at all."""
        return shape.sampled / decode * (_STAY if self._speculating else _START)

    def _hopeful(self, shape: StepShape, decode: float, expected: float) -> bool:
        """Whether drafts may be verified at all, and would pay if they took hardly any time. Without a known time of
        the plain step there is nothing to compare with."""
        if expected <= 0 or shape.sampled < 1 or decode <= 0 or self._covered(decode) < 0:
            return False
        return (shape.sampled + expected) / (decode * _FREE + self.gap) > self._needed(shape, decode)

    def _pay(self, amount: float, decode: float) -> None:
        self._balance = min(self._held(decode) + self._owed + amount, _LIMIT * decode)
        self._owed = 0.0

    def _covered(self, decode: float) -> float:
        """The loss that the account covers, in seconds."""
        return self._held(decode) - self.at_risk

    def _held(self, decode: float) -> float:
        return _FIRST * decode if self._balance is None else self._balance
