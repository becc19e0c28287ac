"""Passes one request to an engine and its answer back, and tries once more elsewhere: as long as no token was shown,
and of an answer that is the same everywhere, from where it stopped."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
from starlette.types import Message, Send

from headrace.route.fleet import Choice, Fleet, Query
from headrace.route.replica import Replica
from headrace.route.router_metrics import RouterMetrics
from headrace.route.split_ask import SplitAsk, whole
from headrace.route.split_bodies import SPLIT_PATHS, has_one_choice, with_seed
from headrace.route.stream_replay import Continuation, Differs, EngineFailed, ShownStream
from headrace.route.upstream import Answer, UpstreamLost
from headrace.server.exchange import CACHED_TOKENS, FIRST_TOKEN
from headrace.server.http_errors import HttpError
from headrace.server.stream_form import DONE, LINES, MESSAGES, OPENAI, RESPONSES, StreamForm

__all__ = ["Call", "Relay"]

_log = logging.getLogger(__name__)

_AGAIN = frozenset({502, 503, 504, 529})
"""Answers of an engine that cannot serve now: another may."""
_BUFFER = 4 * 2**20
"""Bytes of an answer that is not streamed: it is kept until it is complete, so that it can be asked for elsewhere."""
_HOP = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"te", b"upgrade", b"proxy-connection", b"trailer"}
)
_NOT_PASSED = _HOP | {b"host", b"content-length", b"expect"}
_TRIES = 2
REPLICA = b"x-headrace-replica"


@dataclass(frozen=True, slots=True)
class Call:
    """A request as it is passed on."""

    method: bytes
    target: bytes
    path: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    stream: bool
    """The client asked for a stream."""
    one_answer: bool = False
    """It is greedy or has a seed: every engine of the model gives the same answer."""

    @property
    def form(self) -> StreamForm:
        if self.path.startswith("/api/"):
            return LINES
        if self.path.startswith("/v1/messages"):
            return MESSAGES
        return RESPONSES if self.path.startswith("/v1/responses") else OPENAI


class _Unserved(Exception):
    """An engine could not answer, and nothing was shown of it. `answer`: what it said, if it said something."""

    def __init__(self, why: str, answer: tuple[Answer, bytes] | None = None) -> None:
        super().__init__(why)
        self.answer = answer


class Relay:
    """One request. Thread: the event loop's."""

    def __init__(self, fleet: Fleet, metrics: RouterMetrics, call: Call, query: Query, send: Send) -> None:
        self._fleet, self._metrics, self._call, self._query, self._send = fleet, metrics, call, query, send
        self._started = False
        """The head of an answer was sent."""
        self._shown = False
        """A piece of an answer was sent that cannot be taken back."""
        kept = call.stream and call.one_answer and call.path in SPLIT_PATHS
        self._kept = ShownStream() if kept else None
        """What was shown, if another engine could go on with it."""
        self._early_rest: Continuation | None = None
        """If the engine that computed the prompt gave the first token: cuts it off the answer."""
        self._early_open = False
        """A first token may be shown now."""
        self._sending = asyncio.Lock()
        """Two engines' pieces may come at once."""
        self.pieces = 0
        """Tokens of the answer, for the limits of keys: of a stream the events, otherwise as its usage says."""

    async def run(self) -> None:
        """Raises HttpError if nothing was sent yet."""
        tried: list[Replica] = []
        last: _Unserved | None = None
        while len(tried) < _TRIES and (choice := self._fleet.choose(self._query, tried)) is not None:
            if tried:
                self._metrics.retries.inc()
            tried.append(choice.replica)
            self._metrics.placed(choice.replica, choice.placement, self._query)
            try:
                await self._try(choice)
                return
            except _Unserved as unserved:
                last = unserved
                self._metrics.unserved(choice.replica)
            finally:
                choice.close()
        await self._fail(tried, last)

    async def stop(self, why: Exception) -> None:
        """End the answer early: the client has gone, or the router shuts down. Raises `why` if nothing was sent."""
        if not self._started or not isinstance(why, HttpError):
            raise why
        await self._send(_body(self._call.form.error(why), more=False))

    async def _try(self, choice: Choice) -> None:
        """Raises _Unserved if another engine may be tried."""
        split = None if choice.prefill is None else self._split(choice)
        try:
            await self._answered(choice, split)
        finally:
            if split is not None:
                await split.close()

    def _split(self, choice: Choice) -> SplitAsk:
        assert choice.prefill is not None
        call, early, first = self._call, None, choice.prefill.replica
        # Blocks of another size may give other bits.
        if call.stream and has_one_choice(call.body) and first.agrees and first.like(choice.replica):
            if self._kept is None:
                # Both engines must draw the same token.
                self._call = call = replace(call, body=with_seed(call.body, secrets.randbits(63)), one_answer=True)
                self._kept = ShownStream()
            self._early_open, early = True, partial(self._show_early, choice)
        return SplitAsk(choice, self._headers, call.target, call.body, self._metrics, early)

    async def _show_early(self, choice: Choice, answer: Answer, events: bytes) -> None:
        """Show the first token, from the engine that has computed the prompt."""
        async with self._sending:
            if not self._early_open or self._shown or self._kept is None:
                return
            self._shown = True
            self._early_rest = Continuation(events, passes_errors=True)
            events = self._kept.take(events)
            self._metrics.early.inc()
            choice.ticket.first_token(time.monotonic())
            await self._start(choice.replica, answer)
            await self._send_events(events)

    async def _answered(self, choice: Choice, split: SplitAsk | None) -> None:
        replica, call = choice.replica, self._call
        if call.stream is False:
            # Its first token is not seen: it is taken to come when it is expected.
            loop = asyncio.get_running_loop()
            loop.call_later(choice.ticket.expected, choice.ticket.first_token)
        try:
            if split is not None:
                answer = await split.answer()
            else:
                answer = await replica.origin.ask(call.method, call.target, self._headers(replica), call.body)
        except UpstreamLost as lost:
            replica.failed(str(lost))
            await self._lost(choice, lost)
            return
        try:
            await self._pass_on(choice, answer)
        except UpstreamLost as lost:
            await self._lost(choice, lost)
        except Differs:
            assert choice.prefill is not None
            choice.prefill.replica.agrees = False
            why = f"its answer does not begin as replica {choice.prefill.replica.number} began it"
            _log.warning("replica %d: %s; that one gives no first tokens from now on", replica.number, why)
            await self._break_off(replica, UpstreamLost(why))
        finally:
            answer.close()

    async def _lost(self, choice: Choice, lost: UpstreamLost) -> None:
        """Raises _Unserved if nothing was shown."""
        if not self._shown:
            self._early_open = False
            raise _Unserved(str(lost)) from None
        await self._go_on(choice, lost)

    def _headers(self, replica: Replica) -> list[tuple[bytes, bytes]]:
        key = replica.api_key
        if key is None:
            return [pair for pair in self._call.headers if pair[0] not in _NOT_PASSED]
        others = [pair for pair in self._call.headers if pair[0] not in _NOT_PASSED | {b"authorization", b"x-api-key"}]
        return [*others, (b"authorization", b"Bearer " + key.encode())]

    async def _pass_on(self, choice: Choice, answer: Answer) -> None:
        kind = answer.header(b"content-type") or b""
        streams = kind.startswith((b"text/event-stream", b"application/x-ndjson"))
        head = self._call.method == b"HEAD"
        if not streams:
            if self._early_rest is not None:
                raise UpstreamLost(f"it answered with status {answer.status}")
            self._early_open = False
        if answer.status in _AGAIN:
            body = b"" if head else await whole(answer)
            raise _Unserved(f"status {answer.status}", (answer, body))
        cached = answer.header(CACHED_TOKENS)
        if cached is not None and cached.isdigit():
            self._metrics.cached.inc(int(cached))
        first = answer.header(FIRST_TOKEN)
        if not streams and first is not None and first.replace(b".", b"", 1).isdigit():
            choice.ticket.told(float(first) / 1000)
        if head:
            # Its length is that of a body that does not come: the connection is not read to the end, and closed.
            await self._start(choice.replica, answer)
            await self._send(_body(b"", more=False))
        elif streams:
            await self._stream(choice, answer)
        else:
            await self._complete(choice.replica, answer)

    async def _complete(self, replica: Replica, answer: Answer) -> None:
        pieces, size = [], 0
        while piece := await answer.read():
            pieces.append(piece)
            size += len(piece)
            if size > _BUFFER:
                await self._start(replica, answer)
                self._shown = True
                await self._send(_body(b"".join(pieces)))
                pieces = []
        body = b"".join(pieces)
        if self._started:
            await self._send(_body(body, more=False))
        else:
            await self._whole_answer(replica, answer, body)

    async def _stream(self, choice: Choice, answer: Answer) -> None:
        comment = self._call.form.comment
        while piece := await answer.read():
            if not self._shown and comment is not None and not piece.replace(comment, b""):
                # A sign of life shows nothing of the answer: another engine may still give it.
                async with self._sending:
                    await self._start(choice.replica, answer)
            elif not self._shown:
                if self._started and _is_error(piece):
                    raise UpstreamLost("it failed before the first token")
                choice.ticket.first_token(time.monotonic())
                self._shown = True
                async with self._sending:
                    await self._start(choice.replica, answer)
            if self._early_rest is not None:
                piece = self._early_rest.feed(piece)
            await self._show(piece if self._kept is None else self._kept.take(piece))
        if self._kept is not None:
            await self._show(self._kept.rest())
        self._shown = True
        await self._end(b"")

    async def _show(self, events: bytes) -> None:
        if events:
            async with self._sending:
                await self._send_events(events)

    async def _send_events(self, events: bytes) -> None:
        self.pieces += events.count(b"\ndata: {") + events.startswith(b"data: {")
        await self._send(_body(events))

    async def _end(self, data: bytes) -> None:
        """The last of a stream, behind what is still being sent."""
        async with self._sending:
            await self._send(_body(data, more=False))

    async def _go_on(self, choice: Choice, lost: UpstreamLost) -> None:
        """The engine was lost after tokens were shown: another one goes on where it stopped, or the stream ends with an
        error."""
        self._metrics.unserved(choice.replica)
        choice.close()
        try:
            if self._kept is not None and await self._continue(choice.replica, self._kept.continuation()):
                return
        except (UpstreamLost, Differs) as error:
            _log.info("a stream of replica %d does not go on elsewhere: %s", choice.replica.number, error)
        await self._break_off(choice.replica, lost)

    async def _continue(self, lost: Replica, rest: Continuation) -> bool:
        """False if there is no engine that certainly gives the same answer. Raises UpstreamLost and Differs."""
        query = replace(self._query, splits=False)
        choice = self._fleet.choose(query, [one for one in self._fleet.replicas if not one.like(lost)])
        if choice is None:
            return False
        try:
            self._metrics.continued.inc()
            call, replica = self._call, choice.replica
            answer = await replica.origin.ask(call.method, call.target, self._headers(replica), call.body)
            try:
                while answer.status == 200 and (piece := await answer.read()):
                    choice.ticket.first_token(time.monotonic())
                    await self._show(rest.feed(piece))
            finally:
                answer.close()
            if answer.status == 200:
                await self._end(b"")
            return answer.status == 200
        finally:
            choice.close()

    async def _start(self, replica: Replica, answer: Answer) -> None:
        if self._started:
            return
        self._started = True
        # The server that the client sees adds its own date.
        headers = [pair for pair in answer.headers if pair[0] not in _HOP and pair[0] != b"date"]
        headers.append((REPLICA, b"%d" % replica.number))
        self._metrics.answered(replica, answer.status)
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})

    async def _whole_answer(self, replica: Replica, answer: Answer, body: bytes) -> None:
        self.pieces += _generated(body)
        answer.headers = [pair for pair in answer.headers if pair[0] != b"content-length"]
        if self._call.method != b"HEAD":
            answer.headers.append((b"content-length", b"%d" % len(body)))
        await self._start(replica, answer)
        self._shown = True
        await self._send(_body(body, more=False))

    async def _fail(self, tried: list[Replica], last: _Unserved | None) -> None:
        """No engine has answered. What the last one said is passed on; otherwise the error is ours."""
        if last is not None and last.answer is not None and not self._started:
            answer, body = last.answer
            await self._whole_answer(tried[-1], answer, body)
            return
        error = self._error(tried, last)
        if not self._started:
            raise error
        self._metrics.broken.inc()
        await self._send(_body(self._call.form.error(error), more=False))

    def _error(self, tried: list[Replica], last: _Unserved | None) -> HttpError:
        if last is None:
            why = "; ".join(f"replica {one.number} {one.why}" for one in self._fleet.replicas if not one.usable)
            message = f"no engine can take the request now ({why or 'all are held back'}): try again later"
        else:
            who = " and ".join(f"replica {one.number}" for one in tried)
            message = f"the request got no answer from {who}: {last}; nothing of it was answered, so try again"
        return HttpError(503, message, kind="server_error", code="no_engine", headers={"retry-after": "2"})

    async def _break_off(self, replica: Replica, why: UpstreamLost) -> None:
        """The engine was lost after tokens were shown, and no second answer can be joined to the first."""
        self._metrics.broken.inc()
        if isinstance(why, EngineFailed):
            await self._end(why.error.removesuffix(DONE) + DONE)
            return
        error = HttpError(
            502,
            f"replica {replica.number} was lost while it answered: {why}; what was sent is not complete",
            kind="server_error",
            code="engine_lost",
        )
        if not self._call.stream:
            # A length or a format was promised that cannot be kept: the connection ends early.
            raise _Broken
        await self._end(self._call.form.error(error))


class _Broken(Exception):
    """The answer cannot be completed; the server closes the connection, so that the client sees it."""


def _body(data: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


class _Usage(msgspec.Struct):
    completion_tokens: int = 0
    output_tokens: int = 0


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    eval_count: int = 0


_answer_of = msgspec.json.Decoder(_Answer).decode


def _generated(body: bytes) -> int:
    try:
        answer = _answer_of(body)
    except (msgspec.MsgspecError, RecursionError):
        return 0
    usage = answer.usage or _Usage()
    return usage.completion_tokens or usage.output_tokens or answer.eval_count


def _is_error(piece: bytes) -> bool:
    """The first event of a stream is an error."""
    return piece.startswith((b'data: {"error"', b"event: error", b'{"error"'))
