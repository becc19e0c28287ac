"""Admission by waiting prompt tokens."""

from __future__ import annotations

import asyncio

import pytest
from server_fakes import Served, fault, serve_fake

from headrace.config import Config
from headrace.errors import EngineDead, Overloaded
from headrace.server.waiting_tokens import WaitingTokens


def limited(most: int | None, **engine: object) -> Served:
    return serve_fake(Config.model_validate({"server": {"max_waiting_tokens": most}}), **engine)


def waiting(served: Served) -> int:
    total: int = served.app.state.context.waiting.total
    return total


def test_places() -> None:
    tokens = WaitingTokens(10)
    first = tokens.enter(25)
    with pytest.raises(Overloaded, match=r"25 prompt tokens wait .* with 1 more .* the 10 of --max-waiting-tokens"):
        tokens.enter(1)
    first.leave()
    first.leave()
    second, third = tokens.enter(4), tokens.enter(6)
    with pytest.raises(Overloaded):
        tokens.enter(1)
    second.leave()
    third.leave()
    assert tokens.total == 0
    unlimited = WaitingTokens()
    for _ in range(100):
        unlimited.enter(10**6)


def test_a_request_waits_until_its_first_token() -> None:
    served = limited(40, hold=0)

    async def main() -> None:
        first = asyncio.create_task(served.complete(prompt="x" * 30))
        while not served.engine.held:
            await asyncio.sleep(0)
        assert waiting(served) == 31
        refused = await served.complete(prompt="y" * 10)
        assert fault(refused, 503)["code"] == "overloaded"
        assert refused.headers["retry-after-ms"] == "1000"
        message = {"role": "user", "content": "y" * 10}
        other = await served.post("/v1/messages", model="fake/model", max_tokens=1, messages=[message])
        assert other.status_code == 529
        text = (await served.http.get("/metrics")).text
        assert "headrace_waiting_prompt_tokens 31.0" in text
        served.engine.go.set()
        assert (await first).status_code == 200
        assert waiting(served) == 0
        assert (await served.complete(prompt="y" * 10)).status_code == 200

    asyncio.run(main())


def test_one_that_streams_waits_no_longer() -> None:
    served = limited(40, hold=1)

    async def main() -> None:
        first = asyncio.create_task(served.complete(prompt="x" * 30, stream=True))
        while not served.engine.held:
            await asyncio.sleep(0)
        assert waiting(served) == 0
        served.engine.go.set()
        await first

    asyncio.run(main())


def test_every_end_gives_the_place_back() -> None:
    async def main() -> None:
        for engine in ({"fail_after": 0}, {"refuse": EngineDead("gone")}, {"reply": ""}):
            served = limited(40, **engine)
            await served.complete(prompt="x" * 30)
            assert waiting(served) == 0
        served = limited(40, hold=0)
        task = asyncio.create_task(served.complete(prompt="x" * 30))
        while not served.engine.held:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert waiting(served) == 0

    asyncio.run(main())
