"""Many prompts as one call: order, places, and one prompt's error."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest

from headrace.client.api import EngineClient, GenerateRequest, Output
from headrace.client.batch import SequenceLimiter, answer_all
from headrace.errors import EngineDead, InvalidRequest, Overloaded
from headrace.progress import generating_bar
from headrace.structured_outputs import StructuredOutputs
from headrace.types import SamplingParams


@dataclass
class Fake:
    limit: int = 4
    wrong: dict[str, Exception] = field(default_factory=dict)
    inside: int = 0
    most: int = 0

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
        self.inside += request.params.n
        self.most = max(self.most, self.inside)
        try:
            if self.inside > self.limit:
                raise Overloaded("full")
            # Later ones are quicker.
            for _ in range(20 - int(request.id) % 20):
                await asyncio.sleep(0)
            if request.id in self.wrong:
                raise self.wrong[request.id]
            for index in range(request.params.n):
                yield Output(index, request.id, [int(request.id)], finish_reason="length")
        finally:
            self.inside -= request.params.n


def run(fake: Fake, count: int = 50, n: int = 1, tell: Any = None) -> Any:
    requests = [GenerateRequest(str(i), (1,), SamplingParams(n=n)) for i in range(count)]
    return asyncio.run(answer_all(cast(EngineClient, fake), requests, SequenceLimiter(fake.limit), tell))


@pytest.mark.parametrize("n", [1, 3])
def test_thousands_of_prompts_come_in_order_and_never_overfill(n: int) -> None:
    fake = Fake()
    heard: list[int] = []
    answers = run(fake, 3000, n, heard.append)
    assert [[choice.text for choice in one.outputs] for one in answers] == [[str(i)] * n for i in range(3000)]
    assert fake.most == fake.limit - fake.limit % n
    assert heard == [n] * 3000


def test_one_error_leaves_the_other_answers() -> None:
    answers = run(Fake(wrong={"7": Overloaded("one went wrong")}))
    (wrong,) = answers[7].outputs
    assert (wrong.finish_reason, wrong.error) == ("error", "one went wrong")
    assert all(one.outputs[0].text == str(i) for i, one in enumerate(answers) if i != 7)


def test_parsed_values_are_those_of_complete_texts() -> None:
    texts = {"0": ("[1]", "stop"), "1": ("[1", "length"), "2": ("[", "stop"), "3": ("[2]", "error")}

    class Texts(Fake):
        async def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
            text, reason = texts[request.id]
            yield Output(0, text, [1], finish_reason=reason)

    params = SamplingParams(structured_outputs=StructuredOutputs(json=list[int]))
    requests = [GenerateRequest(name, (1,), params) for name in texts]
    answers = asyncio.run(answer_all(cast(EngineClient, Texts()), requests, SequenceLimiter(4)))
    assert [one.outputs[0].parsed for one in answers] == [[1], None, None, None]
    assert [bool(one.outputs[0].error) for one in answers] == [False, False, True, False]
    assert "no value of the type" in str(answers[2].outputs[0].error)


def test_a_constraint_that_cannot_be_enforced_is_the_callers_error() -> None:
    fake = Fake(wrong={"7": InvalidRequest("cannot be compiled", "structured_outputs.regex")})
    with pytest.raises(InvalidRequest, match=r"prompts\[7\]: cannot be compiled"):
        run(fake)
    assert fake.inside == 0
    with pytest.raises(InvalidRequest, match=r"^cannot be compiled"):
        run(Fake(wrong={"0": InvalidRequest("cannot be compiled")}), 1)


def test_a_request_that_contradicts_itself_is_the_callers_error() -> None:
    class Bans(Fake):
        async def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
            own = request.id == "3"
            yield Output(0, finish_reason="error", error="no token is left" if own else "a fault", request_fault=own)

    with pytest.raises(InvalidRequest, match=r"prompts\[3\]: no token is left") as caught:
        run(Bans(), 5)
    assert caught.value.code == "nothing_to_sample"
    answers = run(Bans(), 3)
    assert [one.outputs[0].error for one in answers] == ["a fault"] * 3


def test_the_end_of_the_engine_is_the_end_of_all() -> None:
    fake = Fake(wrong={"7": EngineDead("gone")})
    with pytest.raises(EngineDead, match="gone"):
        run(fake)
    assert fake.inside == 0


def test_places_of_callers_that_left_are_given_on() -> None:
    async def main() -> None:
        places = SequenceLimiter(2)
        await places.acquire(2)
        waiting = [asyncio.ensure_future(places.acquire(n)) for n in (2, 1, 1)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        places.release(2)
        waiting[1].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert waiting[2].result() == 1
        assert await places.acquire(1) == 1

    asyncio.run(asyncio.wait_for(main(), 60))


def test_kept_places_make_nobody_wait() -> None:
    async def main() -> None:
        places, gone = SequenceLimiter(3), list[str]()
        kept = [places.keep(await places.acquire(1), partial(gone.append, name)) for name in "abc"]
        first, second, third = kept
        assert first is not None
        assert second is not None
        assert third is not None
        assert places.take(third) == 1
        assert await places.acquire(2) == 2
        assert gone == ["a", "b"]
        assert places.take(first) == 0
        places.drop(second)
        waiting = asyncio.ensure_future(places.acquire(1))
        await asyncio.sleep(0)
        assert places.contended
        assert places.keep(1, partial(gone.append, "d")) is None, "someone waits"
        assert await waiting == 1
        places.release(1)
        last = places.keep(2, partial(gone.append, "e"))
        assert last is not None
        places.drop(last)
        assert await places.acquire(3) == 3
        assert gone == ["a", "b"]

    asyncio.run(asyncio.wait_for(main(), 60))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_is_drawn_on_a_terminal_alone() -> None:
    with generating_bar(2, True, io.StringIO()) as tell:
        assert tell is None
    out = Terminal()
    with generating_bar(2, False, out) as tell:
        assert tell is None
    with generating_bar(2, True, out) as tell:
        assert tell is not None
        tell(5)
        tell(6)
    assert "generating (11 tokens)" in out.getvalue()
