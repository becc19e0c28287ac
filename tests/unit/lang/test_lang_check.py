"""Plans that must be refused, within a second and with the node named; and what `check` reports of others."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace import lang as hl
from headrace.errors import ProgramError
from headrace.lang.constraint_faults import schema_fault

Document = dict[str, Any]


def lit(value: Any) -> Document:
    return {"kind": "lit", "value": value}


def ref(number: int) -> Document:
    return {"kind": "ref", "id": number}


def text(state: int, out: int, *parts: Document) -> Document:
    return {"op": "text", "state": ref(state), "parts": list(parts), "out": out}


def gen(state: int, out: int, **fields: Any) -> Document:
    sampling = fields.pop("sampling", {"max_tokens": 5})
    return {
        **{"op": "gen", "state": ref(state), "name": "g", "out_state": out, "out": out + 1, "sampling": sampling},
        **fields,
    }


def region(args: list[int], ops: list[Document], *yields: Document) -> Document:
    return {"args": args, "ops": ops, "yields": list(yields)}


def plan(ops: list[Document], end: int = 0, **fields: Any) -> Document:
    return {
        **{"format": "headrace.plan", "version": [1, 0], "name": "p", "inputs": [], "outputs": {}},
        "body": region([0], ops, ref(end)),
        **fields,
    }


def fork(most: int, body: Document | None = None, over: Any = 2) -> Document:
    empty = region([901, 902, 903], [])
    return {"op": "fork", "state": ref(0), "over": lit(over), "max": most, "body": body or empty, "outs": []}


def loop(most: int, cond: bool = True, ops: list[Document] | None = None) -> Document:
    return {
        **{"op": "while", "init": [], "cond": region([], [], lit(cond)), "max": most, "outs": []},
        "body": region([], ops or []),
    }


def nested(depth: int) -> Document:
    inner: list[Document] = []
    for _ in range(depth):
        inner = [{"op": "if", "cond": lit(True), "then": region([], inner), "orelse": region([], []), "outs": []}]
    return plan(inner)


def nested_loops(depth: int) -> Document:
    inner: list[Document] = []
    for _ in range(depth):
        inner = [loop(1000, True, inner)]
    return plan(inner)


HOSTILE: dict[str, tuple[Callable[[], Document], str, str]] = {
    "branches of one fork": (lambda: plan([fork(10**5)]), "body.ops[0]", "at most 128 branches"),
    "many forks": (
        lambda: plan([text(0, 1, lit("a")), *[fork(2)] * (5 * 10**4)]),
        "body.ops[10000]",
        "10000 operations",
    ),
    "branches of branches": (
        lambda: plan([fork(100, region([1, 2, 3], [fork(100)]))]),
        "body.ops[0]",
        "4096 branches may run at once",
    ),
    "a loop without an end": (lambda: plan([loop(2**31 - 1)]), "body.ops[0]", "at most 10000 passes"),
    "loops in loops": (lambda: nested_loops(4), "body.ops[0]", "10000000 operations"),
    "a large constant": (lambda: plan([text(0, 1, lit("x" * 10**7))], 1), "body.ops[0]", "1048576 characters"),
    "a large list": (lambda: plan([text(0, 1, lit([0] * 2 * 10**6))], 1), "body.ops[0]", "1048576 characters"),
    "many constants": (
        lambda: plan([text(i, i + 1, lit("x" * 10**6)) for i in range(12)], 12),
        "body.ops[8]",
        "8388608 characters",
    ),
    "a large schema": (
        lambda: plan([gen(0, 1, constraint={"json": {"title": "x" * 2**21}})], 1),
        "body.ops[0]",
        "1048576 characters",
    ),
    "many operands": (lambda: plan([text(0, 1, *[lit("")] * 10**5)], 1), "body.ops[0]", "10000 operands"),
    "many yields": (lambda: plan([], body=region([0], [], *[ref(0)] * 10**5)), "body", "10000 operands"),
    "many inputs": (
        lambda: plan([], inputs=[{"name": str(i), "id": i + 1} for i in range(20_000)]),
        "inputs",
        "10000 operands",
    ),
    "a cycle": (lambda: plan([text(2, 1, lit("a")), text(1, 2, lit("b"))], 2), "body.ops[0]", "unbound"),
    "an operation on itself": (lambda: plan([text(1, 1, lit("a"))], 1), "body.ops[0]", "unbound"),
    "two definitions": (lambda: plan([text(0, 1), text(1, 1)], 1), "body.ops[1]", "defined twice"),
    "deep nesting": (lambda: nested(40), "body.ops[0].then.ops[0]", "32 deep"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_plans_are_refused_with_their_node(name: str) -> None:
    make, node, message = HOSTILE[name]
    with pytest.raises(ProgramError, match=message) as caught:
        hl.load_plan(json.dumps(make()))
    assert str(caught.value).startswith(node)


@pytest.mark.parametrize(
    ("document", "place", "message"),
    [
        (b"", "$", "not JSON"),
        (b"\xff", "$", "not JSON"),
        (b"[" * 10**5, "$", "not a plan|not JSON|deeply"),
        (b"[]", "$", "not a plan: Expected `object`"),
        (b" " * (17 << 20), "$", "at most"),
        (b'{"a":[' + b"[]," * 2 * 10**6 + b"[]]}", "$", "lists and objects"),
        (json.dumps({**plan([]), "version": [2, 0]}), "$.version", "version 2.0 is not supported"),
        (json.dumps({**plan([]), "format": "other"}), "$.format", "Invalid enum value"),
        (json.dumps({**plan([]), "extra": 1}), "$", "unknown field `extra`"),
        (json.dumps(plan([{"op": "eval", "code": "1"}])), "$.body.ops[0].op", "Invalid value 'eval'"),
        (json.dumps(plan([{"op": "text", "state": ref(0)}])), "$.body.ops[0]", "missing required field"),
        (json.dumps(plan([text(0, -1)])), "$.body.ops[0].out", ">= 0"),
        (json.dumps(plan([{**fork(3), "max": "many"}])), "$.body.ops[0].max", "Expected `int`"),
    ],
)
def test_malformed_documents_are_refused_with_their_place(document: bytes | str, place: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message) as caught:
        hl.load_plan(document)
    assert caught.value.node == place


def test_a_document_nested_without_end_is_refused() -> None:
    inner = '{"op":"if","cond":{"kind":"lit","value":true},"outs":[],"orelse":{"args":[],"ops":[],"yields":[]},"then":'
    region_head = '{"args":[],"yields":[],"ops":['
    document = json.dumps(plan([])).replace('"ops": []', '"ops": [' + (inner + region_head) * 10**4)
    with pytest.raises(ProgramError):
        hl.load_plan(document)


WRONG: dict[str, tuple[Document, str]] = {
    "an unknown operator": (plan([{"op": "expr", "fn": "eval", "args": [], "out": 1}]), "no operator 'eval'"),
    "wrong operands": (
        plan([{"op": "expr", "fn": "strip", "args": [lit(1)], "out": 1}]),
        "`strip` takes text, got int",
    ),
    "a state as operand": (plan([{"op": "expr", "fn": "const", "args": [ref(0)], "out": 1}]), "takes any, got state"),
    "a state as text": (plan([text(0, 1, ref(0))], 1), "a state is no text"),
    "a text as state": (
        plan([{"op": "expr", "fn": "const", "args": [lit("x")], "out": 1}, text(1, 2)]),
        "is text, not a state",
    ),
    "generation in a user's message": (
        plan([{"op": "role_begin", "state": ref(0), "role": "user", "out": 1}, gen(1, 2)], 2),
        "the model writes only the assistant's",
    ),
    "an open message": (
        plan([{"op": "role_begin", "state": ref(0), "role": "user", "out": 1}], 1),
        "the user message is not ended",
    ),
    "an end without a beginning": (plan([{"op": "role_end", "state": ref(0), "out": 1}], 1), "no message is open"),
    "a state as output": (plan([], outputs={"x": ref(0)}), "a state is no output"),
    "no state at the end": (plan([], body=region([0], [])), "yields the program's state"),
    "an unbound output": (plan([], outputs={"x": ref(7)}), "unbound"),
    "a value of a block behind it": (
        plan(
            [
                {
                    **{"op": "if", "cond": lit(True), "orelse": region([], []), "outs": []},
                    "then": region([], [{"op": "expr", "fn": "const", "args": [lit(1)], "out": 5}]),
                }
            ],
            outputs={"x": ref(5)},
        ),
        "outside of its block",
    ),
    "no sampling parameter": (plan([gen(0, 1, sampling={"max_tokens": 1, "heat": 3})], 1), "no argument `heat`"),
    "no bound of tokens": (plan([gen(0, 1, sampling={})], 1), "upper bound of tokens"),
    "a bad constraint": (plan([gen(0, 1, constraint={"regexp": "a"})], 1), "no field 'regexp'"),
    "a constraint that nothing meets": (
        plan([gen(0, 1, constraint={"json": {"minimum": 3, "maximum": 2}}, type="json")], 1),
        "no text meets the constraint: \\$: `minimum` 3 is above `maximum` 2",
    ),
    "no room for a constraint": (
        plan([gen(0, 1, constraint={"choice": ["a"]}, sampling={"max_tokens": 0})], 1),
        "no text of 0 tokens",
    ),
    "a typed value without constraint": (plan([gen(0, 1, type="int")], 1), "needs a constraint"),
    "more entries than branches": (plan([fork(2, over=3)]), "3 entries, and `max` is 2"),
    "a condition that is no bool": (
        plan([{"op": "require", "cond": lit("yes"), "message": "m"}]),
        "a condition takes bool, got text",
    ),
    "two conditions": (
        plan([{**loop(3), "cond": region([], [], lit(True), lit(True))}]),
        "the condition of a loop yields one bool",
    ),
    "no condition": (plan([{**loop(3), "cond": region([], [])}]), "the condition of a loop yields one bool"),
    "empty choices": (
        plan([{"op": "select", "state": ref(0), "name": "s", "choices": lit([]), "out_state": 1, "out": 2}], 1),
        "none of them empty",
    ),
    "wrong type of input": (plan([], inputs=[{"name": "a", "id": 1, "type": "state"}]), "no type of an input"),
    "two inputs of one name": (
        plan([], inputs=[{"name": "a", "id": 1}, {"name": "a", "id": 2}]),
        "two inputs have the same name",
    ),
    "a default of another type": (
        plan([], inputs=[{"name": "a", "id": 1, "type": "int", "required": False, "default": "x"}]),
        "the default of 'a' is no int",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_plans_are_refused(name: str) -> None:
    document, message = WRONG[name]
    with pytest.raises(ProgramError, match=message) as caught:
        hl.load_plan(json.dumps(document))
    assert str(caught.value).startswith(("body", "outputs", "inputs"))


def test_unreachable_blocks_are_warnings() -> None:
    @hl.program
    def dead(s: hl.State, items: list[str]) -> None:
        with hl.if_(True):
            s.text("always")
        with hl.else_():
            s.text("never")
        with hl.for_(items, max=0):
            s.text("never")
        with hl.while_(lambda: False, max=3):
            s.text("never")
        with hl.while_(lambda: True, max=3):
            s.text("three times")

    report = hl.check(dead.compile())
    assert report.errors == []
    assert [str(one).split(": ")[1] for one in report.problems] == [
        "this block never runs",
        "this block never runs",
        "this loop never runs",
        "this loop ends only at its `max`",
    ]
    assert all(one.at.startswith("test_lang_check.py:") for one in report.problems)


def test_bounds_count_the_longer_branch_and_every_pass() -> None:
    @hl.program
    def work(s: hl.State, yes: bool) -> None:
        s.gen("a", max_tokens=7)
        with hl.if_(yes):
            s.gen("b", max_tokens=100)
        with hl.else_():
            s.gen("b", max_tokens=10)
        with hl.for_(3):
            s.gen("c", max_tokens=20)
        with s.fork(4) as branch:
            branch.gen("d", max_tokens=5)
        s.select("e", ["x", "y"])

    report = hl.check(work.compile())
    assert (report.tokens, report.requests, report.branches) == (7 + 100 + 60 + 20, 10, 4)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (False, "$"),
        ({"enum": []}, "$"),
        ({"enum": ["a"], "type": "integer"}, "$"),
        ({"const": 1, "enum": [2]}, "$"),
        ({"minLength": 5, "maxLength": 2}, "$"),
        ({"properties": {"a": {"minItems": 3, "maxItems": 1}}, "required": ["a"]}, "$.a"),
        ({"allOf": [{}, {"minProperties": 2, "maxProperties": 1}]}, "$.allOf[1]"),
        ({"required": ["a"], "additionalProperties": False}, "$"),
        ({"type": "array", "minItems": 1, "items": False}, "$.items"),
        ({"anyOf": [False, False]}, "$"),
    ],
)
def test_contradictions_in_schemas(schema: Any, place: str) -> None:
    assert str(schema_fault(schema)).startswith(place + ": ")


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"properties": {"a": False}},
        {"enum": [1, "a"], "type": "integer"},
        {"items": False},
        {"enum": [True], "type": ["boolean", "null"]},
        {"required": ["a"], "patternProperties": {"a": {}}, "additionalProperties": False},
        {"required": 3, "properties": 4, "allOf": 5, "anyOf": 6},
        {"required": [[1], {}], "properties": 4, "type": [[]], "enum": [1], "additionalProperties": False},
    ],
)
def test_schemas_that_can_be_met(schema: Any) -> None:
    assert schema_fault(schema) is None


def test_the_schema_of_plans_names_every_operation() -> None:
    found = json.dumps(hl.plan_schema())
    for name in "state text role_begin role_end gen select fork if while for call expr require".split():
        assert f'"{name}"' in found


def test_the_id_depends_on_the_order_of_a_schema() -> None:
    def made(names: list[str]) -> hl.Plan:
        @hl.program
        def one(s: hl.State) -> None:
            s.gen("x", json={"type": "object", "properties": {name: {} for name in names}})

        return one.compile()

    assert hl.plan_id(made(["a", "b"])) == hl.plan_id(made(["a", "b"]))
    assert hl.plan_id(made(["a", "b"])) != hl.plan_id(made(["b", "a"]))
