"""What both clients share: checks, fan-out, routing of deltas, and the streams that callers read."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cached_property

from headrace.client.api import GenerateRequest, ModelInfo, Output
from headrace.client.output import RequestOutputs, TextTokenizer
from headrace.client.validate import validated
from headrace.config import Config
from headrace.engine.stats import EngineStats
from headrace.engine.wire import (
    Abort,
    Add,
    Command,
    Deltas,
    EngineInfo,
    Event,
    Finish,
    GetStats,
    Refused,
    StatsReply,
    from_wire,
)
from headrace.errors import EngineDead, HeadraceError, InvalidRequest, UserError
from headrace.hub.model_reference import display_name
from headrace.types import Request

__all__ = ["BaseClient"]

_STATS_TIMEOUT = 1.0
"""Seconds for the engine's first figures."""
_FRESH = 0.1
"""Seconds for figures newer than the last: during a long step the engine reads no commands."""


class _Stream:
    """One call of `generate`."""

    def __init__(self, number: int, request: GenerateRequest, tokenizer: TextTokenizer, arrival: float) -> None:
        self.number = number
        self.request = request
        self.arrival = arrival
        self.outputs = RequestOutputs(request, tokenizer, arrival)
        self.news = asyncio.Event()
        self.error: HeadraceError | None = None

    def child(self, index: int) -> str:
        # The number tells a request from an earlier one of the same id, whose last tokens may still be on their way.
        return f"{self.request.id}#{self.number}#{index}"

    def fail(self, error: HeadraceError) -> None:
        self.error = error
        self.news.set()


class BaseClient:
    """An `EngineClient` but for how commands reach the engine. Thread: the event loop that started it."""

    def __init__(self, config: Config, tokenizer: TextTokenizer) -> None:
        self.config = config
        self._tokenizer = tokenizer
        self._engine: EngineInfo | None = None
        self._created = int(time.time())
        self._streams: dict[str, _Stream] = {}
        self._children: dict[str, tuple[_Stream, int]] = {}
        self._asked: asyncio.Future[EngineStats] | None = None
        """The question that the engine has not answered yet. There is one at a time, however many callers wait."""
        self._figures: EngineStats | None = None
        """The engine's last answer."""
        self._numbers = itertools.count()
        self._home: asyncio.AbstractEventLoop | None = None
        self._home_thread = ""

    @property
    def info(self) -> ModelInfo:
        """Raises EngineDead before `start`."""
        engine = self.engine_info
        name = self.config.server.served_model_name or display_name(self.config.model.model)
        return ModelInfo(
            name,
            engine.path,
            engine.max_model_len,
            engine.vocab_size,
            engine.platform,
            engine.dtype,
            self._created,
            engine.kv_tokens,
        )

    @property
    def engine_info(self) -> EngineInfo:
        """What the engine resolved. Raises EngineDead before `start`."""
        if self._engine is None:
            raise EngineDead("the engine has not been started")
        return self._engine

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """Ids that end a sequence, by the checkpoint's settings or by its tokenizer. A tokenizer may know more ids than the
        model has rows for."""
        engine = self.engine_info
        known = {*engine.eos_token_ids, *self._tokenizer.eos_token_ids}
        return tuple(sorted(token for token in known if token < engine.vocab_size))

    def check(self, request: GenerateRequest) -> GenerateRequest:
        """The request as it will be served. From any thread. Raises InvalidRequest and its kinds, EngineDead before `start`."""
        return validated(request, self.engine_info, self._ends)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
        self._check_ready()
        self._check_loop()
        request = self.check(request)
        if request.id in self._streams:
            raise InvalidRequest(f"a request with id {request.id!r} is still running", "request_id", "invalid_value")
        stream = _Stream(next(self._numbers), request, self._tokenizer, time.monotonic())
        self._open(stream)
        try:
            while True:
                for output in stream.outputs.take():
                    yield output
                if stream.error is not None:
                    raise stream.error
                if stream.outputs.done:
                    return
                await stream.news.wait()
                stream.news.clear()
        finally:
            self._forget(stream)

    async def abort(self, request_id: str) -> None:
        self._check_loop()
        stream = self._streams.get(request_id)
        if stream is not None:
            self._drop(stream, stream.outputs.end("abort"))
            stream.news.set()

    async def stats(self) -> EngineStats:
        self._check_ready()
        self._check_loop()
        asked = self._ask()
        await asyncio.wait({asked}, timeout=_STATS_TIMEOUT if self._figures is None else _FRESH)
        if asked.done():
            return asked.result()
        if self._figures is None:
            raise EngineDead(f"the engine did not answer within {_STATS_TIMEOUT:.0f} s")
        await self.check_health()
        return self._figures

    def _ask(self) -> asyncio.Future[EngineStats]:
        """Ask for the figures, unless the engine has been asked and has not answered."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_future()
            self._send(GetStats(next(self._numbers)))
        return self._asked

    async def check_health(self) -> None:
        """Raises EngineDead where the engine makes no progress."""
        raise NotImplementedError

    def _settle(self) -> None:
        """`start` runs in the event loop that this client then belongs to."""
        self._home = asyncio.get_running_loop()
        self._home_thread = threading.current_thread().name

    def _check_loop(self) -> None:
        """Raises UserError in another event loop than the client's own."""
        here = asyncio.get_running_loop()
        if self._home is not None and here is not self._home:
            closed = ", which is closed" if self._home.is_closed() else ""
            raise UserError(
                f"this client belongs to the event loop {self._home!r} of thread {self._home_thread!r}{closed}, where it was "
                f"started; it was called from {here!r} of thread {threading.current_thread().name!r}: call it there, make a "
                "client for this loop, or use LLM, which may be called from any thread"
            )

    def _open(self, stream: _Stream) -> None:
        request, params = stream.request, stream.request.params
        self._streams[request.id] = stream
        if params.max_tokens == 0 and params.prompt_logprobs is None:
            stream.outputs.echo_only()
            return
        seed = secrets.randbits(64) if params.seed is None else params.seed
        children = [(stream.child(i), (seed + i) % 2**64) for i in range(params.n)]
        for index, (child, _) in enumerate(children):
            self._children[child] = (stream, index)
        # Stop strings are found on this side.
        alone = replace(params, n=1, stop=())
        core = Request(
            id=request.id,
            prompt=request.prompt,
            params=alone,
            eos_token_ids=self._ends,
            priority=request.priority,
            arrival=stream.arrival,
            salt=request.salt,
            adapter=request.adapter,
            constraint=request.constraint,
        )
        self._send(Add(core, children))

    def _forget(self, stream: _Stream) -> None:
        """Ends what still runs of a stream whose caller has left."""
        self._drop(stream, stream.outputs.end("abort"))
        self._streams.pop(stream.request.id, None)

    def _drop(self, stream: _Stream, indices: list[int]) -> None:
        ids = [child for i in indices if self._children.pop(child := stream.child(i), None)]
        if ids:
            self._send(Abort(ids))

    def _receive(self, event: Event) -> None:
        """What the engine says of requests and figures. Other events are the subclass's."""
        if isinstance(event, Deltas):
            self._take(event)
        elif isinstance(event, Refused):
            self._refuse(event)
        elif isinstance(event, StatsReply):
            self._figures = event.stats
            asked, self._asked = self._asked, None
            if asked is not None:
                asked.set_result(event.stats)

    def _take(self, event: Deltas) -> None:
        for delta in event.deltas:
            # Late news of a sequence that has ended here has nowhere to go.
            found = self._children.get(delta.request_id)
            if found is None:
                continue
            stream, index = found
            if stream.outputs.push(index, delta):
                self._send(Finish(delta.request_id))
            if stream.outputs.choices[index].finished:
                del self._children[delta.request_id]
            stream.news.set()

    def _refuse(self, event: Refused) -> None:
        for child in event.ids:
            found = self._children.pop(child, None)
            if found is not None:
                found[0].fail(from_wire(event.error))

    def _lose(self, error: HeadraceError) -> None:
        """The engine is gone: everything open fails with `error`."""
        self._children.clear()
        for stream in self._streams.values():
            if not stream.outputs.finished:
                stream.fail(error)
        asked, self._asked, self._figures = self._asked, None, None
        if asked is not None:
            asked.set_exception(error)
            asked.exception()  # Perhaps nobody waits for it any more.

    def _end_all(self) -> None:
        """The client closes: everything open ends with `abort`."""
        self._children.clear()
        for stream in self._streams.values():
            stream.outputs.end("abort")
            stream.news.set()

    def _check_ready(self) -> None:
        """Raises EngineDead or Overloaded where a request cannot be taken now."""
        raise NotImplementedError

    def _send(self, command: Command) -> None:
        """Never blocks; a command for an engine that is gone is dropped."""
        raise NotImplementedError
