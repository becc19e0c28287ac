"""What the engine is told to go on with, of one run: requests that will probably be asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.client.api import GenerateRequest
from headrace.errors import InvalidRequest
from headrace.lang.backend import Expected
from headrace.lang.conversation import Conversation
from headrace.programs.choice_requests import choice_requests
from headrace.programs.crossings import Crossings, Shape
from headrace.programs.program_requests import RequestMaker
from headrace.programs.token_path import PathEncoder, TokenPath
from headrace.types import SamplingParams

__all__ = ["ToldRequests"]


class ToldRequests:
    """Requests by those that they go on with."""

    def __init__(self, make: RequestMaker, encoder: PathEncoder, crossings: Crossings, most_rivals: int) -> None:
        self._make, self._encoder, self._crossings = make, encoder, crossings
        self._most_rivals = most_rivals
        self._told: dict[str, GenerateRequest] = {}
        self._guessed: dict[str, tuple[Shape, tuple[int, ...]]] = {}
        """Of those that lie behind the end of a message, by their ids: the tokens before them."""
        self._expected: dict[str, Expected] = {}
        """What generations were made of, by their ids."""

    async def behind(
        self, conversation: Conversation, path: TokenPath, expected: Sequence[Expected], whole: bool
    ) -> GenerateRequest | None:
        """What will follow a generation, as requests that each go on with the one before. `path`: of the
        conversation."""
        found: list[GenerateRequest] = []
        for one in expected:
            tail = one.tail
            text: str | None = tail.text
            if tail.turns is not None:
                text = await self._crossings.text(conversation, path.text, tail)
            if text is None:
                break
            ids: tuple[int, ...] = self._encoder.encoded(text, conversation.is_chat) if text else ()
            request = self._request(ids, one, whole)
            if request is None:
                break
            if tail.turns is not None:
                self._guessed[request.id] = self._crossings.shape(tail), ids
            found.append(request)
        then: GenerateRequest | None = None
        for request in reversed(found):
            then = request if then is None else replace(request, then=then)
        return then

    def tell(self, request: GenerateRequest) -> None:
        """Note what a request that is sent tells the engine."""
        if request.then is not None:
            self._told[request.id] = request.then

    def taken(self, name: str, path: TokenPath) -> GenerateRequest | None:
        """What the engine was told to go on with behind a request, which it may have begun. `path`: of the prompt that
        has come."""
        told = self._told.pop(name, None)
        if told is not None and (guessed := self._guessed.pop(told.id, None)) is not None:
            shape, ids = guessed
            self._crossings.judge(shape, path.ids[len(path.ids) - path.encoded :] == ids)
        return told

    def params(
        self, told: GenerateRequest, sampling: Mapping[str, Any], constraint: Mapping[str, Any] | None
    ) -> SamplingParams | None:
        """The parameters of a generation that was told, if they were made of the same."""
        one = self._expected.pop(told.id, None)
        return told.params if one is not None and (one.sampling, one.constraint) == (sampling, constraint) else None

    def forget(self, name: str) -> None:
        """Drop what would follow a request that is released."""
        told = self._told.pop(name, None)
        while told is not None:
            self._guessed.pop(told.id, None)
            self._expected.pop(told.id, None)
            told = told.then

    def _request(self, ids: tuple[int, ...], one: Expected, whole: bool) -> GenerateRequest | None:
        """None: it must be asked for."""
        if not one.choices:
            try:
                params = self._make.params(one.sampling, one.constraint)
            except InvalidRequest:
                return None  # The error is that of the operation itself.
            request = self._make.generation(ids, params, one.turn, whole=whole)
            self._expected[request.id] = one
            return request
        choices = [self._encoder.encoded(choice) for choice in one.choices]
        if not all(choices):
            return None
        requests = choice_requests(choices, self._most_rivals)
        # Several would share a prefix, which is parked for them.
        return self._make.scoring(ids, requests[0], one.turn, keep=True) if len(requests) == 1 else None
