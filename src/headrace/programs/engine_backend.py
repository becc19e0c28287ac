"""Runs programs of `headrace.lang` on an engine: in this process, or the one of a server."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

from headrace.client.api import EngineClient, GenerateRequest, Output, PromptScores
from headrace.client.batch import KeptPlaces, SequenceLimiter
from headrace.errors import ContextOverflow, EngineDead, InvalidRequest
from headrace.lang.backend import Expected, Generated, Scores, TokenCounts
from headrace.lang.conversation import Conversation
from headrace.programs.choice_requests import ChoiceRequest, choice_requests, choice_rows
from headrace.programs.model_texts import ModelTexts, ProgramTokenizer
from headrace.programs.program_requests import RequestMaker
from headrace.programs.rendering import Rendered
from headrace.programs.token_path import TokenPath
from headrace.programs.told_requests import ToldRequests

__all__ = ["EngineBackend", "EngineRun"]


InThread = Callable[[int, Callable[[], TokenPath]], Awaitable[TokenPath]]
_LONGEST_TOKEN = 256
"""Characters; no vocabulary in use has a longer token."""
_INLINE = 2000
"""Characters of a text that is tokenised in the event loop."""


class EngineBackend:
    """A `lang.backend.RunScope`. Thread: the client's event loop."""

    def __init__(
        self,
        client: EngineClient,
        tokenizer: ProgramTokenizer,
        places: SequenceLimiter,
        *,
        priority: int = 0,
        salt: str = "",
        in_thread: InThread | None = None,
        texts: ModelTexts | None = None,
    ) -> None:
        """`priority` and `salt` are those of every request. `in_thread` runs work on a text of so many characters in a
        thread, so that long ones don't block the event loop. `texts`: those that several backends share."""
        self.client, self.tokenizer, self.places = client, tokenizer, places
        self.priority, self.salt = priority, salt
        self._texts, self._in_thread = texts or ModelTexts(tokenizer), in_thread
        self.encoder, self.crossings = self._texts.encoder, self._texts.crossings
        self.rendered = Rendered(tokenizer.apply_chat_template_async)
        self._numbers = itertools.count()

    def with_priority(self, priority: int) -> EngineBackend:
        """The same engine, for requests of this priority."""
        return EngineBackend(
            self.client,
            self.tokenizer,
            self.places,
            priority=priority,
            salt=self.salt,
            in_thread=self._in_thread,
            texts=self._texts,
        )

    def new_id(self) -> str:
        return f"program-{id(self)}-{next(self._numbers)}"

    async def path(self, text: str, chat: bool, known: TokenPath | None) -> TokenPath:
        """The tokens of a text. Raises ContextOverflow for one that cannot fit, before it is tokenised."""
        limit = self.client.info.max_model_len
        if len(text) > _LONGEST_TOKEN * limit:
            raise ContextOverflow(
                f"this model's maximum context length is {limit} tokens, which the {len(text)} characters of the "
                "prompt exceed"
            )
        work = partial(self.encoder.path, text, chat, known)
        new = len(text) - (0 if known is None else len(known.text))
        if self._in_thread is None or new <= _INLINE:
            return work()
        return await self._in_thread(new, work)

    def begin_run(self) -> EngineRun:
        return EngineRun(self)

    async def generate(
        self,
        conversation: Conversation,
        sampling: Mapping[str, Any],
        constraint: Mapping[str, Any] | None,
        on_text: Callable[[str], None] | None,
    ) -> Generated:
        """As `EngineRun.generate`, for a run that keeps nothing open."""
        run = self.begin_run()
        try:
            return await run.generate(conversation, sampling, constraint, on_text)
        finally:
            run.close()

    async def score(self, conversation: Conversation, choices: Sequence[str], alone: bool) -> Scores:
        run = self.begin_run()
        try:
            return await run.score(conversation, choices, alone)
        finally:
            run.close()


class EngineRun:
    """A `lang.backend.RunBackend`: its sequences stay open after their generations, and the next ones go on in their
    slots and blocks."""

    def __init__(self, backend: EngineBackend) -> None:
        self._backend = backend
        self._make = RequestMaker(backend.client, backend.tokenizer, backend.new_id, backend.priority, backend.salt)
        self._told = ToldRequests(self._make, backend.encoder, backend.crossings, backend.client.info.rivals)
        self._open: set[str] = set()
        self._parked: set[str] = set()
        self._kept: dict[str, KeptPlaces] = {}
        """Places of requests that have ended, for what the engine goes on with."""
        self._closed = False

    async def generate(
        self,
        conversation: Conversation,
        sampling: Mapping[str, Any],
        constraint: Mapping[str, Any] | None,
        on_text: Callable[[str], None] | None,
        turn: tuple[int, ...] = (),
        expected: Callable[[], Sequence[Expected]] | None = None,
    ) -> Generated:
        whole, path = on_text is None, await self._prompt(conversation)
        told = self._told.taken(self._extendable(path), path)
        then, name = (None, "") if told is None else (told.then, told.id)  # The engine may have begun it.
        known = None if told is None else self._told.params(told, sampling, constraint)
        params = known or self._make.params(sampling, constraint)
        if told is None and expected is not None and not self._backend.places.contended:
            then = await self._told.behind(conversation, path, expected(), whole)
        extends = self._extendable(path)
        request = self._make.generation(path.ids, params, turn, name=name, extends=extends, whole=whole, then=then)
        self._told.tell(request)
        self._open.add(request.id)
        made, ids, stop = Generated("", None), list[int](), None
        for output in await self._outputs(request, on_text):
            made.text += output.text
            ids += output.token_ids
            made.finish_reason = output.finish_reason or made.finish_reason
            stop = output.stop_reason if output.stop_reason is not None else stop
            made.usage = _counts(output, path.encoded) if output.usage is not None else made.usage
            if output.logprobs is not None:
                made.logprobs = [*(made.logprobs or []), *output.logprobs]
        if isinstance(stop, int) and not params.include_stop_str_in_output:
            ids = ids[:-1]
        cut, skips = isinstance(stop, str), params.skip_special_tokens
        made.known = self._backend.encoder.generated(path, ids, made.text, skips, cut, request.id)
        self._release([request.extends])
        return made

    async def score(
        self, conversation: Conversation, choices: Sequence[str], alone: bool, turn: tuple[int, ...] = ()
    ) -> Scores:
        prefix = await self._prompt(conversation)
        ids = [self._backend.encoder.encoded(choice) for choice in choices]
        for choice, one in zip(choices, ids, strict=True):
            if not one:
                raise InvalidRequest(f"the choice {choice!r} has no tokens in this model's vocabulary")
        if not prefix.ids:
            requests = [ChoiceRequest(one, 0) for one in dict.fromkeys(ids)]
        else:
            requests = choice_requests(ids, self._backend.client.info.rivals)
        made = self._scorings(prefix, requests, turn)
        bare = [self._make.scoring((), ChoiceRequest(one, 0), turn) for one in ids if alone]
        usage = TokenCounts(encoded_tokens=prefix.encoded + sum(map(len, ids)))
        scores = await asyncio.gather(*(self._scores(one, usage) for one in [*made, *bare]))
        self._release([one.extends for one in made])
        here = choice_rows(ids, requests, scores[: len(made)])
        name = made[0].id if made[0].keep else ""
        known = [
            TokenPath(prefix.text + choice, prefix.ids + one, name) for choice, one in zip(choices, ids, strict=True)
        ]
        return Scores(here, [one.own for one in scores[len(made) :]], usage, known)

    def share(self, conversation: Conversation) -> None:
        known = conversation.known
        if isinstance(known, TokenPath) and known.open in self._open:
            self._park(known.open)

    def let_go(self, conversation: Conversation) -> None:
        known = conversation.known
        if isinstance(known, TokenPath):
            self._release([known.open])

    def close(self) -> None:
        self._closed = True
        self._release([*self._open])

    async def _prompt(self, conversation: Conversation) -> TokenPath:
        """The prompt as the model sees it."""
        known = conversation.known if isinstance(conversation.known, TokenPath) else None
        if not conversation.is_chat:
            return await self._backend.path(conversation.text, False, known)
        return await self._backend.path(await self._backend.rendered.text(conversation), True, known)

    def _extendable(self, path: TokenPath) -> str:
        return path.open if path.open in self._open - self._parked else ""

    def _scorings(
        self, prefix: TokenPath, requests: Sequence[ChoiceRequest], turn: tuple[int, ...]
    ) -> list[GenerateRequest]:
        """The requests of a `select`. If one is enough, it goes on in the open sequence; several share the prefix."""
        if len(requests) > 1:
            if prefix.open in self._open:
                self._park(prefix.open)
            return [self._make.scoring(prefix.ids, one, turn) for one in requests]
        extends = self._extendable(prefix)
        only = self._make.scoring(prefix.ids, requests[0], turn, keep=True, extends=extends)
        told = self._told.taken(extends, prefix)
        only = only if told is None else replace(only, id=told.id)
        self._open.add(only.id)
        return [only]

    async def _scores(self, request: GenerateRequest, usage: TokenCounts) -> PromptScores:
        found: PromptScores | None = None
        for output in await self._outputs(request, None):
            found = output.scores or found
            if output.finish_reason is not None:
                usage.add(_counts(output, 0))
        assert found is not None
        return found

    async def _outputs(self, request: GenerateRequest, on_text: Callable[[str], None] | None) -> list[Output]:
        """All pieces of an answer. Cancelling aborts the request."""
        found: list[Output] = []
        places, ended = self._backend.places, False
        kept = self._kept.pop(request.extends, None)
        taken = 0 if kept is None else places.take(kept)
        taken = taken or await places.acquire(1)
        try:
            async with aclosing(self._backend.client.generate(request)) as outputs:  # type: ignore[type-var]
                async for output in outputs:
                    if output.request_fault:
                        raise InvalidRequest(output.error or "the request contradicts itself")
                    if output.finish_reason in ("error", "abort"):
                        raise EngineDead(output.error or "the engine was closed")
                    found.append(output)
                    if on_text is not None and output.text:
                        on_text(output.text)
            ended = True
        finally:
            if ended and request.then is not None and not self._closed:
                self._keep(request.id, taken)
            else:
                places.release(taken)
            if self._closed:
                self._release([request.id])
        return found

    def _keep(self, name: str, taken: int) -> None:
        """Keep the place of a request for what the engine has begun behind it."""
        kept = self._backend.places.keep(taken, lambda: self._release([name]))
        if kept is None:
            self._release([name])
        else:
            self._kept[name] = kept

    def _park(self, name: str) -> None:
        if name not in self._parked:
            self._parked.add(name)
            self._backend.client.park(name)

    def _release(self, names: Sequence[str]) -> None:
        known = [name for name in names if name in self._open]
        if not known:
            return
        self._open.difference_update(known)
        self._parked.difference_update(known)
        self._backend.client.release(known)
        for name in known:
            self._told.forget(name)
            if (kept := self._kept.pop(name, None)) is not None:
                self._backend.places.drop(kept)


def _counts(output: Output, encoded: int) -> TokenCounts:
    found = output.usage
    counts = (0, 0, 0) if found is None else (found.prompt_tokens, found.completion_tokens, found.cached_tokens)
    return TokenCounts(*counts, 1, encoded)
