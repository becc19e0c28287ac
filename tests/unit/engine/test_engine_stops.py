"""Stop strings: what is held, what is emitted, and that pieces decide rather than batches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.stops import StopFinder, StopMatch


def run(stops: tuple[str, ...], pieces: list[str], include: bool = False) -> tuple[str, str | None]:
    finder, text = StopFinder(stops, include), ""
    for piece in pieces:
        found = finder.push(piece)
        if isinstance(found, StopMatch):
            return text + found.text, found.stop
        text += found
    return text + finder.flush(), None


def test_without_stops_nothing_is_held() -> None:
    assert StopFinder((), False).push("abc") == "abc"


def test_a_stop_over_several_pieces() -> None:
    assert run(("lo w",), ["hel", "lo", " ", "world"]) == ("hel", "lo w")


def test_the_start_of_a_stop_is_held_and_let_go() -> None:
    finder = StopFinder(("</s>",), False)
    assert finder.push("a</") == "a"
    assert finder.push("b") == "</b"


def test_held_text_is_flushed_once() -> None:
    finder = StopFinder(("END",), False)
    assert finder.push("the EN") == "the "
    assert finder.flush() == "EN"
    assert finder.flush() == ""


def test_a_stop_inside_a_piece_drops_the_rest_of_it() -> None:
    assert run(("X",), ["abXcd"]) == ("ab", "X")


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abX")])
def test_include(include: bool, text: str) -> None:
    assert run(("X",), ["a", "bXcd"], include)[0] == text


@pytest.mark.parametrize("order", [("lo wor", "o w"), ("o w", "lo wor")])
def test_within_a_piece_the_first_to_start_wins(order: tuple[str, ...]) -> None:
    assert run(order, ["hello world"]) == ("hel", "lo wor")


@pytest.mark.parametrize("order", [("lo wor", "o w"), ("o w", "lo wor")])
def test_over_pieces_the_first_to_be_complete_wins(order: tuple[str, ...]) -> None:
    assert run(order, list("hello world")) == ("hell", "o w")


def test_of_two_with_the_same_start_the_shorter_wins() -> None:
    assert run(("abc", "ab"), ["xabc"], include=True) == ("xab", "ab")


def test_repeated_starts() -> None:
    assert run(("aab",), ["a", "a", "a", "a", "b", "z"]) == ("aa", "aab")


@settings(derandomize=True, max_examples=300)
@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3).map(tuple),
    st.lists(st.text("abc", max_size=3), max_size=12),
    st.booleans(),
)
def test_against_a_search_of_the_complete_text(stops: tuple[str, ...], pieces: list[str], include: bool) -> None:
    text, expected = "", None
    for piece in pieces:
        text += piece
        found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
        if found:
            at, length, stop = min(found)
            expected = (text[: at + length if include else at], stop)
            break
    assert run(stops, pieces, include) == (expected or (text, None))
