"""Every field of `SamplingParams` is converted or refused by its name, and everything else follows the table."""

from __future__ import annotations

import runpy
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.errors import InvalidRequest
from headrace.sampling import DEVICE_ROWS, SAMPLING_FIELDS, SamplingParams
from headrace.server import schemas

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("field", "value", "held"),
    [
        ("stop", "text", ("text",)),
        ("stop", ["a", "b"], ("a", "b")),
        ("stop", {"b", "a"}, ("a", "b")),
        ("stop", None, ()),
        ("stop_token_ids", [1, 2], (1, 2)),
        ("stop_token_ids", {3, 1}, (1, 3)),
        ("stop_token_ids", range(3), (0, 1, 2)),
        ("stop_token_ids", np.array([4, 5]), (4, 5)),
        ("stop_token_ids", [np.int64(7), 8.0], (7, 8)),
        ("allowed_token_ids", np.arange(2, dtype=np.uint8), (0, 1)),
        ("logit_bias", {5: 1, "7": np.float32(0.5)}, ((5, 1.0), (7, 0.5))),
        ("logit_bias", [[5, 1]], ((5, 1.0),)),
        ("logit_bias", None, ()),
        ("seed", np.uint64(2**64 - 1), 2**64 - 1),
        ("seed", -1, 2**64 - 1),
        ("max_tokens", 2.0, 2),
        ("max_tokens", np.array(3), 3),
        ("max_tokens", None, None),
        ("temperature", np.float32(0.5), 0.5),
        ("temperature", 1, 1.0),
        ("temperature", None, 1.0),
        ("top_k", -1, 0),
        ("ignore_eos", np.bool_(True), True),
        ("logprobs", np.int8(2), 2),
    ],
)
def test_values_are_converted(field: str, value: object, held: object) -> None:
    found = getattr(SamplingParams(**{field: value}), field)  # type: ignore[arg-type]
    assert found == held
    assert type(found) is type(held)


WRONG: dict[str, list[Any]] = {
    "whole": [1.5, True, np.bool_(False), "1", b"1", [1], np.array([1, 2]), 10**400, float("inf"), 1j],
    "number": [True, "1", [1.0], float("nan"), np.nan, -np.inf, 10**400, 1j],
    "flag": [1, 0, "true", [True]],
    "texts": [5, b"stop", ["a", 1], ["a", b"b"], {"a": 1}, [["a"]], "", ["a"] * 65],
    "ids": [5, "12", b"12", [1, True], [1.5], ["1"], {1: 2}, np.array([0.5]), np.array([True]), np.zeros((2, 2), int)],
    "biases": [5, "a", {"x": 1}, {1: "a"}, {True: 1}, {1: True}, {1: float("nan")}, [1, 2], {1.5: 1}, {1: 101}],
    "structure": [5, "text", b"a", ["a"], {"jsn": {}}, {}, {"json": {}, "regex": "a"}],
}
CASES = [(name, value) for name, row in SAMPLING_FIELDS.items() for value in WRONG[row.kind]]


@pytest.mark.parametrize(("field", "value"), CASES, ids=str)
def test_other_types_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"^`{field}`") as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.param == field
    assert len(str(caught.value)) < 250


def test_an_error_shows_little_of_a_long_value() -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(stop=[["x" * 10_000]])  # type: ignore[arg-type,list-item]
    assert len(str(caught.value)) < 150


def test_every_field_has_a_row() -> None:
    assert [declared.name for declared in fields(SamplingParams)] == list(SAMPLING_FIELDS)
    assert all(row.doc.endswith(".") for row in SAMPLING_FIELDS.values())


@pytest.mark.parametrize("kind", [schemas.CompletionRequest, schemas.ChatRequest])
def test_the_server_takes_every_parameter(kind: type[msgspec.Struct]) -> None:
    assert SAMPLING_FIELDS.keys() <= set(kind.__struct_fields__)


@pytest.mark.parametrize("name", [n for n, row in SAMPLING_FIELDS.items() if row.kind in ("whole", "number")])
def test_the_server_holds_to_the_range(name: str) -> None:
    row = SAMPLING_FIELDS[name]
    least, most = row.api or (row.least, row.most)
    for bound, beyond in ((least, -1), (most, 1)):
        if bound is None or (bound == least and row.above and row.api is None):
            continue
        for value, fits in ((bound, True), (bound + beyond, False)):
            body = msgspec.json.encode({"prompt": "x", name: value if row.kind == "number" else int(value)})
            try:
                msgspec.json.decode(body, type=schemas.CompletionRequest)
                accepted = True
            except msgspec.ValidationError:
                accepted = False
            assert accepted == fits, (name, value)


def test_neutral_values_are_among_the_trials() -> None:
    assert all(row.neutral in row.trials for row in DEVICE_ROWS.values())


def test_the_reference_is_made_from_the_table() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "sampling_reference.py"))["reference"]()
    assert (ROOT / "docs" / "sampling.md").read_text() == made
