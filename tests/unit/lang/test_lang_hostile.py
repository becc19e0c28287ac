"""What a run refuses while it runs: values that no JSON can hold, and values that grow without bound."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from lang_fakes import FakeBackend

from headrace import lang as hl
from headrace.errors import ProgramError
from headrace.lang import interpreter
from headrace.lang.strict_json import parse_json


@hl.program
def parsed(s: hl.State, text: str) -> Any:
    return text.json()


@pytest.mark.parametrize("text", ["NaN", "[1, -Infinity]", '{"a": 1e999}', '"\\ud800"', '{"\\udc00x": 1}'])
def test_json_that_cannot_be_written_again_is_refused(text: str) -> None:
    with pytest.raises(ProgramError, match=r"`json` of .*(no number of JSON|too large|half of a surrogate pair)"):
        parsed.run(text, on=FakeBackend())


@pytest.mark.parametrize(
    ("text", "value"), [('"\\ud83d\\ude00"', "😀"), ('"\\\\ud800"', "\\ud800"), ("[1.5e3]", [1500.0])]
)
def test_other_json_is_read(text: str, value: Any) -> None:
    assert parse_json(text) == value


def test_a_generated_text_with_half_a_character_is_refused() -> None:
    @hl.program
    def made(s: hl.State) -> None:
        s.text("x")
        s.gen("value", json={"type": "string"}, max_tokens=30)

    with pytest.raises(ProgramError, match="the text is no json"):
        made.run(on=FakeBackend(lambda text: '"\\ud800"'))


def test_what_a_function_returns_can_be_written_again() -> None:
    def broken() -> Any:
        return ["\ud800"]

    def infinite() -> float:
        return float("inf")

    @hl.program
    def calls(s: hl.State, which: hl.Static[bool]) -> Any:
        return hl.call(broken) if which else hl.call(infinite)

    for which in (True, False):
        with pytest.raises(ProgramError, match="returned what is no JSON"):
            calls.run(which, on=FakeBackend())


def test_numbers_stay_finite() -> None:
    @hl.program
    def product(s: hl.State, a: float) -> Any:
        return a * a

    @hl.program
    def read(s: hl.State, a: str) -> Any:
        return a.to_float()

    with pytest.raises(ProgramError, match="`mul` makes inf"):
        product.run(1e300, on=FakeBackend())
    with pytest.raises(ProgramError, match="`float` makes nan"):
        read.run("nan", on=FakeBackend())


@hl.program
def doubled(s: hl.State, n: int) -> Any:
    s["n"] = n
    with hl.for_(2000, max=2000):
        s["n"] = s["n"] + s["n"]


@hl.program
def wrapped(s: hl.State, value: Any, times: int) -> Any:
    s["value"] = value
    with hl.for_(times, max=2000):
        s["value"] = hl.list_of(s["value"])
    s.text(s["value"])


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_whole_numbers_stay_short() -> None:
    with pytest.raises(ProgramError, match="`add` makes a whole number of more than 1024 bits"):
        doubled.run(1, on=FakeBackend())


def test_values_stay_flat() -> None:
    assert wrapped.run(1, 100, on=FakeBackend())["value"] == nested(100)
    with pytest.raises(ProgramError, match=r"`list` makes a value .* deeper than 100"):
        wrapped.run(1, 101, on=FakeBackend())
    with pytest.raises(ProgramError, match=r"`json` makes a value .* deeper than 100"):
        parsed.run("[" * 101 + "]" * 101, on=FakeBackend())
    with pytest.raises(ProgramError, match="input 'value' has more than 100"):
        wrapped.run(nested(500), 1, on=FakeBackend())


def test_constants_and_answers_stay_flat() -> None:
    @hl.program
    def constant(s: hl.State) -> Any:
        return hl.call("tool", value=nested(101))

    @hl.program
    def answer(s: hl.State) -> Any:
        return hl.call("tool")

    with pytest.raises(ProgramError, match="a constant has more than 100"):
        constant.run(on=FakeBackend())
    with pytest.raises(ProgramError, match="the answer has more than 100"):
        answer.run(on=FakeBackend(), tools={"tool": lambda: nested(101)})


@hl.program
def grown(s: hl.State, text: str) -> Any:
    for _ in range(3):
        text = text + text
    return hl.out(**{f"copy_{index}": text for index in range(6)})


def test_outputs_are_bounded_together() -> None:
    assert len(grown.run("x" * 300_000, on=FakeBackend()).outputs) == 6
    with pytest.raises(ProgramError, match="the outputs have more than 16777216"):
        grown.run("x" * 400_000, on=FakeBackend())


def test_arguments_of_a_call_are_bounded() -> None:
    def tool(**many: str) -> int:
        return len(many)

    @hl.program
    def calls(s: hl.State, text: str) -> Any:
        return hl.call("tool", **{f"a{index}": text for index in range(5)})

    assert calls.run("x" * 1000, on=FakeBackend(), tools={"tool": tool})["result"] == 5
    with pytest.raises(ProgramError, match="the arguments have more than 4194304"):
        calls.run("x" * 1_000_000, on=FakeBackend(), tools={"tool": tool})


def test_choices_that_are_made_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "MOST_CHOICES", 3)

    @hl.program
    def choose(s: hl.State, words: str) -> None:
        s.text("x")
        s.select("word", words.split(" "))

    assert choose.run("a b c", on=FakeBackend())["word"] in "abc"
    with pytest.raises(ProgramError, match="at most 3 choices, got 4"):
        choose.run("a b c d", on=FakeBackend())


def test_a_long_operation_runs_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[bool] = []
    evaluate = interpreter.evaluate

    def noted(op: Any, operands: list[Any]) -> Any:
        ran.append(threading.current_thread() is threading.main_thread())
        return evaluate(op, operands)

    monkeypatch.setattr(interpreter, "evaluate", noted)

    @hl.program
    def vote(s: hl.State, votes: Any) -> Any:
        return hl.mode(votes)

    async def run(votes: list[Any]) -> Any:
        return (await vote.arun(votes, on=FakeBackend()))["result"]

    assert asyncio.run(run([1, 1.0, True, True])) is True
    assert asyncio.run(run([[[0] * 70_000], [["x"]], [["x"]]])) == [["x"]]
    assert ran == [True, False]


def test_values_that_grow_without_end_are_an_error() -> None:
    @hl.program
    def text(s: hl.State, x: str) -> None:
        s["x"] = x
        with hl.while_(lambda: True, max=100):
            s["x"] = s["x"] + s["x"]

    @hl.program
    def written(s: hl.State, x: str) -> None:
        s["x"] = hl.list_of(x)
        with hl.while_(lambda: True, max=100):
            s["x"] = hl.list_of(s["x"], s["x"]).to_text().split("~~")

    @hl.program
    def shared(s: hl.State, x: Any) -> None:
        s["x"] = x
        with hl.while_(lambda: True, max=100):
            s["x"] = hl.list_of(s["x"], s["x"]).to_text().json()

    @hl.program
    def conversation(s: hl.State, x: str) -> None:
        with hl.for_(10_000):
            s.text(x)

    for program, given in ((text, "ab"), (written, "ab"), (shared, {"a": "b" * 500})):
        with pytest.raises(ProgramError, match=r"larger than 4194304|more than 4194304"):
            program.run(given, on=FakeBackend())
    with pytest.raises(ProgramError, match="a conversation has at most 16777216 characters"):
        conversation.run("x" * 10**5, on=FakeBackend())


def test_a_loop_without_requests_can_be_cancelled() -> None:
    @hl.program(timeout=0.01)
    def busy(s: hl.State) -> None:
        with hl.for_(10_000), hl.for_(200):
            s["x"] = 1

    with pytest.raises(ProgramError, match=r"ran longer than 0\.01 s"):
        busy.run(on=FakeBackend())
