"""A look into the engine reaches the client, alone and among other commands."""

from __future__ import annotations

import asyncio

import pytest
from engine_fakes import FakeRunner, HeldRunner, in_process, make_engine, make_request

from headrace.client.inquiry import Inquiry
from headrace.engine.wire import Command, GetView, ViewReply, decode_event, encode
from headrace.errors import EngineDead
from headrace.types import StepPlan, StepResult


class SlowRunner(HeldRunner):
    """Takes a tenth of a second for each step until it is released. The loop, which a held step would hold, answers
    between them."""

    def run(self, plan: StepPlan) -> StepResult:
        self.go.wait(0.1)
        return FakeRunner.run(self, plan)


def test_the_view_survives_the_way() -> None:
    engine = make_engine()
    sent = ViewReply(3, engine.core.view())
    assert decode_event(encode(sent)) == sent


def test_a_client_sees_what_runs() -> None:
    async def run() -> None:
        runner = SlowRunner()
        async with in_process(make_engine(runner)) as client:
            assert (await client.view()).scheduler.running == []
            answer = client.generate(make_request("abcd", max_tokens=100))
            await anext(answer)
            view = await client.view()
            (one,) = view.scheduler.running
            assert one.id.startswith("r#")
            assert (one.prompt_tokens, one.max_output_tokens) == (4, 100)
            assert view.stats.scheduler.running == 1
            assert view.now >= one.arrival
            runner.go.set()
            async for _ in answer:
                pass
            assert (await client.view()).scheduler.running == []

    asyncio.run(run())


def test_one_question_serves_all_callers() -> None:
    async def run() -> None:
        sent: list[Command] = []
        asked = Inquiry[str](GetView)
        first, second = asked.ask(sent.append), asked.ask(sent.append)
        assert first is second
        assert sent == [GetView(0)]
        asked.answer("seen")
        assert (await first, asked.last) == ("seen", "seen")
        third = asked.ask(sent.append)
        assert sent[1:] == [GetView(1)]
        asked.fail(EngineDead("gone"))
        assert asked.last is None
        with pytest.raises(EngineDead):
            await third
        asked.answer("late")

    asyncio.run(run())
