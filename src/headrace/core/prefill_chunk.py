"""The part of a step that computes known tokens of one sequence, and drafts behind them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.core.constraints import Constraints
from headrace.core.sequence import Sequence
from headrace.types import StepResult

__all__ = ["PrefillChunk"]

Ints = npt.NDArray[np.int32]


@dataclass(slots=True)
class PrefillChunk:
    """Known tokens start:end of one sequence."""

    seq: Sequence
    epoch: int
    start: int
    end: int
    score_from: int
    score_to: int
    """Positions whose next token's logprob was requested."""
    samples: bool
    """The chunk reaches the last known token, and another token must be sampled."""
    row: int = 0
    """Its first row. Rows that score come first, then those that sample."""
    verifies: bool = False
    """The sequence was held so that its drafts can be verified; there may be none."""
    drafts: list[int] = field(default_factory=list)
    """Tokens that may follow the known ones. They are computed with them, and a token is sampled after each."""
    draft_states: list[tuple[Constraints, int]] = field(default_factory=list)
    """For each row that samples in a sequence with a grammar: its constraints, and the token that must come."""
    accepted: int | None = None
    """The number of drafts that were right; None before the commit."""
    length: int | None = None
    """None: all is given. Otherwise the device places the chunk's tokens: its positions here are upper bounds, its
    drafts stand for those of the device, and this is the number of known tokens, or ON_DEVICE."""
    planned: int = 0
    """The number of drafts for which the device had room."""
    token: int = 0
    """Its first token in the plan."""
    rivals: tuple[int, ...] = ()
    """Tokens that are scored in the place of the first one that this chunk scores, in rows behind that one's."""

    @property
    def stop(self) -> int:
        """The end of the positions that it computes."""
        return self.end + len(self.drafts)

    @property
    def pooled(self) -> bool:
        """Whether the hidden states of its tokens are needed."""
        return self.seq.pool is not None and self.seq.pool.needs(self.end)

    def pool(self, result: StepResult) -> bool:
        """Pool the hidden states of a result, if they are needed. False: they are not finite."""
        if not self.pooled:
            return True
        assert self.seq.pool is not None
        assert result.hidden is not None
        return self.seq.pool.add(self.start, result.hidden[self.token : self.token + self.end - self.start])

    @property
    def names(self) -> list[tuple[int, ...]]:
        """For each row the tokens whose logprobs it asks for: none in the place of a prompt's token."""
        own = self.seq.params.logprob_token_ids
        output = max(0, self.score_to - max(self.score_from, self.seq.prompt_len - 1))
        output += self.samples * (1 + len(self.drafts))
        return [()] * (self.num_rows - output) + [own] * output

    @property
    def num_rows(self) -> int:
        return self.score_to - self.score_from + len(self.rivals) + self.samples * (1 + len(self.drafts))

    def scored(self) -> tuple[Ints, Ints]:
        """Of each row that scores a known token: the position, and the token after it."""
        places = np.arange(self.score_from, self.score_to, dtype=np.int32)
        targets = self.seq.array(self.score_from + 1, self.score_to + 1)
        if self.rivals:
            places = np.insert(places, 1, [self.score_from] * len(self.rivals))
            targets = np.insert(targets, 1, self.rivals)
        return places, targets
