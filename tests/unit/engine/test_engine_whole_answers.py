"""Answers that are sent in one piece."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from engine_fakes import expected, in_process, make_engine, make_request

from headrace.client.api import Output
from headrace.engine.whole_answers import WholeAnswers
from headrace.types import Delta


def test_deltas_are_kept_until_the_end() -> None:
    whole = WholeAnswers()
    whole.begin(["a"])
    assert whole.pass_on([Delta("a", [1], cached_tokens=3, first_scheduled=2.0), Delta("b", [7])]) == [Delta("b", [7])]
    assert whole.pass_on([Delta("a", [2])]) == []
    last = Delta("a", [3], finish_reason="stop", stop_token=3)
    assert whole.pass_on([last]) == [
        Delta("a", [1, 2, 3], finish_reason="stop", stop_token=3, cached_tokens=3, first_scheduled=2.0)
    ]
    assert whole.pass_on([Delta("a", [9])]) == [Delta("a", [9])], "it has ended"


def test_an_error_comes_with_what_there_was() -> None:
    whole = WholeAnswers()
    whole.begin(["a", "b"])
    whole.pass_on([Delta("a", [1])])
    whole.forget(["b"])
    (found,) = whole.pass_on([Delta("a", finish_reason="error", error="the device is lost")])
    assert (found.token_ids, found.error) == ([1], "the device is lost")


def test_a_caller_gets_one_piece_or_many_with_the_same_tokens() -> None:
    async def run() -> None:
        async with in_process(make_engine()) as client:

            async def pieces(id: str, whole: bool, **params: object) -> list[Output]:
                request = replace(make_request("ab", id, ignore_eos=True, **params), whole=whole)
                return [one async for one in client.generate(request)]

            (one,) = await pieces("w", True, seed=3)
            many = await pieces("p", False, seed=3)
            tokens = expected((97, 98), 16, seed=3)
            assert one.token_ids == [token for piece in many for token in piece.token_ids] == tokens
            assert one.text == "".join(piece.text for piece in many)
            assert (one.finish_reason, one.queue_time is not None) == ("length", True)
            cut = await pieces("s", True, seed=3, stop=(one.text[2],))
            assert "".join(piece.text for piece in cut) == one.text[: one.text.index(one.text[2])]

    asyncio.run(run())
