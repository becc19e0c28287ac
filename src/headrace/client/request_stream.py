"""One call of a client's `generate`, and its request as the engine gets it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import replace

from headrace.client.api import GenerateRequest
from headrace.client.request_outputs import RequestOutputs, TextTokenizer
from headrace.client.speculation_choice import PREDICTED
from headrace.client.stop_tokens import StopTokens
from headrace.errors import HeadraceError
from headrace.types import Delta, Request

__all__ = ["RequestStream"]


class RequestStream:
    """A request under way. `then` is the one that the engine begins where this one ends."""

    def __init__(
        self,
        number: int,
        request: GenerateRequest,
        tokenizer: TextTokenizer,
        arrival: float,
        asked: GenerateRequest | None = None,
    ) -> None:
        """`asked`: the request as its caller will give it, but for its prompt, which is only the last part of it until
        the stream begins."""
        self.number = number
        self.request = request
        self.arrival = arrival
        self.outputs = RequestOutputs(request, tokenizer, arrival)
        self.changed = asyncio.Event()
        self.error: HeadraceError | None = None
        self.extended = ""
        """The engine's id of the request that it extends."""
        self.then: RequestStream | None = None
        self.asked = asked or request
        self._tokenizer = tokenizer
        self._completing: frozenset[int] = frozenset()
        self._tokens: list[int] = []

    def child(self, index: int) -> str:
        # The number distinguishes a request from an earlier one with the same id, whose last tokens may still arrive.
        return f"{self.request.id}#{self.number}#{index}"

    def fail(self, error: HeadraceError) -> None:
        self.error = error
        self.changed.set()

    def later(self) -> Iterator[str]:
        """The engine's ids of all that may begin behind this one."""
        stream = self.then
        while stream is not None:
            yield stream.child(0)
            stream = stream.then

    def note(self, delta: Delta) -> RequestStream | None:
        """Note tokens; returns the stream that has begun behind them."""
        stream = self.then
        if stream is None:
            return None
        self._tokens += delta.token_ids
        if not delta.went_on:
            return None
        kept = self._tokens if delta.stop_token is None else self._tokens[:-1]
        before, asked = (*self.request.prompt, *kept), stream.asked
        prompt = before + asked.prompt
        stream.asked = replace(asked, prompt=prompt, params=asked.params.behind(len(before)), extends=self.request.id)
        stream.request = replace(stream.request, prompt=prompt, params=stream.request.params.behind(len(before)))
        stream.outputs = RequestOutputs(stream.request, self._tokenizer, stream.arrival)
        stream.mark()
        return stream

    def sent(self, ends: tuple[int, ...], stop_tokens: StopTokens, seed: int, name: str) -> Request:
        """The request for the engine, without what comes from other requests. `ends`: the model's end tokens; `name`:
        its id."""
        request, params = self.request, self.request.params
        # The client finds stop strings; where the engine can, it ends the sequence at the same token.
        stops = stop_tokens.of(params)
        self._completing = frozenset(stops or ()).difference(params.stop_token_ids, ends)
        self.mark()
        alone = replace(
            params, n=1, stop=(), bad_words=(), seed=seed, stop_token_ids=params.stop_token_ids + (stops or ())
        )
        goes_on = self.then is not None and stops is not None and not params.include_stop_str_in_output
        if not goes_on:
            self.then = None
        return Request(
            id=name,
            prompt=request.prompt,
            params=alone,
            eos_token_ids=ends,
            priority=request.priority,
            arrival=self.arrival if request.since is None else min(request.since, self.arrival),
            turn=request.turn,
            salt=request.salt,
            adapter=request.adapter,
            constraint=request.constraint,
            predicted=request.predicted,
            max_drafts=0 if request.pooling else request.speculation.max_tokens,
            predicted_only=request.speculation.method == PREDICTED,
            keep=request.keep and params.n == 1,
            bad_words=request.bad_words,
            pooling=request.pooling,
            gives_blocks=request.gives_blocks,
            remote=request.remote,
            extends=self.extended,
            rivals=request.rivals or (),
            whole=request.whole and stops is not None,
            then=None if self.then is None else self.then.begun(ends, stop_tokens),
            then_after=self._clean(stops or ()) if goes_on else (),
        )

    def begun(self, ends: tuple[int, ...], stop_tokens: StopTokens) -> Request:
        """As `sent`, for a stream that the engine begins."""
        seed = self.request.params.seed
        return self.sent(ends, stop_tokens, secrets.randbits(64) if seed is None else seed, self.child(0))

    def mark(self) -> None:
        """Let the outputs know at which tokens the engine ends the sequence for the sake of a stop string."""
        for choice in self.outputs.choices:
            choice.completing = self._completing

    def _clean(self, stops: tuple[int, ...]) -> tuple[int, ...]:
        """The stop tokens before which the text ends, too: others hold some of it before a stop string."""
        params = self.request.params
        exact = tuple(one for one in stops if self._tokenizer.token_text(one) in params.stop)
        return params.stop_token_ids + exact
