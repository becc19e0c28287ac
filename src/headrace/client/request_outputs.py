"""Converts token ids to the caller's outputs: text, logprobs, stops and usage. Runs in the client's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.client.api import GenerateRequest, LogprobEntry, Output, PromptScores, Usage
from headrace.client.stops import StopFinder, StopMatch
from headrace.types import Delta, FinishReason, TokenLogprobs

__all__ = ["ChoiceBuilder", "RequestOutputs", "TextStream", "TextTokenizer"]

_FLOOR = -9999.0
"""The logprob that is reported for probability zero: JSON has no infinity."""


_TAIL = 8
"""Prompt tokens that the detokenizer reads: they decide whether the text begins with a space."""


class TextStream(Protocol):
    """Incremental detokenization: complete characters only."""

    @property
    def unfinished(self) -> bool:
        """True while an incomplete character waits."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str:
        """The text of an incomplete character."""


class TextTokenizer(Protocol):
    """The members of a tokenizer that the client uses."""

    @property
    def eos_token_ids(self) -> Sequence[int]:
        """All ids that end a sequence; the checkpoint's settings may lack some of them."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def token_text(self, token_id: int) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Sequence[int] = ()) -> TextStream: ...


class ChoiceBuilder:
    """Builds the outputs of one choice from the deltas of its sequence."""

    def __init__(self, index: int, request: GenerateRequest, tokenizer: TextTokenizer) -> None:
        params = request.params
        self.finished = False
        self.generated = 0
        """Generated tokens, including the one that completed a stop."""
        self.accepted = self.rejected = 0
        """Drafts."""
        self.completing: frozenset[int] = frozenset()
        """Tokens at which the engine ends the sequence because their text completes a stop string."""
        self._index = index
        self._request = request
        self._params = params
        self._tokenizer = tokenizer
        # An echoed prompt goes through the stream itself.
        tail = () if request.echo else request.prompt[-_TAIL:]
        self._stream = tokenizer.stream(params.skip_special_tokens, tail)
        self._stops = StopFinder(params.stop, params.include_stop_str_in_output)
        self._started = False
        self._alternatives = params.alternatives

    def push(self, delta: Delta) -> Output:
        """The output of a delta. `finished` is set if it is the last one; after that `push` must not be called.

        A stop string ends the choice before the engine does: the delta then has no finish_reason.
        """
        out = Output(self._index, logprobs=None if self._params.logprobs is None else [])
        if not self._started and delta.finish_reason != "error":
            self._start(out, delta)
        self.accepted += delta.accepted_drafts
        self.rejected += delta.rejected_drafts
        tokens = delta.token_ids
        for at, token in enumerate(tokens):
            self.generated += 1
            out.token_ids.append(token)
            if out.logprobs is not None and self._alternatives is not None and delta.logprobs is not None:
                out.logprobs.append(self._entry(delta.logprobs[at], self._alternatives))
            if self._push_text(out, self._text(token, token == delta.stop_token and at + 1 == len(tokens))):
                return out
        if delta.finish_reason is not None:
            self._end(out, delta.finish_reason)
            out.error, out.request_fault = delta.error, delta.request_fault
            out.embedding = delta.embedding
            if out.finish_reason == "stop" and out.stop_reason is None:
                out.stop_reason = delta.stop_token
        return out

    def end(self, reason: FinishReason, error: str | None = None) -> Output:
        """The last output of a choice that the client ends."""
        out = Output(self._index, logprobs=None if self._params.logprobs is None else [], error=error)
        self._end(out, reason)
        return out

    def echo_only(self) -> Output:
        """The only output of a choice that generates nothing."""
        return self.push(Delta("", finish_reason="length"))

    def _start(self, out: Output, delta: Delta) -> None:
        self._started = True
        count = self._params.prompt_logprobs
        if self._request.rivals is not None and delta.prompt_logprobs is not None:
            scored = delta.prompt_logprobs[self._params.prompt_logprobs_start :]
            own = [0.0 if entry is None else _finite(entry.logprob) for entry in scored]
            out.scores = PromptScores(own, [_finite(value) for value in delta.rivals or ()])
        elif count is not None and delta.prompt_logprobs is not None:
            prompt = self._request.prompt
            out.prompt_logprobs = [
                self._unscored(token) if entry is None else self._entry(entry, count)
                for token, entry in zip(prompt, delta.prompt_logprobs, strict=True)
            ]
        if self._request.echo:
            out.token_ids += self._request.prompt
            out.text += "".join(map(self._stream.push, self._request.prompt))
            if out.prompt_logprobs is not None:
                out.logprobs = [*out.prompt_logprobs, *(out.logprobs or [])]

    def _text(self, token: int, ends: bool) -> str:
        """The text of a token. A token that ended the sequence has none, unless the caller includes stops in the
        output."""
        hidden = ends and token not in self.completing and not self._params.include_stop_str_in_output
        return "" if hidden else self._stream.push(token)

    def _push_text(self, out: Output, piece: str) -> bool:
        """Add text. True if a stop string ended the choice. Stops are ignored before min_tokens."""
        if not piece:
            return False
        if self.generated <= self._params.min_tokens:
            out.text += piece
            return False
        found = self._stops.push(piece)
        if isinstance(found, str):
            out.text += found
            return False
        self._stop(out, found)
        return True

    def _stop(self, out: Output, match: StopMatch) -> None:
        out.text += match.text
        out.finish_reason, out.stop_reason = "stop", match.stop
        self.finished = True

    def _end(self, out: Output, reason: FinishReason) -> None:
        """End the choice with the text that was held back, which may still complete a stop. Where another engine goes
        on, the text may go on differently: that engine shows it."""
        self.finished = True
        if self._request.gives_blocks and reason == "length":
            out.finish_reason = reason
            return
        rest = self._stream.flush()
        if rest and reason not in ("error", "abort") and self._push_text(out, rest):
            return
        out.text += self._stops.flush()
        out.finish_reason = reason

    def _entry(self, found: TokenLogprobs, count: int) -> LogprobEntry:
        text, raw = self._tokenizer.token_text, self._tokenizer.token_bytes
        top = tuple((token, text(token), raw(token), _finite(value)) for token, value in found.top[:count])
        token = found.token_id
        return LogprobEntry(token, text(token), raw(token), _finite(found.logprob), found.rank, top)

    def _unscored(self, token: int) -> LogprobEntry:
        return LogprobEntry(token, self._tokenizer.token_text(token), self._tokenizer.token_bytes(token), None, 0)


def _finite(value: float) -> float:
    # A comparison with NaN is false, so NaN becomes the floor, too.
    return value if value > _FLOOR else _FLOOR


class RequestOutputs:
    """The outputs of a request that its caller has not read yet: at most one per choice, because new ones are merged.

    A slow caller therefore only delays its own request, and memory is limited to what the request generated.
    """

    def __init__(self, request: GenerateRequest, tokenizer: TextTokenizer, arrival: float) -> None:
        self.request = request
        self.choices: Sequence[ChoiceBuilder] = [ChoiceBuilder(i, request, tokenizer) for i in range(request.params.n)]
        self._arrival = arrival
        self._cached: int | None = None
        self._waiting: dict[int, Output] = {}

    @property
    def finished(self) -> bool:
        return all(choice.finished for choice in self.choices)

    @property
    def done(self) -> bool:
        """True if all choices have finished and the caller has read all outputs."""
        return self.finished and not self._waiting

    def push(self, index: int, delta: Delta) -> bool:
        """Add a delta. True if a stop string was found, which the client must report to the engine."""
        choice = self.choices[index]
        if choice.finished:
            return False
        out = choice.push(delta)
        if delta.first_scheduled is not None:
            out.queue_time = max(0.0, delta.first_scheduled - self._arrival)
            # The first scheduled choice computes the prompt; the others reuse it from the cache.
            self._cached = delta.cached_tokens if self._cached is None else min(self._cached, delta.cached_tokens)
        self._add(out)
        return choice.finished and delta.finish_reason is None

    def end(self, reason: FinishReason, error: str | None = None) -> list[int]:
        """End all choices that still run. Returns their indices."""
        open_ones = [i for i, choice in enumerate(self.choices) if not choice.finished]
        for index in open_ones:
            self._add(self.choices[index].end(reason, error))
        return open_ones

    def echo_only(self) -> None:
        """Answer a request that generates nothing, without the engine."""
        for choice in self.choices:
            self._add(choice.echo_only())

    def take(self) -> list[Output]:
        """The outputs that are ready, with the running totals; empty if there are none."""
        taken, self._waiting = list(self._waiting.values()), {}
        usage = self._usage() if taken else None
        for out in taken:
            out.usage = usage
        return taken

    def _usage(self) -> Usage:
        generated = sum(choice.generated for choice in self.choices)
        accepted = sum(choice.accepted for choice in self.choices)
        rejected = sum(choice.rejected for choice in self.choices)
        return Usage(len(self.request.prompt), generated, self._cached or 0, accepted, rejected)

    def _add(self, out: Output) -> None:
        earlier = self._waiting.get(out.index)
        if earlier is not None:
            _merge(earlier, out)
        elif _has_content(out):
            self._waiting[out.index] = out


def _has_content(out: Output) -> bool:
    return bool(out.text or out.token_ids or out.finish_reason or out.queue_time is not None)


def _merge(into: Output, out: Output) -> None:
    into.text += out.text
    into.token_ids += out.token_ids
    if out.logprobs is not None:
        into.logprobs = out.logprobs if into.logprobs is None else into.logprobs + out.logprobs
    into.finish_reason, into.stop_reason, into.error = out.finish_reason, out.stop_reason, out.error
    into.request_fault = out.request_fault
    into.embedding = out.embedding or into.embedding
    if into.queue_time is None:
        into.queue_time = out.queue_time
    if into.prompt_logprobs is None:
        into.prompt_logprobs = out.prompt_logprobs
    if into.scores is None:
        into.scores = out.scores
