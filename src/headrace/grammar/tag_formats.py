"""The forms in which clients state structural tags, checked and reduced to a few kinds of parts.

Sources: `structures` with `triggers` as vLLM's `response_format` has it, and xgrammar's `{"type": "structural_tag",
"format": …}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import excerpt

__all__ = ["MOST_PARTS", "Node", "Part", "TagError", "parts_of"]

MOST_PARTS = 5000


class TagError(Exception):
    """What is wrong with a tag, as the end of a sentence that begins with `the structural tag`."""


@dataclass(frozen=True, slots=True)
class Node:
    """A part that is no fixed text."""

    kind: str
    where: str
    given: Mapping[str, Any]
    name: str = ""
    """The field that holds the schema."""
    choices: list[list[Part]] = field(default_factory=list)
    by_trigger: dict[str, list[list[Part]]] = field(default_factory=dict)
    """The tags that begin with each trigger, without it."""


Part = str | Node
"""Fixed text, or a `Node`."""


def parts_of(text: str) -> list[Part]:
    """A structural tag's JSON text as parts that follow each other. Raises TagError."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise TagError(f"is not valid JSON: {error}") from None
    if not isinstance(given, dict):
        raise TagError(f"must be an object, not {type(given).__name__}")
    if given.get("type", "structural_tag") != "structural_tag":
        raise TagError(f"has the `type` {excerpt(given['type'])}: expected structural_tag")
    if "format" in given:
        _known(given, "", ("type", "format"))
        return _flattened(given["format"], "format")
    if "structures" not in given:
        raise TagError("needs `format`, or `structures` and `triggers`")
    _known(given, "", ("type", "structures", "triggers"))
    return [_structures(given)]


def _flattened(given: Any, where: str) -> list[Part]:
    """A format as parts. Raises TagError for what is unknown or of a wrong shape."""
    if not isinstance(given, dict):
        raise TagError(f"at `{where}`: expected an object, got {excerpt(given, 40)}")
    kind = given.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise TagError(f"at `{where}.type`: {excerpt(kind, 40)} is not supported; there are {', '.join(_READERS)}")
    return reader(given, where)


def _const_string(given: Mapping[str, Any], where: str) -> list[Part]:
    _known(given, where, ("type", "value"))
    return [_text(given, "value", where)]


def _json_schema(given: Mapping[str, Any], where: str) -> list[Part]:
    _known(given, where, ("type", "json_schema", "style"))
    if given.get("style", "json") != "json":
        raise TagError(f"at `{where}.style`: {excerpt(given['style'], 40)} is not supported; there is json")
    return [_schema(given, "json_schema", where)]


def _regex(given: Mapping[str, Any], where: str) -> list[Part]:
    _known(given, where, ("type", "pattern", "excludes"))
    pattern = _text(given, "pattern", where, filled=True)
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise TagError(f"at `{where}.pattern`: ends with a backslash, which escapes nothing")
    return [Node("regex", where, given)]


def _any_text(given: Mapping[str, Any], where: str) -> list[Part]:
    _known(given, where, ("type", "excludes"))
    return [Node("any_text", where, given)]


def _sequence(given: Mapping[str, Any], where: str) -> list[Part]:
    _known(given, where, ("type", "elements"))
    return [part for parts in _elements(given, "elements", where, _flattened) for part in parts]


def _or(given: Mapping[str, Any], where: str) -> list[Part]:
    _known(given, where, ("type", "elements"))
    return [Node("or", where, given, choices=_elements(given, "elements", where, _flattened))]


def _tag(given: Any, where: str) -> list[Part]:
    if not isinstance(given, dict) or given.get("type", "tag") != "tag":
        raise TagError(f"at `{where}`: expected a tag, got {excerpt(given, 40)}")
    _known(given, where, ("type", "begin", "content", "end"))
    begin, ends = _text(given, "begin", where), given.get("end")
    content = _flattened(given.get("content"), f"{where}.content")
    if isinstance(ends, str):
        ends = [ends]
    if not isinstance(ends, list) or not ends or not all(isinstance(end, str) for end in ends):
        raise TagError(f"at `{where}.end`: expected a text or a list of texts")
    for end in ends:
        _whole(end, f"{where}.end")
    if len(ends) == 1:
        return [begin, *content, ends[0]]
    return [begin, Node("or", where, given, choices=[[*content, end] for end in ends])]


def _tags_with_separator(given: Mapping[str, Any], where: str) -> list[Part]:
    _known(given, where, ("type", "tags", "separator", "at_least_one", "stop_after_first"))
    _text(given, "separator", where)
    _flags(given, where)
    return [Node("tags_with_separator", where, given, choices=_elements(given, "tags", where, _tag))]


def _triggered_tags(given: Mapping[str, Any], where: str) -> list[Part]:
    _known(given, where, ("type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes"))
    _flags(given, where)
    tags = _elements(given, "tags", where, _tag)
    places = [f"{where}.tags[{at}].begin" for at in range(len(tags))]
    return [_by_trigger(given, where, f"{where}.triggers", tags, places)]


def _structures(given: Mapping[str, Any]) -> Node:
    """The older form: each structure is a tag with a schema."""

    def tag(one: Any, where: str) -> list[Part]:
        if not isinstance(one, dict):
            raise TagError(f"at `{where}`: expected an object, got {excerpt(one, 40)}")
        _known(one, where, ("begin", "schema", "end"))
        return [_text(one, "begin", where), _schema(one, "schema", where), _text(one, "end", where)]

    tags = _elements(given, "structures", "", tag)
    return _by_trigger(given, "structures", "triggers", tags, [f"structures[{at}].begin" for at in range(len(tags))])


def _by_trigger(given: Mapping[str, Any], where: str, listed: str, tags: list[list[Part]], places: list[str]) -> Node:
    triggers = given.get("triggers")
    if not isinstance(triggers, list) or not triggers or not all(isinstance(one, str) and one for one in triggers):
        raise TagError(f"at `{listed}`: expected a list of texts, none of them empty")
    for one in triggers:
        _whole(one, listed)
        wider = next((other for other in triggers if other != one and one in other), None)
        if wider is not None:
            raise TagError(f"at `{listed}`: {excerpt(one)} is a part of {excerpt(wider)}, which is never reached")
    found: dict[str, list[list[Part]]] = {one: [] for one in triggers}
    for (begin, *rest), place in zip(tags, places, strict=True):
        assert isinstance(begin, str)
        trigger = next((one for one in triggers if begin.startswith(one)), None)
        if trigger is None:
            raise TagError(f"at `{place}`: {excerpt(begin)} begins with none of the triggers")
        found[trigger].append([begin[len(trigger) :], *rest])
    unused = next((one for one, bodies in found.items() if not bodies), None)
    if unused is not None:
        raise TagError(f"at `{listed}`: no tag begins with {excerpt(unused)}")
    return Node("triggered_tags", where, given, by_trigger=found)


def _schema(given: Mapping[str, Any], name: str, where: str) -> Node:
    if not isinstance(given.get(name), (dict, bool)):
        raise TagError(f"at `{where}.{name}`: expected a JSON schema, got {excerpt(given.get(name), 40)}")
    return Node("json_schema", where, given, name)


def _elements(
    given: Mapping[str, Any], name: str, where: str, read: Callable[[Any, str], list[Part]]
) -> list[list[Part]]:
    listed = given.get(name)
    place = f"{where}.{name}" if where else name
    if not isinstance(listed, list) or not listed:
        raise TagError(f"at `{place}`: expected a list that is not empty")
    return [read(one, f"{place}[{at}]") for at, one in enumerate(listed)]


def _text(given: Mapping[str, Any], name: str, where: str, filled: bool = False) -> str:
    found = given.get(name)
    if not isinstance(found, str) or (filled and not found):
        what = "a text that is not empty" if filled else "a text"
        raise TagError(f"at `{where}.{name}`: expected {what}, got {excerpt(found, 40)}")
    _whole(found, f"{where}.{name}")
    return found


def _whole(text: str, where: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise TagError(f"at `{where}`: has half of a surrogate pair, which is no character")


def _flags(given: Mapping[str, Any], where: str) -> None:
    for name in ("at_least_one", "stop_after_first"):
        if not isinstance(given.get(name, False), bool):
            raise TagError(f"at `{where}.{name}`: expected true or false, got {excerpt(given[name], 40)}")


def _known(given: Mapping[str, Any], where: str, names: tuple[str, ...]) -> None:
    """Every field is honoured or refused."""
    for name in given:
        if name not in names:
            at = f"at `{where}`: " if where else ""
            raise TagError(
                f"{at}has the field {excerpt(name, 40)}, which is not supported; there are {', '.join(names)}"
            )
    if given.get("excludes"):
        raise TagError(f"at `{where}.excludes`: texts that may not occur are not supported")


_READERS: dict[str, Callable[[Mapping[str, Any], str], list[Part]]] = {
    "const_string": _const_string,
    "json_schema": _json_schema,
    "regex": _regex,
    "any_text": _any_text,
    "sequence": _sequence,
    "or": _or,
    "tag": _tag,
    "triggered_tags": _triggered_tags,
    "tags_with_separator": _tags_with_separator,
}
