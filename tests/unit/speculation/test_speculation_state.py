"""Any order of calls leaves no state behind, and no drafter is disturbed by other sequences."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.speculation.drafter import HostDrafter
from headrace.speculation.loading import BUILT_IN, make
from headrace.speculation.suffix import SuffixDrafter

NAMES = st.sampled_from("abc")
CALL = st.tuples(
    st.sampled_from(["begin", "extend", "extend", "guess", "end", "end and keep"]),
    NAMES,
    st.lists(st.integers(0, 3), max_size=12),
    st.integers(0, 6),
)


def sizes(drafter: object) -> list[int]:
    """The lengths of all tables of a drafter that are named for sequences, in it and in its parts."""
    found = [len(value) for key, value in vars(drafter).items() if key == "_sequences"]
    for part in getattr(drafter, "_drafters", ()):
        found += sizes(part)
    return found


def play(drafter: HostDrafter, calls: list[tuple[str, str, list[int], int]], only: str | None = None) -> list[object]:
    """Make the calls that are allowed, of all sequences or of one. Returns the guesses of the sequence `a`."""
    running, guesses = set[str](), list[object]()
    for call, name, tokens, most in calls:
        if only is not None and name != only:
            continue
        if call == "begin" and name not in running:
            running.add(name)
            drafter.begin(name, ("", name), tokens, tokens[most:])
        elif name not in running:
            continue
        elif call == "extend":
            drafter.extend(name, tokens)
        elif call == "guess":
            guess = drafter.guess(name, most)
            assert len(guess.tokens) == len(guess.survival) <= most
            assert all(0 < after <= before <= 1 for before, after in pairwise([1.0, *guess.survival]))
            guesses += [guess.tokens] if name == "a" else []
        elif call.startswith("end"):
            running.discard(name)
            drafter.end(name, call == "end and keep")
    for name in sorted(running):
        drafter.end(name, keep=False)
    return guesses


@pytest.mark.parametrize("method", ["ngram", "predicted", "suffix"])
@settings(max_examples=60)
@given(calls=st.lists(CALL, max_size=40))
def test_no_order_of_calls_leaves_state_behind(method: str, calls: list[tuple[str, str, list[int], int]]) -> None:
    assert method in BUILT_IN
    drafter = make(method)
    play(drafter, calls)
    assert sum(sizes(drafter)) == 0
    assert sizes(drafter)


@pytest.mark.parametrize("method", ["ngram", "predicted"])
@settings(max_examples=60)
@given(calls=st.lists(CALL, max_size=40))
def test_other_sequences_change_no_token_of_a_guess(method: str, calls: list[tuple[str, str, list[int], int]]) -> None:
    assert play(make(method), calls) == play(make(method), calls, only="a")


@settings(max_examples=60)
@given(calls=st.lists(CALL, max_size=40))
def test_other_namespaces_change_no_token_of_a_guess(calls: list[tuple[str, str, list[int], int]]) -> None:
    assert play(SuffixDrafter(), calls) == play(SuffixDrafter(), calls, only="a")


def test_many_sequences_keep_a_bounded_number_of_tokens() -> None:
    drafter = SuffixDrafter(kept=400)
    for at in range(300):
        drafter.begin("s", ("", str(at % 5)), [1, 2, 3])
        drafter.extend("s", [at + step for step in range(at % 90)])
        drafter.end("s", keep=True)
        assert len(drafter._answers) <= 400
    assert sum(len(part.indices) for part in drafter._answers._parts) <= 4 * 5
