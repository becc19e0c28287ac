"""Programs of `headrace.lang` whose model is a server of ours: it runs them as a whole."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from server_fakes import Served, serve_fake
from test_server_programs import branches, calls, document, talk

from headrace import lang as hl
from headrace.errors import EngineDead, InvalidRequest, ProgramError
from headrace.lang.plan import Plan


def on(served: Served) -> hl.Server:
    return hl.server("http://server", transport=served.http._transport)


def test_a_program_on_a_server_of_ours_is_one_request():
    served = serve_fake()
    found = talk.run("Hi", on=on(served), seed=1)
    assert found.outputs == {"answer": "Hello", "sure": "Hel"}
    assert [node.name for node in found.nodes] == ["answer", "sure"]
    assert found.usage.requests == 2
    assert found.messages[-1] == {"role": "assistant", "content": "I am Hel"}
    assert served.app.state.context.metrics.programs["completed"] == 1
    again = talk.run("Hi", on=hl.server("http://server", plans=False, transport=served.http._transport), seed=1)
    assert again.outputs == found.outputs
    assert served.app.state.context.metrics.programs["completed"] == 1
    seeds = [request.params.seed for request in served.engine.requests]
    assert seeds[:2] == seeds[2:], "the same seeds, wherever the plan runs"


def test_streams_of_a_program_on_a_server():
    async def run() -> list[hl.RunEvent]:
        return [event async for event in branches.astream(on=on(serve_fake()))]

    found = asyncio.run(run())
    assert found[-1].result is not None
    assert found[-1].result["result"] == ["Hell"] * 3
    assert "".join(one.text for one in found if one.path == (1,)) == "Hell"


@pytest.mark.parametrize(
    ("failure", "kind"), [(InvalidRequest("too long", "prompt", "x"), InvalidRequest), (EngineDead("over"), EngineDead)]
)
def test_errors_come_back_as_they_were(failure: Exception, kind: type[Exception]):
    async def run() -> None:
        async for _ in branches.astream(on=on(serve_fake(fail_after=0, failure=failure))):
            pass

    with pytest.raises(kind, match=r"test_server_programs\.py:\d+: gen 'said'"):
        asyncio.run(run())


def test_what_the_server_refuses_is_an_error():
    @hl.program
    def much(s: hl.State) -> None:
        s.text("x")
        s.gen("a", max_tokens=10**7)

    with pytest.raises(ProgramError, match=r"body\.ops\[1\].*a run may generate more than 1000000 tokens"):
        much.run(on=on(serve_fake()))
    with pytest.raises(ProgramError, match="no function 'add' was given"):
        hl.load_plan(msgspec.json.encode(msgspec.convert(document(calls), Plan))).run(on=on(serve_fake()))
