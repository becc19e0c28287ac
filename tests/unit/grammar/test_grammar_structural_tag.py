"""Structural tags: free text until a trigger, then what a tag holds; what cannot be enforced is refused by place."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from typing import Any

import pytest
from schema_walk import Walker

from headrace.conformance.grammar import VOCABULARY, allows, read
from headrace.errors import InvalidRequest
from headrace.grammar.llguidance_backend import LlguidanceBackend
from headrace.types import Constraint

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TWO = {
    "structures": [
        {"begin": "<f=one>", "schema": OBJECT, "end": "</f>"},
        {"begin": "<f=two>", "schema": {"enum": [1, "</f>"]}, "end": "</f>"},
        {"begin": "@list", "schema": {"type": "array", "maxItems": 2}, "end": ""},
    ],
    "triggers": ["<f=", "@"],
}
TOKEN = 262
SPECIAL = dataclasses.replace(
    VOCABULARY,
    token_bytes=[*VOCABULARY.token_bytes, b"<t>", b"</t>"],
    special_ids=VOCABULARY.special_ids | {TOKEN, TOKEN + 1},
)


@pytest.fixture(scope="module")
def backend() -> LlguidanceBackend:
    return LlguidanceBackend(VOCABULARY)


def tag(given: Any, **options: Any) -> Constraint:
    return Constraint("structural_tag", json.dumps(given), **options)


def form(given: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": given}


def regex(pattern: str, begin: str = "<t>", end: Any = "</t>") -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": {"type": "regex", "pattern": pattern}, "end": end}


def triggered(*tags: Any, **options: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<t>"], "tags": list(tags), **options}


DIGITS = regex("[0-9]+")
ANY = {"type": "any_text"}
CASES: list[tuple[Any, list[str], list[str]]] = [
    (
        TWO,
        ["", "text\n<f", '<f=one>{"a": 1}</f>', 'a <f=two>"</f>"</f> b @list[1] <f=two>1</f>'],
        ["<f=", "x <f=on", "<f=three>", '<f=one>{"a": "x"}</f>', "<f=two>2</f>", "<f=two>1", "a@b", "@list[1, 2, 3]"],
    ),
    ({"type": "structural_tag", **TWO}, ["a", "<f=two>1</f>"], ["<f=two>1"]),
    (form({"type": "const_string", "value": 'a"/\\'}), ['a"/\\'], ["", "a"]),
    (form(triggered(DIGITS)), ["", "a<t>1</t>b<t>22</t>"], ["<t>", "<t>a</t>", "<t>1"]),
    (form(triggered(DIGITS, at_least_one=True)), ["<t>1</t>", "a<t>1</t>b<t>1</t>c"], ["", "a", "<t>"]),
    (form(triggered(DIGITS, stop_after_first=True)), ["a", "a<t>1</t>"], ["<t>1</t>b", "<t>1</t><t>1</t>"]),
    (form(triggered(DIGITS, stop_after_first=True, at_least_one=True)), ["a<t>1</t>"], ["", "a", "<t>1</t>b"]),
    (form(triggered(regex(".*", end=["</t>", "!"]))), ["<t>a!b", "<t>a</t>", "<t></t>!"], ["<t>a"]),
    (form(triggered(regex(r"a/b\/[/]"))), ["<t>a/b//</t>"], ["<t>a</t>"]),
    (
        form({"type": "sequence", "elements": [
            {"type": "tag", "begin": "<r>", "content": ANY, "end": "</r>"}, triggered(DIGITS)]}),
        ["<r></r>", "<r>x<t>y</r>z<t>1</t>", "<r>a</r></r>"],
        ["x", "<r>x", "<r></r><t>y</t>"],
    ),
    (form({"type": "or", "elements": [DIGITS, {"type": "const_string", "value": "no"}]}), ["no", "<t>7</t>"], ["n"]),
    (
        form({"type": "tag", "begin": "<r>", "content": triggered(DIGITS), "end": "</r>"}),
        ["<r></r>", "<r>a<t>1</t>b</r>"],
        ["<r>", "<r><t></r>", "<r></r>a"],
    ),
    (
        form({"type": "tags_with_separator", "tags": [DIGITS], "separator": ", "}),
        ["", "<t>1</t>", "<t>1</t>, <t>2</t>"],
        ["a", "<t>1</t>, ", "<t>1</t><t>2</t>"],
    ),
    (
        form({"type": "tags_with_separator", "tags": [DIGITS], "separator": "", "at_least_one": True}),
        ["<t>1</t>", "<t>1</t><t>2</t>"],
        [""],
    ),
    (
        form({"type": "tags_with_separator", "tags": [DIGITS], "separator": "", "stop_after_first": True}),
        ["", "<t>1</t>"],
        ["<t>1</t><t>2</t>"],
    ),
    (form(ANY), ["", "a\n"], []),
    (form({"type": "json_schema", "json_schema": True}), ["1", "{}"], ["", "a"]),
]  # fmt: skip


@pytest.mark.parametrize(("given", "complete", "others"), CASES, ids=lambda value: str(value)[:50])
def test_texts_are_allowed_exactly(
    backend: LlguidanceBackend, given: Any, complete: list[str], others: list[str]
) -> None:
    compiled = backend.compile(tag(given))
    for text in complete:
        matcher = compiled.matcher()
        assert read(matcher, text) is None, text
        assert matcher.accepting, text
    for text in others:
        matcher = compiled.matcher()
        assert read(matcher, text) is not None or not matcher.accepting, text


def test_whitespace_is_that_of_the_request(backend: LlguidanceBackend) -> None:
    compact = backend.compile(tag(TWO, whitespace="compact"))
    assert read(compact.matcher(), '<f=one>{"a":1}</f>') is None
    assert read(compact.matcher(), '<f=one>{"a": 1}</f>') is not None


def one(structure: Any, *triggers: Any) -> Any:
    return {"structures": [structure], "triggers": list(triggers) or ["<t>"]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "must be an object, not list"),
        ({}, "needs `format`, or `structures` and `triggers`"),
        ({"type": "json"}, "has the `type` 'json'"),
        ({"type": "structural_tag", "format": {}, "triggers": []}, "has the field 'triggers'"),
        ({"structures": [], "triggers": ["a"]}, "at `structures`: expected a list that is not empty"),
        (one(5), r"at `structures\[0\]`: expected an object, got 5"),
        (one({"begin": 1, "schema": {}, "end": ""}), r"at `structures\[0\].begin`: expected a text, got 1"),
        (one({"begin": "<t>", "end": ""}), r"at `structures\[0\].schema`: expected a JSON schema, got None"),
        (one({"begin": "<t>", "schema": {}}), r"at `structures\[0\].end`: expected a text, got None"),
        (one({"begin": "<t>", "schema": {}, "end": "", "x": 1}), r"at `structures\[0\]`: has the field 'x'"),
        (one({"begin": "<u>", "schema": {}, "end": ""}), r"at `structures\[0\].begin`: '<u>' begins with none of"),
        (one({"begin": "<t>", "schema": {}, "end": ""}, "<t>", ""), "at `triggers`: expected a list of texts"),
        (one({"begin": "<t>", "schema": {}, "end": ""}, "<t>", "<u>"), "at `triggers`: no tag begins with '<u>'"),
        (one({"begin": "<t>", "schema": {}, "end": ""}, "<t>", "t"), "at `triggers`: 't' is a part of '<t>'"),
        (one({"begin": "<t>\ud800", "schema": {}, "end": ""}), r"at `structures\[0\].begin`: has half of a surrogate"),
        (one({"begin": "<t>", "schema": {"not": {}}, "end": ""}), r"at `structures\[0\].schema`, #/not: Unimpl"),
        (one({"begin": "<t>", "schema": {"enum": [2**60]}, "end": ""}), r"`structures\[0\].schema`: .* at #/enum/0"),
        (form(None), "at `format`: expected an object, got None"),
        (form({"type": "grammar", "grammar": "root ::= 'a'"}), "at `format.type`: 'grammar' is not supported; there"),
        (form({"type": ["tag"]}), "at `format.type`"),
        (form({"type": "sequence", "elements": [ANY, DIGITS, ANY, triggered(DIGITS)]}),
         r"at `format.elements\[2\]`: free text needs a fixed text behind it"),
        (form(triggered({**DIGITS, "content": ANY, "end": ""})), r"at `format.tags\[0\].content`: free text needs"),
        (form({**DIGITS, "end": []}), "at `format.end`: expected a text or a list of texts"),
        (form({**DIGITS, "begin": None}), "at `format.begin`: expected a text, got None"),
        (form(triggered(ANY)), r"at `format.tags\[0\]`: expected a tag"),
        (form(triggered(DIGITS, excludes=["x"])), "at `format.excludes`: texts that may not occur"),
        (form(triggered(DIGITS, at_least_one=1)), "at `format.at_least_one`: expected true or false, got 1"),
        (form({"type": "json_schema", "json_schema": {}, "style": "xml"}), "at `format.style`: 'xml'"),
        (form(regex("")), "at `format.content.pattern`: expected a text that is not empty"),
        (form(regex("a\\")), "at `format.content.pattern`: ends with a backslash"),
        (form(regex("(?=a)")), "cannot be compiled"),
        (form({"type": "tag", "begin": "", "content": triggered(DIGITS), "end": "<t>!"}), "trigger '<t>' and the end"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_place(backend: LlguidanceBackend, given: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        backend.compile(tag(given))
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "null", '{"format": ' * 3000])
def test_what_is_no_tag_is_refused(backend: LlguidanceBackend, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"the structural tag (is not valid JSON|must be|is nested too deeply)"):
        backend.compile(Constraint("structural_tag", text))


def test_ends_within_ends_are_bounded(backend: LlguidanceBackend) -> None:
    content: Any = {"type": "regex", "pattern": "a"}
    for _ in range(20):
        content = {"type": "tag", "begin": "<", "content": content, "end": [">", "]"]}
    with pytest.raises(InvalidRequest, match="has more than 5000 parts"):
        backend.compile(tag(form(content)))


def test_control_tokens_stand_where_their_text_is_written() -> None:
    backend = LlguidanceBackend(SPECIAL)
    given = one({"begin": "<t>", "schema": {"enum": [1]}, "end": "</t>"})
    for opened in ([TOKEN], list(b"<t>")):
        for closed in ([TOKEN + 1], list(b"</t>")):
            matcher = backend.compile(tag(given)).matcher()
            assert not allows(matcher, TOKEN + 1), "no control token in free text but the trigger"
            for token in (*b"a<t", ord(" "), *opened):
                assert allows(matcher, token)
                assert matcher.advance(token) is None
            assert not matcher.accepting
            assert not allows(matcher, ord("a"))
            for token in (*b"1", *closed):
                assert allows(matcher, token)
                assert matcher.advance(token) is None
            assert matcher.accepting
    with pytest.raises(InvalidRequest, match="holds '<end>', which ends the output"):
        backend.compile(tag(one({"begin": "<t>", "schema": {}, "end": "<end>"})))


VALUE = {
    "<f=one>": r'\{\s*"a"\s*:\s*-?(0|[1-9][0-9]*)\s*\}\s*</f>',
    "<f=two>": r'(1|"</f>")\s*</f>',
    "@list": r"\[",
}
"""What follows each beginning of `TWO`; of the list its first character, since its items are any JSON."""


def holds(text: str) -> bool:
    """Whether a text keeps to `TWO`, read without a grammar."""
    while (found := re.search("<f=|@", text)) is not None:
        text = text[found.start() :]
        begin = next((one for one in VALUE if text.startswith(one)), "")
        body = text[len(begin) :].lstrip()
        value = re.match(VALUE.get(begin, "$^"), body)
        if value is None:
            return False
        end = value.end()
        if begin == "@list":
            items, end = json.JSONDecoder().raw_decode(body)
            assert len(items) <= 2
        text = body[end:]
    return True


def test_the_reader_of_the_next_test_reads() -> None:
    assert all(map(holds, CASES[0][1]))
    assert not any(map(holds, ["<f=", "a@b", "<f=two>2</f>", "<f=two>1"]))


@pytest.mark.parametrize("seed", range(6))
def test_random_texts_keep_to_the_tags(backend: LlguidanceBackend, seed: int) -> None:
    walker, rng, complete = Walker.over(VOCABULARY), random.Random(seed), 0
    compiled = backend.compile(tag(TWO))
    for start in ("<f=one>", "x@", "<f=tw", "<f=two>1</f>"):
        matcher = compiled.matcher()
        assert read(matcher, start) is None
        text = walker.walk(matcher, rng)
        if text is not None:
            assert holds(start + text)
            complete += 1
    assert complete
