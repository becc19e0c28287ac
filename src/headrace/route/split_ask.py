"""A request that two engines serve at once: one computes its prompt and gives the first token, the other fetches the
blocks as they come, and answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from headrace.deadlines import in_time
from headrace.route.early_token import EarlyToken
from headrace.route.fleet import Choice
from headrace.route.replica import Replica
from headrace.route.router_metrics import RouterMetrics
from headrace.route.split_bodies import decode_body, prefill_body
from headrace.route.upstream import Answer, UpstreamLost

__all__ = ["SplitAsk", "whole"]

_LEAST, _TIMES = 2.0, 5.0
"""Seconds for which another engine may compute a prompt: at least, and in addition times the estimate."""
_REST = 5.0
"""Seconds for which an engine that was late or failed computes no prompts for others."""
_MOST_PATIENCE = 60.0
"""Seconds; an engine refuses to be more patient."""
Headers = Sequence[tuple[bytes, bytes]]
Early = Callable[[Answer, bytes], Awaitable[None]]
"""Shows the first token: the answer that it is from, and the events."""


class SplitAsk:
    """Thread: the event loop's."""

    def __init__(
        self,
        choice: Choice,
        headers: Callable[[Replica], Headers],
        target: bytes,
        body: bytes,
        metrics: RouterMetrics,
        early: Early | None = None,
    ) -> None:
        """`choice` has an engine for the prompt. `body`: of the client's request. `early` is called once, unless the
        first token has no text yet or comes with more than text."""
        assert choice.prefill is not None
        assert choice.prefill.replica.kv_address is not None
        self._choice, self._prefill = choice, choice.prefill
        self._headers, self._target, self._body, self._metrics = headers, target, body, metrics
        self._patience = _LEAST + _TIMES * choice.prefill.ticket.expected
        self._address = choice.prefill.replica.kv_address
        self._early = early
        self._prompt: asyncio.Task[bool] | None = None

    async def answer(self) -> Answer:
        """The answer, once its head has come. If the prompt is not computed elsewhere, the engine that waits for its
        blocks is asked once more, without them. Raises UpstreamLost."""
        self._metrics.splits.inc()
        self._prompt = asyncio.create_task(self._compute())
        body = decode_body(self._body, self._address, min(self._patience, _MOST_PATIENCE))
        asked = asyncio.create_task(self._ask(self._choice.replica, body))
        try:
            await asyncio.wait({asked, self._prompt}, return_when=asyncio.FIRST_COMPLETED)
            if asked.done() or self._prompt.result():
                return await asked
        except BaseException:
            _give_up(asked)
            raise
        _give_up(asked)
        return await self._ask(self._choice.replica, self._body)

    async def close(self) -> None:
        """The answer has ended: so does the other engine's work, if it still goes on."""
        if self._prompt is not None:
            self._prompt.cancel()
            await asyncio.gather(self._prompt, return_exceptions=True)

    async def _compute(self) -> bool:
        """Have the prompt computed; False if that engine was late, failed or refused."""
        replica = self._prefill.replica
        try:
            status = await in_time(self._patience, self._status(replica))
        except (UpstreamLost, asyncio.TimeoutError) as error:
            replica.failed(str(error) or f"a prompt was not computed within {self._patience:.1f} s")
            # It may answer checks of its health, and compute nothing: not every request should wait for it.
            replica.rests_until = time.monotonic() + _REST
            status = 0
        else:
            self._prefill.ticket.first_token(time.monotonic() if status == 200 else None)
        finally:
            self._prefill.ticket.close()
        if status != 200:
            self._metrics.unserved(replica)
        return status == 200

    async def _status(self, replica: Replica) -> int:
        answer = await self._ask(replica, prefill_body(self._body, self._early is not None))
        try:
            if self._early is not None and answer.status == 200:
                return await self._first_token(answer, self._early)
            await whole(answer)
        finally:
            answer.close()
        return answer.status

    async def _first_token(self, answer: Answer, early: Early) -> int:
        """Read a stream; its status, as it would be if it had been known at the start."""
        token = EarlyToken()
        while piece := await answer.read():
            if events := token.feed(piece):
                await early(answer, events)
        return 200 if token.complete else 502

    async def _ask(self, replica: Replica, body: bytes) -> Answer:
        return await replica.origin.ask(b"POST", self._target, self._headers(replica), body)


def _give_up(asked: asyncio.Task[Answer]) -> None:
    """Nobody reads this answer: its engine sees the connection end."""
    if not asked.cancel() and not asked.cancelled() and asked.exception() is None:
        asked.result().close()


async def whole(answer: Answer) -> bytes:
    """The rest of an answer. Raises UpstreamLost."""
    pieces = []
    while piece := await answer.read():
        pieces.append(piece)
    return b"".join(pieces)
