"""Programs on a real server: the tokens of the requests one by one, and nothing left when a program ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from server_harness import Server, make_model, running, until

from headrace import lang as hl
from headrace.errors import ProgramError


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("tiny")
    make_model(directory)
    with running(directory) as server:
        yield server


def idle(server: Server) -> bool:
    figures = server.figures()
    held = figures['headrace_kv_blocks{state="held"}']
    return (held, figures["headrace_requests_running"], figures["headrace_requests_waiting"]) == (0, 0, 0)


# Letters alone: a text of other bytes would not come back as the same tokens from the requests one by one.
@hl.program
def agent(s: hl.State, question: str) -> Any:
    s.system("Use tools.")
    s.user(question)
    with hl.for_(2) as turn:
        with s.assistant():
            s.text("Thought: ")
            s.gen("thought", max_tokens=20, regex="[a-z]{3,12}")
            s.text("\nAction: ")
            s.select("action", ["find", "look up", "end"])
        s.user("Seen: ", hl.call(look, thing=s["thought"], turn=turn).to_text())
    with s.fork(3) as branch:
        branch.assistant("Answer ", branch.index, ": ", hl.gen("answer", max_tokens=20, regex="[a-z]{9}"))
    return branch["answer"]


def look(thing: str, turn: int) -> str:
    return f"{len(thing)} letters in turn {turn}"


def address(server: Server) -> str:
    return str(server.http.base_url)


def test_the_plan_gives_what_its_requests_give(served: Server) -> None:
    there = agent.run("Where?", on=address(served), seed=11)
    here = agent.run("Where?", on=hl.server(address(served), plans=False), seed=11)
    assert there.outputs == here.outputs
    assert there.messages == here.messages
    assert [node.scores for node in there.nodes] == [node.scores for node in here.nodes]
    assert there.usage.encoded_tokens < here.usage.encoded_tokens / 2
    until(lambda: idle(served))


def test_events_of_a_stream(served: Server) -> None:
    async def run() -> list[hl.RunEvent]:
        return [event async for event in agent.astream("Where?", on=address(served), seed=11)]

    events = asyncio.run(run())
    result = events[-1].result
    assert result is not None
    for index in range(3):
        said = "".join(
            one.text for one in events if one.kind == "text" and one.name == "answer" and one.path == (index,)
        )
        assert said == result["result"][index]


def test_a_tool_that_fails_ends_the_program(served: Server) -> None:
    def fails(thing: str, turn: int) -> str:
        raise ValueError("nothing there")

    with pytest.raises(
        ProgramError, match=r"test_programs_http\.py:\d+: call 'look' in branch or pass 0: .*nothing there"
    ):
        agent.run("Where?", on=address(served), tools={"look": fails})
    until(lambda: idle(served))


@pytest.mark.parametrize("events", [1, 4, 15])
def test_a_disconnect_frees_everything(served: Server, events: int) -> None:
    async def run() -> None:
        async with aclosing(agent.astream("Where?", on=address(served), seed=events)) as stream:  # type: ignore[type-var]
            for _ in range(events):
                await anext(stream)

    asyncio.run(run())
    until(lambda: idle(served))
    assert served.http.get("/v1/programs").json()["running"] == 0
