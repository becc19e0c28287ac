"""The state of one request in the core."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.core.bad_words import without_bad_words
from headrace.core.constraints import Constraints
from headrace.core.matcher import Matcher
from headrace.core.pooling import Pool
from headrace.core.radix import BlockKey, Namespace, RadixNode
from headrace.types import FinishReason, Request, SamplingParams, TokenLogprobs

__all__ = ["AGEING", "Ending", "Rank", "Sequence", "stop_ids"]

Rank = tuple[float, tuple[int, ...], int]

AGEING = 10.0
"""Seconds of waiting that count as one level of priority. All sequences age equally, so the order of two never
changes."""


def stop_ids(request: Request) -> frozenset[int]:
    """Tokens that end a request."""
    return frozenset(request.params.stop_token_ids + (() if request.params.ignore_eos else request.eos_token_ids))


class Ending(NamedTuple):
    """How a sequence ends."""

    reason: FinishReason
    stop_token: int | None = None
    error: str | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence that waits (slot -1), runs (with a slot, blocks and a node of the tree), or has ended.

    Its block table holds `blocks` blocks: the first `shared` belong to the tree, on the path to `node`, the others only
    to this sequence. It only writes to its own blocks.
    """

    request: Request
    order: int
    """Arrival number; breaks ties."""
    tokens: list[int]
    """Prompt, committed output, and the tokens that a grammar forces to follow it."""
    prompt_len: int
    end: int
    """Tokens at which max_tokens is reached."""
    stops: frozenset[int]
    rank: Rank
    """Lower runs first and is preempted last."""
    namespace: Namespace
    constraints: Constraints | None
    """Bias, bans and mask of its rows."""
    penalised: bool
    matcher: Matcher | None = None
    """The grammar that its output follows, advanced by every token of the output."""
    forces: bool = False
    """Tokens that the grammar forces are appended without sampling them."""
    drafted: bool = False
    """Its next tokens may be guessed and verified."""
    told: int = 0
    """The number of tokens that the source of drafts knows, with the prompt."""
    placed: bool = False
    """The device makes its drafts and places them behind its last token, which no step has to wait for."""
    held: bool = False
    """Its next step verifies drafts; unless the device makes them, it waits for the last token."""
    emitted: int = 0
    """The number of tokens that the caller has, with the prompt."""
    ending: Ending | None = None
    """The end that follows the last token; set when that token is known."""
    keys: list[BlockKey] = field(default_factory=list)
    """Tokens of each full block, computed when first needed."""
    names: list[bytes] = field(default_factory=list)
    """Names of the first full blocks, as far as they were needed."""

    slot: int = -1
    node: RadixNode | None = None
    shared: int = 0
    blocks: int = 0
    filled: int = 0
    """The number of positions whose keys and values committed steps have stored."""
    uncertain: int = 0
    """Drafts in launched steps, each of which adds a token or not."""
    wrong: int = 0
    """Drafts that the device has placed and that were wrong, or whose result does not count."""
    epoch: int = 0
    """Increases when results in flight become invalid."""
    hold: int = -1
    """The step that must be committed before the sequence may run: after a preemption the last launched one, or one
    that brings scores which it needs."""

    cached: int = -1
    """Prompt tokens found in the cache when first scheduled; -1 before that."""
    first_scheduled: float = 0.0
    resumed: bool = False
    """It has taken over the slot of another sequence, and no step has computed a token of it yet."""
    unknown: int = -1
    """Index of the token that is still on the device: the last one of the sequence that this one goes on with."""
    succeeded: bool = False
    """Another sequence has taken over the slot before this one's end was known."""
    closed_at: int = -1
    """Of an open sequence: the last step that was launched before its end."""
    scored: int = 0
    """The number of prompt positions whose logprobs were requested from the device."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One for each token of the prompt, None until it is known."""
    stored: int = 0
    """The number of prompt tokens whose scores, if known, are beside the blocks that it uses."""
    expected: int = 0
    """The number of blocks whose scores launched steps bring."""
    pool: Pool | None = None
    """The pooled hidden states, if they are the answer."""
    rivals: list[float] | None = None
    """The logprobs of the request's rivals."""
    passed: int = 0
    """The number of times that another sequence has overtaken this one at the front of the queue."""
    fetching: bool = False
    """Blocks of its prefix are on their way; it waits for them."""
    estimate: int = 0
    estimated_at: int = -1
    """`estimate` is the number of cached blocks when this step was scheduled, for the order of the queue."""

    @staticmethod
    def of(request: Request, order: int, vocab_size: int, matcher: Matcher | None = None) -> Sequence:
        params = request.params
        matcher = without_bad_words(request.bad_words, vocab_size, matcher)
        banned = tuple(word[0] for word in request.bad_words if len(word) == 1)
        stops = stop_ids(request)
        length = len(request.prompt)
        unscored = max(0, params.prompt_logprobs_start - 1)
        return Sequence(
            request=request,
            order=order,
            tokens=list(request.prompt),
            prompt_len=length,
            end=length + (params.max_tokens or 0),
            stops=stops,
            rank=(request.arrival + AGEING * request.priority, request.turn, order),
            namespace=Namespace(request.adapter, request.salt),
            constraints=Constraints.of(params, stops, length, vocab_size, matcher, request.eos_token_ids, banned),
            penalised=params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0,
            scored=unscored,
            prompt_logprobs=None if params.prompt_logprobs is None else [None] * length,
            pool=None if request.pooling is None else Pool(request.pooling, length),
            matcher=matcher,
            # A bias or a list of tokens may exclude the forced ones: then each token is sampled under the mask.
            forces=matcher is not None and not params.logit_bias and not banned and params.allowed_token_ids is None,
            emitted=length,
            told=length,
        )

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def to_compute(self) -> int:
        """The number of known tokens that must be computed. If nothing follows the last one, only logprobs need what is
        before it."""
        if self.ending is None:
            return len(self.tokens)
        return 0 if self.params.logprobs is None else len(self.tokens) - 1

    @property
    def certain(self) -> int:
        """The number of its first tokens that are known."""
        return len(self.tokens) if self.unknown < 0 else self.unknown

    @property
    def unscored(self) -> int:
        """The first position whose logits are needed for the logprob of its next token, which is known."""
        return self.scored if self._scores_prompt else self.emitted - 1

    @property
    def _scores_prompt(self) -> bool:
        return self.prompt_logprobs is not None and self.scored < self.prompt_len - 1

    @property
    def wants_scores(self) -> bool:
        """Scores of its prompt that were computed before would save rows. Those of rivals are kept nowhere."""
        return self._scores_prompt and self.unknown < 0 and (not self.request.rivals or self.rivals is not None)

    @property
    def to_score(self) -> int:
        """The end of the positions whose logits are needed for the logprobs of known tokens. Each scores the token
        after it."""
        if self.params.logprobs is not None and len(self.tokens) > self.emitted:
            return len(self.tokens) - 1
        return 0 if self.prompt_logprobs is None else self.prompt_len - 1

    def rivals_at(self, score_from: int, end: int) -> tuple[int, ...]:
        """The rivals that a chunk up to `end` scores, if it begins to score at `score_from`."""
        at = self.params.prompt_logprobs_start - 1
        return self.request.rivals if self.rivals is None and score_from == at < end else ()

    @property
    def reusable(self) -> int:
        """The number of tokens that may come from the cache if it has no scores: at least one must be computed, and all
        whose logits are needed."""
        if self.pool is not None:
            return self.pool.reusable
        return self.unscored if self.unscored < self.to_score else len(self.tokens) - 1

    def forget_plans(self) -> None:
        """The results of all launched steps have been lost: what is not committed is computed again."""
        self.epoch += 1
        self.hold = -1
        if self.prompt_logprobs is not None:
            known = range(max(1, self.params.prompt_logprobs_start), self.prompt_len)
            self.scored = next((at for at in known if self.prompt_logprobs[at] is None), self.prompt_len) - 1
        if self.pool is not None:
            self.pool.forget_plans()

    def block_keys(self, block_size: int) -> list[BlockKey]:
        keys, tokens = self.keys, self.tokens
        for at in range(len(keys) * block_size, self.certain - block_size + 1, block_size):
            keys.append(tuple(tokens[at : at + block_size]))
        return keys

    def array(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Known tokens as an array for the device."""
        return np.array(self.tokens[start:stop], np.int32)
