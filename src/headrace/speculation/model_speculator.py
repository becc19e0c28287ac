"""Drafting with a model: which sequences get drafts, and how many, when each draft takes time to make.

A host's drafter is asked first, and what it answers decides; a model is too dear for that. Here the decision comes
first: the acceptance by position in the draft gives the expected tokens, the measured times of the model's steps give
the cost, and only the drafts that pay are made. One step of the model makes a draft for each of many rows, so the
sequences are judged together: what does not pay for one may pay for all.

A sequence's earlier tokens must be computed by the model before it can draft. A decision counts that time as if it
were spread over the next `_ROUNDS` rounds. It is paid from funds of their own, which get `_PROMPTS` of all time and
what drafts gain, and hold no more than `_FUNDS` steps. A sequence begins only while the funds are not overdrawn, so
over any longer time prompts for nothing cost no more than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from headrace.speculation.acceptance import AcceptanceCounts, PositionAcceptance
from headrace.speculation.accounts import SpeculationAccounts
from headrace.speculation.calibration import Calibration
from headrace.speculation.drafter import NO_GUESS, Guess
from headrace.speculation.policy import ALLOWANCE, DraftingTime, SpeculationPolicy, StepShape
from headrace.speculation.predicted import PredictedDrafter
from headrace.speculation.speculator import DraftRow, Drafts
from headrace.speculation.step_cost import StepCost

__all__ = ["NEAR", "DraftingModel", "ModelDrafts", "ModelSpeculator"]

_FIRST, _LATER = 0.8, 0.85
"""Priors of acceptance; hopeful, so that a model that may pay is tried."""
NEAR = 16
"""New tokens of a sequence that the model computes together with its drafts. If there are more, they come first."""
_ROUNDS, _FUNDS, _PROMPTS = 64, 16.0, ALLOWANCE / 2
_PATIENCE = 4
"""Steps without an admitted draft after which a sequence is no longer held."""
_RAREST = 16
"""The most steps between two reviews of the sequences that are not held."""


class ModelDrafts(NamedTuple):
    """What one round of a model brought."""

    tokens: list[list[int]]
    """By row; none while the model computes the row's earlier tokens."""
    seconds: float
    """The time that it took to make the drafts."""
    caught_up: list[float]
    """By row: the seconds that its earlier tokens took."""
    survival: list[list[float]] | None = None
    """By row: the model's own estimates of the probability that each token and all before it are accepted."""


class DraftingModel(Protocol):
    """The members of a model that the speculator uses."""

    cost: StepCost
    """The time of its steps."""
    block: int
    """A model that guesses several tokens in one step: the rows that each sequence takes in it, whatever number of its
    tokens is used. 0: a step for each token."""

    @property
    def overhead(self) -> float:
        """Seconds before the first step of a round."""

    def extend(self, sequence: str, tokens: Sequence[int]) -> None: ...

    def pause(self, sequence: str, keep: bool) -> None:
        """A sequence waits to go on: give back what the model holds for it. `keep`: what was computed of its tokens is
        right, and may serve others, and itself later."""

    def end(self, sequence: str, keep: bool) -> None:
        """Drop a sequence; `keep`: as for `pause`."""

    def room(self, sequence: str) -> int:
        """The most drafts that fit the model's own limits; 0 if it cannot draft any more."""

    def behind(self, sequence: str) -> int:
        """The number of its tokens that the model has not computed."""

    def draft(self, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        """Guess so many tokens for each of these sequences, or fewer."""


class _State:
    __slots__ = ("begun", "faded", "held", "length", "misses", "predicted", "predicted_only", "reserved")

    def __init__(self, length: int, predicted: bool, predicted_only: bool) -> None:
        self.length, self.predicted, self.predicted_only = length, predicted, predicted_only
        self.held = self.begun = False
        self.misses = self.faded = 0
        self.reserved = 0.0
        """Of the funds, until its earlier tokens are computed."""


class ModelSpeculator:
    """As `speculator.Speculator`, with drafts of a model. A sequence whose request has a prediction follows that while
    it agrees. `most`: the longest draft."""

    def __init__(
        self, model: DraftingModel, method: str = "draft", most: int = 8, policy: SpeculationPolicy | None = None
    ) -> None:
        self.policy = SpeculationPolicy() if policy is None else policy
        self._accounts = SpeculationAccounts(self.policy)
        self.counts: dict[str, AcceptanceCounts] = {}
        """By method."""
        self._model, self._method, self._most = model, method, most
        self._acceptance = PositionAcceptance(most, [_FIRST] + [_LATER] * (most - 1))
        self._calibration = Calibration(most)
        self._predictions = PredictedDrafter()
        self._states: dict[str, _State] = {}
        self._ended: list[str] = []
        """Sequences whose last round may not be settled."""
        self._funds = math.inf
        """Seconds; until the first step is settled, as much as is needed."""
        self._step = 0
        self._due = False
        """A sequence has begun since the latest review."""
        self._interval = self._wait = 1
        """Steps between two reviews, and until the next."""

    def begin(
        self,
        sequence: str,
        namespace: tuple[str, str],
        prompt: Sequence[int],
        predicted: Sequence[int] = (),
        predicted_only: bool = False,
    ) -> None:
        """Take up a sequence. `predicted_only`: all its drafts come from `predicted`."""
        if predicted:
            self._predictions.begin(sequence, namespace, prompt, predicted)
        self._acceptance.begin(sequence)
        self._states[sequence] = _State(len(prompt), bool(predicted), predicted_only)

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int = 0) -> None:
        """Add committed tokens of the output."""
        self._model.extend(sequence, tokens)
        state = self._states[sequence]
        state.length += len(tokens)
        if state.predicted:
            self._predictions.extend(sequence, tokens)
        if not state.begun:
            state.begun, state.faded = True, self._step
            self._due = True

    def pause(self, sequence: str, keep: bool) -> None:
        """A sequence waits to go on: until its next token it is in no review. `keep`: as for `DraftingModel.pause`."""
        state = self._states[sequence]
        self._model.pause(sequence, keep)
        self._release(state)
        state.begun = state.held = False

    def end(self, sequence: str, keep: bool) -> None:
        """Drop a sequence; `keep`: it may serve later ones."""
        state = self._states.pop(sequence)
        self._model.end(sequence, keep)
        if state.predicted:
            self._predictions.end(sequence, keep)
        self._funds += state.reserved
        self._ended.append(sequence)

    def held(self, sequence: str) -> bool:
        """Whether the next step of this sequence should wait for its last token, and verify drafts."""
        if self._due:
            self._review()
        return self._states[sequence].held

    def draft(self, shape: StepShape, rows: Sequence[DraftRow]) -> Drafts:
        """Drafts for the sequences of a step that are held. `shape`: the step without drafts."""
        self._step += 1
        names = [row.sequence for row in rows]
        guesses = [self._guess(row.sequence, min(row.most, self._most), reserve=True) for row in rows]
        contexts = [row.context for row in rows]
        choice = self._accounts.choose(shape, guesses, contexts, self._drafting_time(names, guesses))
        self._judge(names, choice.drafts)
        tokens, seconds, caught_up, estimates = self._make(names, guesses, choice.drafts)
        if estimates:
            # They are made: what is left to decide is how far to verify.
            limits = [min(row.most, len(each)) for row, each in zip(rows, tokens, strict=True)]
            survival = [guess.survival[:limit] for guess, limit in zip(guesses, limits, strict=True)]
            for at, each in estimates.items():
                survival[at] = self._calibration.corrected(each[: limits[at]])
            again = self.policy.choose(shape, survival, contexts, again=True)
            choice = replace(again, seconds=again.seconds + seconds)
            tokens = [each[:count] for each, count in zip(tokens, choice.drafts, strict=True)]
            self._forgo([names[at] for at in estimates if not tokens[at]])
        drafts = [len(each) for each in tokens]
        context = sum(count * each for count, each in zip(drafts, contexts, strict=True))
        choice = replace(choice, drafts=drafts, context=context)
        if any(drafts):
            self._interval = 1
        self._wait = min(self._wait, self._interval) - 1
        if self._wait < 1:
            if self._review():
                # What looks worth it there may not be so in a step: only drafts that were made bring the next one soon.
                self._interval = min(2 * self._interval, _RAREST)
            self._wait = self._interval
        return Drafts(tokens, [guess.method for guess in guesses], choice, names, seconds, caught_up, estimates)

    def rest(self) -> int:
        """For how many steps no call is needed: until the next review."""
        if any(state.held for state in self._states.values()):
            return 0
        return max(0, self._wait - 1)

    def passed(self, steps: int, seconds: float) -> None:
        """So many steps, of so much time, went by without a call."""
        self._step += steps
        self._wait -= steps
        self._funds += _PROMPTS * seconds
        self._accounts.passed(seconds)

    def settle(self, drafts: Drafts, accepted: Sequence[int | None], emitted: int, seconds: float) -> None:
        """Learn from a step, as `Speculator.settle`; `seconds` are without those of the model that drafts."""
        rounds = zip(drafts.sequences, drafts.tokens, drafts.methods, accepted, strict=True)
        for at, (name, tokens, method, count) in enumerate(rounds):
            if count is None:
                continue
            if tokens:
                self.counts.setdefault(method, AcceptanceCounts()).add(len(tokens), count)
            if method == self._method:
                # A draft that the device has no token for is as good as a wrong one.
                self._acceptance.verified(name, drafts.choice.drafts[at], count)
                if tokens:
                    self._calibration.verified(drafts.estimates.get(at, ()), len(tokens), count)
        gained = self._accounts.settle(drafts.choice, emitted, seconds, drafts.seconds, drafts.typical)
        # Two results that are read at once may leave no time for one of them.
        step = max(seconds, drafts.choice.plain_seconds)
        self._funds = min(self._funds + gained + _PROMPTS * seconds, _FUNDS * step)
        for name in self._ended:
            self._acceptance.end(name)
        self._ended.clear()

    def _guess(self, sequence: str, most: int, reserve: bool = False) -> Guess:
        """The tokens of a prediction; for drafts of the model the expected acceptance alone. `reserve`: what its
        earlier tokens need of the funds."""
        state = self._states[sequence]
        if state.predicted and most > 0:
            found = self._predictions.guess(sequence, most)
            if found.tokens:
                return found
        most = 0 if state.predicted_only else min(most, self._model.room(sequence))
        if most < 1 or not self._funded(sequence, state, reserve):
            return NO_GUESS
        if self._step > state.faded:
            self._acceptance.skipped(sequence, self._step - state.faded)
            state.faded = self._step
        return Guess([], self._acceptance.survival(sequence, most), self._method)

    def _judge(self, names: Sequence[str], counts: Sequence[int]) -> None:
        """Let go of sequences whose drafts have not been worth it for some steps."""
        for name, count in zip(names, counts, strict=True):
            state = self._states[name]
            if count:
                # This step is no skipped one.
                state.misses, state.faded = 0, self._step + 1
                continue
            self._release(state)
            state.misses += 1
            state.held = state.held and state.misses < _PATIENCE

    def _forgo(self, names: Sequence[str]) -> None:
        """Blocks that were made and turned out not to be worth a verification: the next ones are less welcome."""
        for name in names:
            self._acceptance.verified(name, 1, 0)
            self._calibration.skipped()

    def _make(
        self, names: Sequence[str], guesses: Sequence[Guess], counts: Sequence[int]
    ) -> tuple[list[list[int]], float, float, dict[int, list[float]]]:
        """The tokens by row, the seconds that the step has to pay for them, those that earlier tokens took, and the
        model's own estimates for rows for which it has some; their tokens are all that it has made."""
        tokens = [guess.tokens[:count] for guess, count in zip(guesses, counts, strict=True)]
        rows = [at for at, count in enumerate(counts) if count and not guesses[at].tokens]
        if not rows:
            return tokens, 0.0, 0.0, {}
        made = self._model.draft([(names[at], counts[at]) for at in rows])
        for at, drafts, caught_up in zip(rows, made.tokens, made.caught_up, strict=True):
            self._funds -= caught_up
            if self._model.behind(names[at]) <= NEAR:
                self._release(self._states[names[at]])
            tokens[at] = drafts if made.survival else drafts[: counts[at]]
        return tokens, made.seconds, sum(made.caught_up), dict(zip(rows, made.survival or [], strict=False))

    def _funded(self, sequence: str, state: _State, reserve: bool) -> bool:
        """Whether the model has computed a sequence's earlier tokens, or may do so."""
        if state.reserved or self._model.behind(sequence) <= NEAR:
            return True
        if self._funds < 0:
            return False
        if reserve:
            state.reserved = self._catch_up(sequence)
            self._funds -= state.reserved
        return True

    def _release(self, state: _State) -> None:
        self._funds += state.reserved
        state.reserved = 0.0

    def _review(self) -> bool:
        """Find the sequences for which it is worth to wait, all of them together. False: all that there are, are held
        already."""
        self._due = False
        names = [name for name, state in self._states.items() if state.begun]
        if all(self._states[name].held for name in names):
            return not names
        guesses = [self._guess(name, self._most) for name in names]
        context = sum(self._states[name].length for name in names)
        shape = StepShape(len(names), len(names), context)
        counts = self._accounts.wanted(shape, guesses, self._drafting_time(names, guesses))
        for name, count in zip(names, counts, strict=True):
            state = self._states[name]
            if count and not state.held:
                state.held, state.misses = True, 0
        return True

    def _drafting_time(self, names: Sequence[str], guesses: Sequence[Guess]) -> DraftingTime:
        """The time of a round, by the number of drafts that are admitted. At each depth of the drafts the model makes
        one step for all rows that reach it."""
        model = self._model
        if model.block:
            return self._block_time(names, guesses)

        def times(owners: Sequence[int]) -> list[float]:
            steps, slope = model.cost.table(len(names) + 1), model.cost.slope
            depths, at_depth = [0] * len(names), list[int]()
            found, total = list[float](), 0.0
            for owner in owners:
                if not guesses[owner].tokens:
                    depth, state = depths[owner], self._states[names[owner]]
                    depths[owner] += 1
                    if not at_depth:
                        total += model.overhead
                    if depth == len(at_depth):
                        at_depth.append(0)
                    rows = at_depth[depth] = at_depth[depth] + 1
                    total += steps[rows] - (steps[rows - 1] if rows > 1 else 0.0) + slope * state.length
                    if depth == 0:
                        total += self._catch_up(names[owner]) / _ROUNDS
                found.append(total)
            return found

        return times

    def _block_time(self, names: Sequence[str], guesses: Sequence[Guess]) -> DraftingTime:
        """The same for a model that guesses blocks: a sequence's first draft takes the rows of its block."""
        model = self._model

        def times(owners: Sequence[int]) -> list[float]:
            steps, slope, rows = model.cost.table(len(names) * model.block + 1), model.cost.slope, 0
            seen, found, total = set[int](), list[float](), 0.0
            for owner in owners:
                if not guesses[owner].tokens and owner not in seen:
                    seen.add(owner)
                    rows += model.block
                    before = steps[rows - model.block] if rows > model.block else -model.overhead
                    total += steps[rows] - before + slope * model.block * self._states[names[owner]].length
                found.append(total)
            return found

        return times

    def _catch_up(self, sequence: str) -> float:
        """Seconds for a sequence's earlier tokens."""
        behind = self._model.behind(sequence)
        return self._model.cost.seconds(behind) if behind > NEAR else 0.0
