"""The recorded samples under the grammars of tools that they fit, and of tools that they do not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from format_grammars import accepts, matcher
from format_samples import SAMPLES, Sample

from headrace.formats.call_grammar import CallableTool
from headrace.formats.reasoning_forms import REASONING_FORMATS

OTHER_FORMS = {
    "26 harmony preamble": "the recipient before the channel",
    "phi text": "the marker as text",
    "arguments as a string": "",
    "arguments before the name": "",
    "built-in of llama": "a Python call",
    "olmo lines": "calls in lines",
    "no outer tag": "",
    "3 no arguments": "no key `arguments`",
    "a parameter that holds tags": "a text that quotes its own end",
    "a call ends the reasoning": "",
    "kimi k3 without the call's end": "",
    "kimi k3, a value that holds an end": "a text that quotes its own end",
    "cohere xml, flat parameters": "",
    "kimi k3, all arguments as json": "",
    "kimi k3, json without an end": "",
    "gemma without the call's end": "",
    "repeated keys": "",
    "repeated arguments before the name": "",
}
"""Samples that a model may write without a grammar, and that a grammar does not write."""
FITTING = [s for s in SAMPLES if s.calls and s.complete and s.name not in OTHER_FORMS]


def schema_of(value: Any) -> dict[str, Any]:
    """The schema of this value and its like."""
    if isinstance(value, dict):
        members = {key: schema_of(one) for key, one in value.items()}
        return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}
    if isinstance(value, list):
        kinds = [schema_of(one) for one in value]
        return {"type": "array", "items": {"anyOf": kinds} if kinds else {}}
    names = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return {"type": names[type(value)]}


def tools_of(sample: Sample) -> list[CallableTool]:
    return [CallableTool(name, schema_of(json.loads(arguments))) for name, arguments in sample.calls]


def answer_of(sample: Sample) -> str:
    """The text after the reasoning, where a constraint begins, without the token that ends an answer."""
    if sample.reasoning in (None, "harmony"):
        return sample.text.removesuffix("<|call|>")
    (close,) = REASONING_FORMATS[sample.reasoning].closes
    return sample.text.rpartition(close)[2]


def wrong(schema: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The schema with another type for its first value: a list of booleans, which no sample has."""
    assert schema is not None
    first = next(iter(schema["properties"]), None)
    if first is None:
        return schema
    return {**schema, "properties": {**schema["properties"], first: {"type": "array", "items": {"const": True}}}}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("sample", FITTING, ids=lambda sample: sample.name)
def test_samples_are_accepted_for_their_own_tools_alone(sample: Sample, special: bool) -> None:
    assert sample.tools is not None
    name, text, tools = sample.tools, answer_of(sample), tools_of(sample)
    if special and sample.name == "2 hermes two":
        text = text.replace('"</tool_call>"', '"</tool>"')
    assert accepts(matcher(name, special, tools, free_text=True), text, special)
    forced = not sample.content
    assert accepts(matcher(name, special, tools), text.strip(), special) == forced
    renamed = [CallableTool(tool.name + "x", tool.parameters) for tool in tools]
    assert not accepts(matcher(name, special, renamed, free_text=True), text, special)
    changed = [CallableTool(tool.name, wrong(tool.parameters)) for tool in tools]
    if changed != tools:
        assert not accepts(matcher(name, special, changed, free_text=True), text, special)


def test_other_forms_are_samples() -> None:
    assert set(OTHER_FORMS) <= {sample.name for sample in SAMPLES}
