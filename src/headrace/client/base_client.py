"""The common part of both clients: checks, fan-out, routing of deltas, and the streams that callers read."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

from headrace.client.api import GenerateRequest, ModelInfo, Output
from headrace.client.bad_words import bad_word_ids
from headrace.client.cache_feed import CacheFeed
from headrace.client.inquiry import Inquiry
from headrace.client.profile_calls import ProfileCalls
from headrace.client.request_outputs import TextTokenizer
from headrace.client.request_stream import RequestStream
from headrace.client.speculation_choice import check_method
from headrace.client.stop_tokens import StopTokens
from headrace.client.validate import validated
from headrace.config import Config
from headrace.engine.profiling import ProfileReport
from headrace.engine.stats import EngineStats, EngineView
from headrace.engine.wire import (
    Abort,
    Add,
    AddAll,
    CacheChanged,
    CacheContents,
    CacheFlushed,
    Command,
    Deltas,
    EngineInfo,
    Event,
    Finish,
    FlushCache,
    GetStats,
    GetView,
    Park,
    Profiled,
    Refused,
    StatsReply,
    ViewReply,
    from_wire,
)
from headrace.errors import EngineDead, HeadraceError, InvalidRequest, UserError
from headrace.hub.model_reference import display_name

__all__ = ["BaseClient"]

T = TypeVar("T")

_STATS_TIMEOUT = 1.0
"""Seconds to wait for the engine's first stats."""
_FRESH_TIMEOUT = 0.1
"""Seconds to wait for newer stats than the last: during a long step the engine reads no commands."""
_FLUSH_TIMEOUT = 30.0
"""Seconds to wait until the cache has been emptied, between two steps."""
_VIEW_TIMEOUT = 2.5
"""Seconds to wait for a view. People look at it, and an old one would mislead them."""


class BaseClient:
    """An `EngineClient`, except for the transport of commands. Thread: the event loop that started it."""

    def __init__(self, config: Config, tokenizer: TextTokenizer) -> None:
        self.config = config
        self._tokenizer = tokenizer
        self._engine: EngineInfo | None = None
        self._created = int(time.time())
        self._streams: dict[str, RequestStream] = {}
        self._children: dict[str, tuple[RequestStream, int]] = {}
        self._adds: list[Add] = []
        self._kept: dict[str, str] = {}
        """The engine's ids of open requests."""
        self._parked: dict[str, str] = {}
        """Those of parked ones, which stay so whoever goes on with them."""
        self._begun: dict[str, RequestStream] = {}
        """What the engine has begun behind requests, by these, until it is asked for."""
        self._stats = Inquiry[EngineStats](GetStats)
        self._view = Inquiry[EngineView](GetView)
        self._flushes = Inquiry[int](FlushCache)
        self._profiles = ProfileCalls(self._send_now)
        self.cache_feed = CacheFeed(self._send_now)
        self._numbers = itertools.count()
        self._owner_loop: asyncio.AbstractEventLoop | None = None
        self._owner_thread = ""

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
            engine.embedding,
            engine.most_rivals,
            engine.sampling_defaults,
            engine.layout_id,
            engine.block_size,
            engine.max_num_seqs,
            engine.transfer,
        )

    @property
    def engine_info(self) -> EngineInfo:
        """The values that the engine resolved. Raises EngineDead before `start`."""
        if self._engine is None:
            raise EngineDead("the engine has not been started")
        return self._engine

    @cached_property
    def _stop_tokens(self) -> StopTokens:
        return StopTokens(self._tokenizer, self.engine_info.vocab_size)

    @cached_property
    def _end_token_ids(self) -> tuple[int, ...]:
        """Ids that end a sequence, from the checkpoint's settings and its tokenizer. A tokenizer may have more ids than
        the model has rows."""
        engine = self.engine_info
        known = {*engine.eos_token_ids, *self._tokenizer.eos_token_ids}
        return tuple(sorted(token for token in known if token < engine.vocab_size))

    def check(self, request: GenerateRequest) -> GenerateRequest:
        """The request as it will be served. May be called from any thread. Raises InvalidRequest and its subclasses,
        and EngineDead before `start`."""
        check_method(request.speculation, self.config.scheduler.speculate, bool(request.predicted))
        if request.params.bad_words:
            words = bad_word_ids(request.params.bad_words, self._tokenizer, self.engine_info.vocab_size)
            request = replace(request, bad_words=words)
        return validated(request, self.engine_info, self._end_token_ids)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
        self._check_ready()
        self._check_loop()
        stream = self._taken(request) or self._opened(request)
        try:
            while True:
                for output in stream.outputs.take():
                    yield output
                if stream.error is not None:
                    raise stream.error
                if stream.outputs.done:
                    return
                await stream.changed.wait()
                stream.changed.clear()
        finally:
            self._close_stream(stream)

    def _taken(self, request: GenerateRequest) -> RequestStream | None:
        """The stream of this very request, if the engine has begun it already. Another one in its place is ended."""
        begun = self._begun.pop(request.extends, None)
        if begun is not None and begun.asked != request:
            self._drop(begun)
            begun = None
        return begun

    def _opened(self, asked: GenerateRequest) -> RequestStream:
        request = self.check(asked)
        if request.id in self._streams:
            raise InvalidRequest(f"a request with id {request.id!r} is still running", "request_id", "invalid_value")
        stream = RequestStream(next(self._numbers), request, self._tokenizer, time.monotonic())
        if asked.then is not None and request.keep and request.params.n == 1:
            stream.then = self._later(asked.then, _longest(request), stream.arrival)
        self._open(stream)
        return stream

    def _later(self, asked: GenerateRequest, before: int, arrival: float) -> RequestStream | None:
        """The stream of a request that may begin behind at most so many tokens, with those behind it. None: however
        valid it may become, it must be asked for then."""
        try:
            request = self.check(
                replace(asked, prompt=(0,) * before + asked.prompt, params=asked.params.behind(before))
            )
        except InvalidRequest:
            return None
        params, start = request.params, asked.params.prompt_logprobs_start
        if params.prompt_logprobs_start != start:
            params = replace(params, prompt_logprobs_start=start)
        request = replace(request, prompt=asked.prompt, params=params)
        stream = RequestStream(next(self._numbers), request, self._tokenizer, arrival, asked)
        if asked.then is not None:
            stream.then = self._later(asked.then, _longest(request), arrival)
        return stream

    async def abort(self, request_id: str) -> None:
        self._check_loop()
        stream = self._streams.get(request_id)
        if stream is not None:
            self._abort_choices(stream, stream.outputs.end("abort"))
            stream.changed.set()

    def park(self, request_id: str) -> None:
        if (child := self._kept.pop(request_id, None)) is not None:
            self._parked[request_id] = child
            self._send_now(Park(child))

    def release(self, request_ids: Sequence[str]) -> None:
        held = (self._kept, self._parked)
        if ids := [of.pop(one) for one in request_ids for of in held if one in of]:
            self._send_now(Abort(ids))
        for begun in [self._begun.pop(one) for one in request_ids if one in self._begun]:
            self._drop(begun)

    def _drop(self, begun: RequestStream) -> None:
        """End a request that the engine has begun and nobody has asked for."""
        self._close_stream(begun)
        self.release([begun.request.id])

    async def stats(self) -> EngineStats:
        return await self._inquire(self._stats, _STATS_TIMEOUT if self._stats.last is None else _FRESH_TIMEOUT)

    async def view(self) -> EngineView:
        return await self._inquire(self._view, _VIEW_TIMEOUT)

    async def flush_cache(self) -> int:
        self._check_ready()
        self._check_loop()
        asked = self._flushes.ask(self._send_now)
        await asyncio.wait({asked}, timeout=_FLUSH_TIMEOUT)
        if not asked.done():
            raise EngineDead(f"the engine did not answer within {_FLUSH_TIMEOUT:g} s")
        return asked.result()

    async def start_profile(self, folder: str, steps: int) -> None:
        self._check_ready()
        self._check_loop()
        await self._profiles.start(folder, steps)

    async def stop_profile(self) -> ProfileReport:
        self._check_ready()
        self._check_loop()
        return await self._profiles.stop()

    async def _inquire(self, inquiry: Inquiry[T], timeout: float) -> T:
        """The engine's answer, or its last one during a long step."""
        self._check_ready()
        self._check_loop()
        asked = inquiry.ask(self._send_now)
        await asyncio.wait({asked}, timeout=timeout)
        if asked.done():
            return asked.result()
        if inquiry.last is None:
            raise EngineDead(f"the engine did not answer within {timeout:.1g} s")
        await self.check_health()
        return inquiry.last

    async def check_health(self) -> None:
        """Raises EngineDead if the engine makes no progress."""
        raise NotImplementedError

    def _bind_loop(self) -> None:
        """Bind this client to the running event loop. Called by `start`."""
        self._owner_loop = asyncio.get_running_loop()
        self._owner_thread = threading.current_thread().name

    def _check_loop(self) -> None:
        """Raises UserError if called in another event loop than the client's."""
        here = asyncio.get_running_loop()
        if self._owner_loop is not None and here is not self._owner_loop:
            closed = ", which is closed" if self._owner_loop.is_closed() else ""
            raise UserError(
                f"this client belongs to the event loop {self._owner_loop!r} of thread {self._owner_thread!r}{closed}, "
                f"where it was started; it was called from {here!r} of thread {threading.current_thread().name!r}: "
                "call it there, make a client for this loop, or use LLM, which may be called from any thread"
            )

    def _open(self, stream: RequestStream) -> None:
        request, params = stream.request, stream.request.params
        self._streams[request.id] = stream
        if params.max_tokens == 0 and params.prompt_logprobs is None and request.pooling is None:
            stream.outputs.echo_only()
            return
        # The engine closes it in any case, once it has the request.
        stream.extended = self._kept.pop(request.extends, "")
        seed = secrets.randbits(64) if params.seed is None else params.seed
        children = [(stream.child(i), (seed + i) % 2**64) for i in range(params.n)]
        for index, (child, _) in enumerate(children):
            self._children[child] = (stream, index)
        self._send_soon(Add(stream.sent(self._end_token_ids, self._stop_tokens, seed, request.id), children))

    def _send_soon(self, add: Add) -> None:
        """Send a request with all others of this turn of the event loop, so that they enter the same step."""
        if not self._adds:
            asyncio.get_running_loop().call_soon(self._flush)
        self._adds.append(add)

    def _flush(self) -> None:
        adds, self._adds = self._adds, []
        if adds:
            self._send(adds[0] if len(adds) == 1 else AddAll(adds))

    def _send_now(self, command: Command) -> None:
        """Send a command behind the requests that are still to be sent."""
        self._flush()
        self._send(command)

    def _close_stream(self, stream: RequestStream) -> None:
        """End the choices that still run, after the caller has left the stream."""
        self._abort_choices(stream, stream.outputs.end("abort"))
        self._streams.pop(stream.request.id, None)

    def _abort_choices(self, stream: RequestStream, indices: list[int]) -> None:
        ids = [child for i in indices if self._children.pop(child := stream.child(i), None)]
        if ids:
            self._send_now(Abort([*ids, *([stream.extended] if stream.extended else ()), *stream.later()]))

    def _receive(self, event: Event) -> None:
        """Handle events about requests and stats. Subclasses handle the other events."""
        if isinstance(event, Deltas):
            self._deliver(event)
        elif isinstance(event, Refused):
            self._refuse(event)
        elif isinstance(event, StatsReply):
            self._stats.answer(event.stats)
        elif isinstance(event, ViewReply):
            self._view.answer(event.view)
        elif isinstance(event, CacheFlushed):
            self._flushes.answer(event.blocks)
        elif isinstance(event, Profiled):
            self._profiles.receive(event)
        elif isinstance(event, (CacheContents, CacheChanged)):
            self.cache_feed.receive(event)

    def _deliver(self, event: Deltas) -> None:
        for delta in event.deltas:
            # A late delta of a sequence that the client has ended is dropped.
            found = self._children.get(delta.request_id)
            if found is None:
                continue
            stream, index = found
            if stream.outputs.push(index, delta):
                self._send(Finish(delta.request_id))
                if stream.then is not None:
                    self._send(Abort([*stream.later()]))
            if stream.outputs.choices[index].finished:
                del self._children[delta.request_id]
                if stream.request.keep and stream.request.params.n == 1 and delta.error is None:
                    self._kept[stream.request.id] = delta.request_id
            begun = stream.note(delta)
            if begun is not None:
                self._begun[stream.request.id] = self._streams[begun.request.id] = begun
                self._children[begun.child(0)] = (begun, 0)
            stream.changed.set()

    def _refuse(self, event: Refused) -> None:
        for child in event.ids:
            found = self._children.pop(child, None)
            if found is not None:
                found[0].fail(from_wire(event.error))
                if found[0].extended:
                    self._send_now(Abort([found[0].extended]))

    def _fail_all(self, error: HeadraceError) -> None:
        """Fail all open requests with `error`, because the engine was lost."""
        self._children.clear()
        self._kept.clear()
        self._parked.clear()
        self._adds.clear()
        for begun in self._begun.values():
            del self._streams[begun.request.id]
        self._begun.clear()
        for stream in self._streams.values():
            if not stream.outputs.finished:
                stream.fail(error)
        for inquiry in (self._stats, self._view, self._flushes, self._profiles):
            inquiry.fail(error)

    def _end_all(self) -> None:
        """End all open requests with `abort`, because the client closes."""
        self._children.clear()
        self._adds.clear()
        for stream in self._streams.values():
            stream.outputs.end("abort")
            stream.changed.set()

    def _check_ready(self) -> None:
        """Raises EngineDead or Overloaded if no request can be accepted now."""
        raise NotImplementedError

    def _send(self, command: Command) -> None:
        """Send a command. Never blocks; a command for an engine that has exited is dropped."""
        raise NotImplementedError


def _longest(request: GenerateRequest) -> int:
    """The most tokens of a request's prompt and answer."""
    return len(request.prompt) + (request.params.max_tokens or 0)
