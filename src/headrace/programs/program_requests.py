"""The requests of a run: generations, and the scoring of choices."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.client.api import EngineClient, GenerateRequest
from headrace.client.stops import TextCodec, special_stops
from headrace.programs.choice_requests import ChoiceRequest
from headrace.structured_outputs import StructuredOutputs
from headrace.types import SamplingParams

__all__ = ["RequestMaker"]


class RequestMaker:
    """Makes the requests of one run. All of them queue as if they had come with it: a program that has begun goes
    before later ones."""

    def __init__(
        self, client: EngineClient, tokenizer: TextCodec, new_id: Callable[[], str], priority: int, salt: str
    ) -> None:
        self._client, self._tokenizer, self._new_id = client, tokenizer, new_id
        self._priority, self._salt = priority, salt
        self._since = time.monotonic()

    def generation(
        self, ids: Sequence[int], params: SamplingParams, turn: tuple[int, ...], **more: Any
    ) -> GenerateRequest:
        """It stays open at its end. `more`: `name`, its id, and further fields of the request."""
        return self._made(ids, params, turn, keep=True, **more)

    def scoring(
        self, prefix: Sequence[int], wanted: ChoiceRequest, turn: tuple[int, ...], **more: Any
    ) -> GenerateRequest:
        """Scores tokens behind a prefix."""
        start = len(prefix) + wanted.start
        params = SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=start)
        return self._made([*prefix, *wanted.ids], params, turn, rivals=wanted.rivals, **more)

    def params(self, sampling: Mapping[str, Any], constraint: Mapping[str, Any] | None) -> SamplingParams:
        form = None if constraint is None else StructuredOutputs.of(constraint)
        params = SamplingParams(**{**self._client.info.sampling_defaults, **sampling}, structured_outputs=form)
        if not params.stop or not params.skip_special_tokens:
            return params
        # As `LLM.generate`: a special token whose text is a stop string stops, too.
        found = special_stops(params.stop, self._tokenizer)
        return replace(params, stop_token_ids=params.stop_token_ids + found) if found else params

    def _made(
        self, ids: Sequence[int], params: SamplingParams, turn: tuple[int, ...], name: str = "", **more: Any
    ) -> GenerateRequest:
        return GenerateRequest(
            name or self._new_id(),
            tuple(ids),
            params,
            priority=self._priority,
            salt=self._salt,
            since=self._since,
            turn=turn,
            **more,
        )
