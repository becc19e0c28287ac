"""Priorities of runs: what is sent, and who has none."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from lang_fakes import FakeBackend, FakeServer

from headrace import lang as hl
from headrace.errors import ProgramError


@hl.program
def both(s: hl.State) -> None:
    s.user("Q")
    s.assistant("It is ", hl.gen("answer", max_tokens=3), hl.select("way", ["a", "b"]))


@hl.program
def ask(s: hl.State) -> None:
    s.user("Q")
    s.assistant(hl.gen("answer", max_tokens=3))


class Plans(FakeServer):
    """Notes the plans that it refuses."""

    async def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/programs" and request.method == "POST":
            self.bodies.append(("/v1/programs", json.loads(request.content)))
        return await super().handle(request)


def test_every_request_that_the_model_works_on_has_it() -> None:
    fake = Plans()
    both.run(on=hl.prioritised(fake.on, -3))
    assert {path for path, body in fake.bodies if body.get("priority") == -3} == {
        "/v1/programs",
        "/v1/chat/completions",
        "/v1/completions",
    }
    assert all("priority" not in body for path, body in fake.bodies if path == "/tokenize")
    fake.bodies.clear()
    both.run(on=fake.on)
    assert all("priority" not in body for _, body in fake.bodies)


def test_streams_have_it_too() -> None:
    fake = FakeServer()

    async def run() -> None:
        async for _ in both.astream(on=hl.prioritised(fake.on, 7)):
            pass

    asyncio.run(run())
    assert [body["priority"] for path, body in fake.bodies if path == "/v1/chat/completions"] == [7]


def test_who_has_no_priorities_is_named() -> None:
    with pytest.raises(ProgramError, match=r"test_lang_priority.py:\d+: gen 'answer': .*no server whose requests"):
        ask.run(on=hl.prioritised(FakeServer(owner="someone").on, 1))
    with pytest.raises(ProgramError, match="FakeBackend has no priority"):
        both.run(on=hl.prioritised(FakeBackend(), 1))


@pytest.mark.parametrize("wrong", [True, 1.5, "high", 2**31, None])
def test_a_priority_is_a_whole_number(wrong: Any) -> None:
    with pytest.raises(ProgramError, match="a priority is a whole number"):
        hl.prioritised("http://fake", wrong)
