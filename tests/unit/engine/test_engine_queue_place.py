"""A request that belongs to something older queues as of then."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

from engine_fakes import FakeRunner, in_process, make_engine, make_request

from headrace.client.api import Output
from headrace.engine.wire import Abort, Add, Command
from headrace.errors import NeverFits


def test_older_ones_run_first() -> None:
    ended: list[str] = []

    async def run() -> None:
        async with in_process(make_engine(FakeRunner(1), max_num_seqs=1)) as client:

            async def answer(id: str, **fields: Any) -> list[Output]:
                request = replace(make_request("ab", id, max_tokens=3, ignore_eos=True), **fields)
                found = [one async for one in client.generate(request)]
                ended.append(id)
                return found

            first = asyncio.ensure_future(answer("runs"))
            await asyncio.sleep(0)
            others = [answer(f"new{at}") for at in range(3)] + [answer("late", since=0.0)]
            await asyncio.gather(first, *others)

    asyncio.run(run())
    assert ended.index("late") < ended.index("new0") < ended.index("new1")


def test_what_a_request_extends_is_closed_with_it() -> None:
    """Also if it never takes its place: refused, or left before the engine has it."""

    async def run() -> None:
        sent: list[Command] = []
        engine = make_engine()
        async with in_process(engine) as client:
            send = client._send
            client._send = lambda command: (sent.append(command), send(command))[1]  # type: ignore[assignment]

            async def keep(id: str) -> str:
                request = replace(make_request("ab", id, max_tokens=3, ignore_eos=True), keep=True)
                async for _ in client.generate(request):
                    pass
                (added,) = (one for one in sent if isinstance(one, Add) and one.request.id == id)
                return added.children[0][0]

            async def extend(id: str, extends: str) -> None:
                request = replace(make_request("abcd", id, max_tokens=3), extends=extends)
                async for _ in client.generate(request):
                    pass

            await keep("a")
            await extend("b", "a")
            assert not any(isinstance(one, Abort) for one in sent), "the engine has closed it itself"
            client.release(["a"])
            assert not any(isinstance(one, Abort) for one in sent)

            child = await keep("c")
            task = asyncio.ensure_future(extend("d", "c"))
            while not any(isinstance(one, Add) and one.request.id == "d" for one in sent):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert all(child in one.ids for one in sent if isinstance(one, Abort))

            child = await keep("e")
            add = engine.core.add

            def refuse(requests: Any) -> None:
                raise NeverFits("no room")

            engine.core.add = refuse  # type: ignore[method-assign]
            with contextlib.suppress(NeverFits):
                await extend("f", "e")
            engine.core.add = add  # type: ignore[method-assign]
            assert sent[-1] == Abort([child])
            while (await client.stats()).scheduler.blocks_held:
                await asyncio.sleep(0)

    asyncio.run(run())
