"""Many prompts in one call: sends as many as the engine's queue holds, the next when one ends; answers keep their
order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.client.api import EngineClient, GenerateRequest, LogprobEntry, Output, PromptScores, Usage
from headrace.errors import EngineDead, HeadraceError, InvalidRequest
from headrace.structured_outputs import StructuredOutputs

__all__ = ["Completion", "KeptPlaces", "RequestOutput", "SequenceLimiter", "answer_all"]


@dataclass(slots=True)
class Completion:
    """One choice. Text, ids and stops follow the rule of `client.api.Output`."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[LogprobEntry] | None = None
    finish_reason: str | None = None
    """`stop`, `length`, `abort`, or `error`: then `error` is the reason, and the other prompts still have their
    answers."""
    stop_reason: int | str | None = None
    error: str | None = None
    """Also the reason why a complete text is not a value of the requested type: a validator of the type refused it."""
    parsed: Any = None
    """The value of the text if `structured_outputs` was given: an instance of the type, the value of other JSON,
    otherwise the text itself. None if the text was truncated."""
    pooled: bytes | None = None
    """The pooled hidden states of a request with `pooling`."""


@dataclass(slots=True)
class RequestOutput:
    """The answer to one prompt."""

    prompt: str | None
    """None if token ids were given."""
    prompt_token_ids: list[int]
    outputs: list[Completion]
    prompt_logprobs: list[LogprobEntry] | None = None
    usage: Usage | None = None
    scores: PromptScores | None = None
    """Of a request with `rivals`."""


@dataclass(eq=False, slots=True)
class KeptPlaces:
    """Places that a caller keeps between two requests."""

    count: int
    give_way: Callable[[], None]


class SequenceLimiter:
    """Limits the sequences that are in the engine at once, first come, first served. One event loop uses it."""

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._kept: dict[KeptPlaces, None] = {}
        """Oldest first; none while someone waits."""

    @property
    def contended(self) -> bool:
        """Someone waits for places."""
        return bool(self._waiting)

    async def acquire(self, count: int) -> int:
        """Wait for so many free places, or for all if there are fewer. Returns the number of places acquired."""
        count = min(count, self._total)
        while self._free < count and self._kept:
            oldest = next(iter(self._kept))
            self.drop(oldest)
            oldest.give_way()
        if not self._waiting and self._free >= count:
            self._free -= count
            return count
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((count, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(count)
            else:
                self._waiting.remove((count, granted))
            raise
        return count

    def release(self, count: int) -> None:
        """Release places and grant them to the callers that wait."""
        self._free += count
        while self._waiting and self._free >= self._waiting[0][0]:
            count, granted = self._waiting.popleft()
            if not granted.done():
                self._free -= count
                granted.set_result(None)

    def keep(self, count: int, give_way: Callable[[], None]) -> KeptPlaces | None:
        """Keep acquired places for the caller's next request, which `take` gives them to. They never make others wait:
        if someone needs them, `give_way` is called, and they are that one's. None: someone waits already, and they are
        released."""
        if self._waiting:
            self.release(count)
            return None
        kept = KeptPlaces(count, give_way)
        self._kept[kept] = None
        return kept

    def take(self, kept: KeptPlaces) -> int:
        """The number of kept places, which are the caller's again; 0 if they have been given away."""
        if kept not in self._kept:
            return 0
        del self._kept[kept]
        return kept.count

    def drop(self, kept: KeptPlaces) -> None:
        """Release kept places, unless they have been given away."""
        if count := self.take(kept):
            self.release(count)


async def answer_all(
    client: EngineClient,
    requests: Sequence[GenerateRequest],
    places: SequenceLimiter,
    report: Callable[[int], None] | None = None,
) -> list[RequestOutput]:
    """The answers in the order of the requests; `report` receives the number of tokens of each request that ends.

    An error of one request becomes the `error` of its choices. Raises EngineDead, which ends all requests, and
    InvalidRequest, with the number of the prompt, for a fault of the request itself that only shows now: a constraint
    that cannot be enforced, or fields that leave no token to sample.
    """
    answers = [_empty(request) for request in requests]
    tasks: set[asyncio.Task[None]] = set()
    lost: list[HeadraceError] = []

    async def work(index: int, taken: int) -> None:
        request, answer = requests[index], answers[index]
        try:
            await _answer(client, request, answer)
            if report is not None:
                report(sum(len(choice.token_ids) for choice in answer.outputs))
        except EngineDead as error:
            lost.append(error)
        except InvalidRequest as error:
            error.args = (f"prompts[{index}]: {error}" if len(requests) > 1 else str(error),)
            lost.append(error)
        finally:
            places.release(taken)

    try:
        for index, request in enumerate(requests):
            taken = await places.acquire(request.params.n)
            if lost:
                places.release(taken)
                break
            task = asyncio.ensure_future(work(index, taken))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        while tasks:
            await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if lost:
        raise lost[0]
    return answers


def _empty(request: GenerateRequest) -> RequestOutput:
    return RequestOutput(None, list(request.prompt), [Completion(i) for i in range(request.params.n)])


async def _answer(client: EngineClient, request: GenerateRequest, answer: RequestOutput) -> None:
    try:
        async for output in client.generate(request):
            _extend(answer, output)
    except (EngineDead, InvalidRequest):
        raise
    except HeadraceError as error:
        for choice in answer.outputs:
            if choice.finish_reason is None:
                choice.finish_reason, choice.error = "error", str(error)
    if request.params.structured_outputs is not None:
        for choice in answer.outputs:
            _parse(choice, request.params.structured_outputs)


def _parse(choice: Completion, outputs: StructuredOutputs) -> None:
    if choice.finish_reason != "stop":
        return
    try:
        choice.parsed = outputs.parse(choice.text)
    except ValueError as error:
        choice.error = f"the text is no value of the type that was asked for: {error}"


def _extend(answer: RequestOutput, output: Output) -> None:
    """Add a piece. Raises InvalidRequest if the request itself is the reason why it ends with an error."""
    if output.request_fault:
        raise InvalidRequest(output.error or "the request contradicts itself", code="nothing_to_sample")
    choice = answer.outputs[output.index]
    choice.text += output.text
    choice.token_ids += output.token_ids
    if output.logprobs is not None:
        choice.logprobs = [*(choice.logprobs or []), *output.logprobs]
    choice.finish_reason, choice.stop_reason, choice.error = output.finish_reason, output.stop_reason, output.error
    choice.pooled = output.embedding or choice.pooled
    answer.prompt_logprobs = answer.prompt_logprobs or output.prompt_logprobs
    answer.scores = answer.scores or output.scores
    answer.usage = output.usage or answer.usage
