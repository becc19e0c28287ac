"""How a caller states what a request drafts, and the errors for anything else."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.client.speculation_choice import SpeculationChoice, check_method, read_predictions
from headrace.errors import InvalidRequest


def encode(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, SpeculationChoice()),
        (True, SpeculationChoice()),
        (False, SpeculationChoice(max_tokens=0)),
        ({}, SpeculationChoice()),
        ({"method": "ngram", "max_tokens": 3}, SpeculationChoice("ngram", 3)),
        ({"method": None, "max_tokens": 0}, SpeculationChoice(None, 0)),
    ],
)
def test_choices(value: object, expected: SpeculationChoice) -> None:
    assert SpeculationChoice.of(value) == expected


@pytest.mark.parametrize(
    ("value", "param", "match"),
    [
        (1, "speculation", "takes True, False or a mapping of method and max_tokens, got 1"),
        ("ngram", "speculation", "got 'ngram'"),
        ({"tokens": 3}, "speculation", "has no field 'tokens'; there are method and max_tokens"),
        ({"method": 3}, "speculation.method", "takes a text, got 3"),
        ({"max_tokens": -1}, "speculation.max_tokens", "takes a whole number from 0 on, got -1"),
        ({"max_tokens": True}, "speculation.max_tokens", "got True"),
        ({"max_tokens": 1.5}, "speculation.max_tokens", "got 1.5"),
        ({"max_tokens": 2**31}, "speculation.max_tokens", "got 2147483648"),
    ],
)
def test_wrong_choices(value: object, param: str, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match) as caught:
        SpeculationChoice.of(value)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("method", "speculate", "predicted"),
    [
        (None, None, False),
        ("ngram", "ngram", False),
        ("ngram", "ngram", True),
        ("draft", "draft:some/checkpoint", False),
        ("predicted", "ngram", True),
        ("predicted", None, True),
        ("predicted", "predicted", False),
    ],
)
def test_methods_that_are_there(method: str | None, speculate: str | None, predicted: bool) -> None:
    check_method(SpeculationChoice(method), speculate, predicted)


@pytest.mark.parametrize(
    ("method", "speculate", "predicted", "names"),
    [
        ("ngram", None, True, "predicted (for a request with a `prediction`)"),
        ("suffix", "ngram", True, "ngram, predicted (for a request with a `prediction`)"),
        ("ngram", "predicted", True, "predicted"),
        ("", "ngram", False, "ngram, predicted (for a request with a `prediction`)"),
    ],
)
def test_a_method_that_is_not_there(method: str, speculate: str | None, predicted: bool, names: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_method(SpeculationChoice(method), speculate, predicted)
    assert str(caught.value) == f"`speculation.method` {method!r} is not what this engine drafts with: {names}"
    assert caught.value.param == "speculation.method"


@pytest.mark.parametrize("speculate", [None, "ngram"])
def test_drafts_of_a_prediction_need_one(speculate: str | None) -> None:
    with pytest.raises(InvalidRequest, match="'predicted' needs a `prediction`, and this request has none") as caught:
        check_method(SpeculationChoice("predicted"), speculate, False)
    assert caught.value.param == "speculation.method"


def test_an_empty_prediction_gives_no_drafts() -> None:
    alone = SpeculationChoice("predicted", 3)
    assert alone.of_prediction(()) == SpeculationChoice(max_tokens=0)
    assert alone.of_prediction((5,)) == alone
    assert alone.of_prediction(None) == alone
    assert SpeculationChoice("ngram", 3).of_prediction(()) == SpeculationChoice("ngram", 3)


@pytest.mark.parametrize(
    ("predictions", "expected"),
    [
        (None, [None, None]),
        ("ab", [(97, 98), (97, 98)]),
        ("", [(), ()]),
        (["a", None], [(97,), None]),
        ([[], "a"], [(), (97,)]),
        ([[1, 2], np.array([3])], [(1, 2), (3,)]),
    ],
)
def test_predictions(predictions: object, expected: list[tuple[int, ...] | None]) -> None:
    assert read_predictions(predictions, 2, encode) == expected


@pytest.mark.parametrize(
    ("predictions", "param", "match"),
    [
        (5, "predictions", "takes a text or a list, got int"),
        (b"ab", "predictions", "takes a text or a list, got bytes"),
        (["a"], "predictions", "needs one entry a prompt, 2 in all, got 1"),
        ([1, 2], r"predictions[0]", "takes a list of token ids"),
        (["a", [True]], r"predictions[1]", "takes a list of token ids"),
        (["a", b"b"], r"predictions[1]", "takes a list of token ids"),
    ],
)
def test_wrong_predictions(predictions: object, param: str, match: str) -> None:
    with pytest.raises(InvalidRequest, match=match) as caught:
        read_predictions(predictions, 2, encode)
    assert caught.value.param == param
