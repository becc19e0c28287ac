"""From token ids to what a caller reads: text, logprobs, stops and usage, in the client's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.client.api import GenerateRequest, LogprobEntry, Output, Usage
from headrace.client.stops import Match, StopFinder
from headrace.types import Delta, FinishReason, TokenLogprobs

__all__ = ["Choice", "RequestOutputs", "TextStream", "TextTokenizer"]

_FLOOR = -9999.0
"""What stands for a probability of zero: JSON has no infinity."""


_TAIL = 8
"""Prompt tokens shown to the detokeniser: whether text continues theirs decides on its first space."""


class TextStream(Protocol):
    """Incremental detokenisation: whole characters only."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str:
        """What an unfinished character shows as."""


class TextTokenizer(Protocol):
    """What the client needs of a tokenizer."""

    @property
    def eos_token_ids(self) -> Sequence[int]:
        """Every id that ends a sequence; some are known to the tokenizer alone."""

    def token_text(self, token_id: int) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Sequence[int] = ()) -> TextStream: ...


class Choice:
    """One choice of a request, fed with the deltas of its sequence."""

    def __init__(self, index: int, request: GenerateRequest, tokenizer: TextTokenizer) -> None:
        params = request.params
        self.finished = False
        self.generated = 0
        """Tokens generated, the one that completed a stop included."""
        self._index = index
        self._request = request
        self._params = params
        self._tokenizer = tokenizer
        # Where the prompt is echoed it goes through the stream itself.
        tail = () if request.echo else request.prompt[-_TAIL:]
        self._stream = tokenizer.stream(params.skip_special_tokens, tail)
        self._stops = StopFinder(params.stop, params.include_stop_str_in_output)
        self._started = False

    def push(self, delta: Delta) -> Output:
        """The piece that a delta makes. `finished` is set where it is the last; after that nothing may be pushed.

        A stop string ends the choice though the engine doesn't know it yet: then the delta had no finish_reason.
        """
        out = Output(self._index, logprobs=None if self._params.logprobs is None else [])
        if not self._started and delta.finish_reason != "error":
            self._start(out, delta)
        tokens = delta.token_ids
        for at, token in enumerate(tokens):
            self.generated += 1
            out.token_ids.append(token)
            if out.logprobs is not None and self._params.logprobs is not None and delta.logprobs is not None:
                out.logprobs.append(self._entry(delta.logprobs[at], self._params.logprobs))
            if self._push_text(out, self._text(token, token == delta.stop_token and at + 1 == len(tokens))):
                return out
        if delta.finish_reason is not None:
            self._end(out, delta.finish_reason)
            out.error = delta.error
            if out.finish_reason == "stop" and out.stop_reason is None:
                out.stop_reason = delta.stop_token
        return out

    def end(self, reason: FinishReason, error: str | None = None) -> Output:
        """The last piece where something else than the engine ended the choice."""
        out = Output(self._index, logprobs=None if self._params.logprobs is None else [], error=error)
        self._end(out, reason)
        return out

    def echo_only(self) -> Output:
        """The whole of a choice that generates nothing."""
        return self.push(Delta("", finish_reason="length"))

    def _start(self, out: Output, delta: Delta) -> None:
        self._started = True
        count = self._params.prompt_logprobs
        if count is not None and delta.prompt_logprobs is not None:
            prompt = self._request.prompt
            out.prompt_logprobs = [
                self._first_entry(prompt[0]) if entry is None else self._entry(entry, count)
                for entry in delta.prompt_logprobs
            ]
        if self._request.echo:
            out.token_ids += self._request.prompt
            out.text += "".join(map(self._stream.push, self._request.prompt))
            if out.prompt_logprobs is not None:
                out.logprobs = [*out.prompt_logprobs, *(out.logprobs or [])]

    def _text(self, token: int, ends: bool) -> str:
        """A token that ended the sequence is shown only where the caller wants stops in the output."""
        return self._stream.push(token) if not ends or self._params.include_stop_str_in_output else ""

    def _push_text(self, out: Output, piece: str) -> bool:
        """True where a stop string ended the choice. min_tokens come before any stop."""
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

    def _stop(self, out: Output, match: Match) -> None:
        out.text += match.text
        out.finish_reason, out.stop_reason = "stop", match.stop
        self.finished = True

    def _end(self, out: Output, reason: FinishReason) -> None:
        """What was held comes out now, once. It may still complete a stop."""
        self.finished = True
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

    def _first_entry(self, token: int) -> LogprobEntry:
        return LogprobEntry(token, self._tokenizer.token_text(token), self._tokenizer.token_bytes(token), None, 0)


def _finite(value: float) -> float:
    # A comparison with NaN is false, so it falls to the floor too.
    return value if value > _FLOOR else _FLOOR


class RequestOutputs:
    """The pieces of a request's choices that its caller has not taken yet: at most one a choice, merged as they come.

    So a slow caller holds what its request generated and no more, and nobody waits for it.
    """

    def __init__(self, request: GenerateRequest, tokenizer: TextTokenizer, arrival: float) -> None:
        self.request = request
        self.choices: Sequence[Choice] = [Choice(i, request, tokenizer) for i in range(request.params.n)]
        self._arrival = arrival
        self._cached: int | None = None
        self._waiting: dict[int, Output] = {}

    @property
    def finished(self) -> bool:
        return all(choice.finished for choice in self.choices)

    @property
    def done(self) -> bool:
        """Finished, and all of it taken."""
        return self.finished and not self._waiting

    def push(self, index: int, delta: Delta) -> bool:
        """Take a delta in. True where a stop string was found, so that the engine must be told."""
        choice = self.choices[index]
        if choice.finished:
            return False
        out = choice.push(delta)
        if delta.first_scheduled is not None:
            out.queue_time = max(0.0, delta.first_scheduled - self._arrival)
            # The first choice scheduled pays for the prompt; the others share what it computed.
            self._cached = delta.cached_tokens if self._cached is None else min(self._cached, delta.cached_tokens)
        self._add(out)
        return choice.finished and delta.finish_reason is None

    def end(self, reason: FinishReason, error: str | None = None) -> list[int]:
        """End every choice that still runs. Returns their indices."""
        open_ones = [i for i, choice in enumerate(self.choices) if not choice.finished]
        for index in open_ones:
            self._add(self.choices[index].end(reason, error))
        return open_ones

    def echo_only(self) -> None:
        """Answer a request that needs nothing of the engine."""
        for choice in self.choices:
            self._add(choice.echo_only())

    def take(self) -> list[Output]:
        """What is there, with the running totals; empty where nothing is."""
        taken, self._waiting = list(self._waiting.values()), {}
        usage = self._usage() if taken else None
        for out in taken:
            out.usage = usage
        return taken

    def _usage(self) -> Usage:
        generated = sum(choice.generated for choice in self.choices)
        return Usage(len(self.request.prompt), generated, self._cached or 0)

    def _add(self, out: Output) -> None:
        earlier = self._waiting.get(out.index)
        if earlier is not None:
            _merge(earlier, out)
        elif _says_something(out):
            self._waiting[out.index] = out


def _says_something(out: Output) -> bool:
    return bool(out.text or out.token_ids or out.finish_reason or out.queue_time is not None)


def _merge(into: Output, out: Output) -> None:
    into.text += out.text
    into.token_ids += out.token_ids
    if out.logprobs is not None:
        into.logprobs = out.logprobs if into.logprobs is None else into.logprobs + out.logprobs
    into.finish_reason, into.stop_reason, into.error = out.finish_reason, out.stop_reason, out.error
    if into.queue_time is None:
        into.queue_time = out.queue_time
    if into.prompt_logprobs is None:
        into.prompt_logprobs = out.prompt_logprobs
