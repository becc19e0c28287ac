"""Drafting for the sequences of an engine: a drafter, the policy, and who is worth waiting for.

A step can only verify drafts of a sequence whose last token is known when the step is planned. Engines plan ahead, so
a sequence with drafts must be *held* until its last step is committed, which costs time; unless the device makes the
drafts, when that is needless and the drafter here only tells how many pay. So a sequence is held only while its drafts
are admitted. While it is not, each commit still tells whether the guess before it was right, and when
guesses have become good enough, the sequence is held again. A sequence whose guesses are not worth it is asked ever
more rarely, down to every sixth token: a guess takes some microseconds, and a text that begins to repeat itself gains
from its first drafts on. Until it is asked, the drafter does not get the new tokens either: with many sequences that do
not draft, it would take more of the host's time to read each token by itself than all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from headrace.speculation.acceptance import AcceptanceCounts
from headrace.speculation.accounts import SpeculationAccounts
from headrace.speculation.calibration import Calibration
from headrace.speculation.drafter import NO_GUESS, Guess, HostDrafter
from headrace.speculation.policy import SpeculationPolicy, StepChoice, StepShape
from headrace.speculation.predicted import PredictedDrafter

__all__ = ["MOST_DRAFTS", "DraftRow", "Drafts", "Speculator"]

MOST_DRAFTS = 10
"""The longest draft, unless the caller chooses another. With it the step of a sequence has eleven tokens, for
which a processor with AVX-512 reads a panel of integer weights once; more hardly give more."""
_PATIENCE = 4
"""Steps without an admitted draft after which a sequence is no longer held."""
_RAREST = 6
"""The most tokens between two questions to the drafter about a sequence."""


class DraftRow(NamedTuple):
    """A sequence of a step that may verify drafts."""

    sequence: str
    most: int
    """The most drafts that fit its limits."""
    context: int
    """Tokens that its first draft attends to."""
    ahead: int | None = None
    """None: all its tokens are committed. Otherwise the device makes the drafts, and launched steps may add up to so
    many tokens before them. So they are judged by the guess behind the committed ones, corrected by how many of such
    drafts were right."""


class Drafts(NamedTuple):
    """Drafts for a step, by row."""

    tokens: list[list[int]]
    methods: list[str]
    choice: StepChoice
    sequences: Sequence[str] = ()
    seconds: float = 0.0
    """The time that it took to make them, for drafts of a model."""
    caught_up: float = 0.0
    """The time that earlier tokens of the sequences took before that."""
    estimates: Mapping[int, Sequence[float]] = MappingProxyType({})
    """By row: a model's own estimates of the survival of its tokens, if it makes any, or those for drafts behind tokens
    in flight, before they are corrected."""

    disturbed: bool = False
    """Other work made the step longer."""

    @property
    def typical(self) -> bool:
        """The step's time is that of its number of tokens: nothing made it longer, and it had all tokens that were
        chosen. Without a draft for each of the last rows, the device may have ended it before these."""
        return not self.disturbed and (not self.tokens or len(self.tokens[-1]) == self.choice.drafts[-1])


class _State:
    __slots__ = ("drafter", "held", "interval", "misses", "unread", "wait")

    def __init__(self, drafter: HostDrafter) -> None:
        self.drafter = drafter
        self.held = False
        self.misses = 0
        self.interval = 1
        """Tokens between two questions to the drafter, while not held."""
        self.wait = 0
        self.unread: list[int] = []
        """Committed tokens that the drafter does not have; none while held."""


class Speculator:
    """One thread calls everything. `draft` is called for every step when it is planned, also without a sequence that
    may verify, because plain steps tell what speculation is compared with. When the step is committed, `settle` takes
    what `draft` returned, and `extend` the tokens of each sequence; other steps may be in flight meanwhile. `most`: the
    longest draft."""

    def __init__(self, drafter: HostDrafter, most: int = MOST_DRAFTS, policy: SpeculationPolicy | None = None) -> None:
        self.policy = SpeculationPolicy() if policy is None else policy
        self._accounts = SpeculationAccounts(self.policy)
        self.counts: dict[str, AcceptanceCounts] = {}
        """By method."""
        self._drafter, self._most = drafter, most
        self._predicted = PredictedDrafter()
        """For sequences whose drafts may come from their prediction alone."""
        self._ahead = Calibration(most)
        """For drafts that the device makes behind tokens in flight."""
        self._states: dict[str, _State] = {}
        self._shape = StepShape(1, 1)

    def begin(
        self,
        sequence: str,
        namespace: tuple[str, str],
        prompt: Sequence[int],
        predicted: Sequence[int] = (),
        predicted_only: bool = False,
    ) -> None:
        """Take up a sequence. `predicted_only`: all its drafts come from `predicted`."""
        drafter = self._predicted if predicted_only else self._drafter
        drafter.begin(sequence, namespace, prompt, predicted)
        self._states[sequence] = _State(drafter)

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int = 0) -> None:
        """Add committed tokens of the output; `in_flight`: tokens that launched steps will add to them."""
        state = self._states[sequence]
        if state.held:
            state.drafter.extend(sequence, tokens)
            return
        state.unread += tokens
        state.wait -= len(tokens)
        if state.wait < 1:
            self._read(sequence, state)
            state.held = self._promising(sequence, in_flight)
            state.misses = 0
            state.interval = min(2 * state.interval, _RAREST)
            state.wait = state.interval

    def pause(self, sequence: str, keep: bool) -> None:
        """A sequence waits to go on: the drafter will be asked at its next token, and not before. `keep`: makes no
        difference to a drafter that knows tokens alone."""
        state = self._states[sequence]
        state.held, state.interval, state.wait = False, _RAREST, 0

    def end(self, sequence: str, keep: bool) -> None:
        """Drop a sequence; `keep`: its output may serve later ones."""
        state = self._states.pop(sequence)
        if keep:
            self._read(sequence, state)
        state.drafter.end(sequence, keep)

    def held(self, sequence: str) -> bool:
        """Whether the next step of this sequence should wait for its last token, and verify drafts."""
        return self._states[sequence].held

    def draft(self, shape: StepShape, rows: Sequence[DraftRow]) -> Drafts:
        """Drafts for the sequences of a step that are held; it may include others. `shape`: the step without drafts."""
        self._shape = shape
        guesses = [self._guess(row) for row in rows]
        estimates = {at: guesses[at].survival for at, row in enumerate(rows) if row.ahead}
        for at, survival in estimates.items():
            guesses[at] = guesses[at]._replace(survival=self._ahead.corrected(survival))
        contexts = [row.context for row in rows]
        choice = self._accounts.choose(shape, guesses, contexts)
        for row, count in zip(rows, choice.drafts, strict=True):
            state = self._states[row.sequence]
            if count:
                state.misses, state.interval = 0, 1
            else:
                state.misses += 1
                if row.ahead:
                    self._ahead.skipped()
                state.held = state.held and state.misses < _PATIENCE
        tokens = [guess.tokens[:count] for guess, count in zip(guesses, choice.drafts, strict=True)]
        return Drafts(tokens, [guess.method for guess in guesses], choice, estimates=estimates)

    def rest(self) -> int:
        """For how many steps no call is needed: until the drafter would be asked about a sequence."""
        if any(state.held for state in self._states.values()):
            return 0
        return min((state.interval for state in self._states.values()), default=_RAREST) - 1

    def passed(self, steps: int, seconds: float) -> None:
        """So many steps, of so much time, went by without a call."""
        self._accounts.passed(seconds)

    def settle(self, drafts: Drafts, accepted: Sequence[int | None], emitted: int, seconds: float) -> None:
        """Learn from a step. `accepted`: by row, how many drafts were right, None if the row is void (its sequence has
        ended); `emitted`: the tokens of all sequences together; `seconds`: the device's time."""
        for tokens, method, count in zip(drafts.tokens, drafts.methods, accepted, strict=True):
            if tokens and count is not None:
                self.counts.setdefault(method, AcceptanceCounts()).add(len(tokens), count)
        for at, survival in drafts.estimates.items():
            if (right := accepted[at]) is not None:
                self._ahead.verified(survival, drafts.choice.drafts[at], right)
        self._accounts.settle(drafts.choice, emitted, seconds, typical=drafts.typical)

    def _guess(self, row: DraftRow) -> Guess:
        most = min(row.most, self._most)
        if most < 1:
            return NO_GUESS
        state = self._states[row.sequence]
        self._read(row.sequence, state)
        return state.drafter.guess(row.sequence, most)

    @staticmethod
    def _read(sequence: str, state: _State) -> None:
        """Give the drafter the tokens that it does not have."""
        if state.unread:
            state.drafter.extend(sequence, state.unread)
            state.unread = []

    def _promising(self, sequence: str, in_flight: int) -> bool:
        """Whether drafts after the tokens in flight would be verified, as far as they can be guessed before those are
        known."""
        guess = self._states[sequence].drafter.guess(sequence, in_flight + self._most)
        return self._accounts.worth(self._shape, guess, in_flight)
