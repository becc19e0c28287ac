"""Strings of tool calls that stand as they are, without JSON's quotation marks and escapes, as terminals of Lark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import llguidance

from headrace.errors import excerpt
from headrace.grammar.pattern import translated
from headrace.grammar.pattern_anchors import whole
from headrace.grammar.string_formats import RAW_FORMATS

__all__ = ["text_terminal"]

_ANY, _SOME = r"/(.|\n)*/", r"/(.|\n)+/"


def text_terminal(text: Mapping[str, Any]) -> str:
    """The terminal of a text and its end.

    `text`: `pattern` and `format`, `minLength` and `maxLength`, `enum` (texts), each as in a JSON schema and each of
    which may be left out; `end` stands behind the text, and `marker` is the part of `end` that stands nowhere else
    ("": anywhere). Raises ValueError, which begins with the keyword, for what has no such terminal."""
    end, marker, parts = text["end"], text["marker"], list(_limits(text))
    single = marker[:1] not in marker[1:]
    if marker and single:
        parts.append(f"/{_without(marker)}/")
    within = " & ".join(parts)
    if not marker or single:
        return f"({within}) {_quoted(end)}" if end else within
    before, _, behind = end.partition(marker)
    ended = f"(({within}) {_quoted(before + marker)}) & ~({_ANY} {_quoted(marker)} {_SOME})"
    return f"({ended}) {_quoted(behind)}" if behind else ended


def _limits(text: Mapping[str, Any]) -> Iterator[str]:
    if text.get("pattern") is not None:
        yield _regex(_pattern(text["pattern"]))
    if text.get("format") is not None:
        form = text["format"]
        if not isinstance(form, str) or form not in RAW_FORMATS:
            raise ValueError(f"`format`: {excerpt(form, 40)} is not supported; there are {', '.join(RAW_FORMATS)}")
        yield _regex(whole(RAW_FORMATS[form]))
    if "enum" in text:
        yield f"({' | '.join(map(_quoted, text['enum']))})"
    least, most = _length(text, "minLength"), _length(text, "maxLength")
    if least or most is not None:
        yield f"/(.|\\n){{{least or 0},{'' if most is None else most}}}/"


def _pattern(pattern: Any) -> str:
    if not isinstance(pattern, str):
        raise ValueError(f"`pattern`: {excerpt(pattern, 40)} is no text")
    try:
        return whole(translated(pattern, in_json=False))
    except ValueError as error:
        raise ValueError(f"`pattern`: {error}") from None


def _without(marker: str) -> str:
    """An expression for the texts that do not hold the marker, whose first character stands in it once.

    The complement of those that hold it is the same set, but beside a length the library needs time for each character
    of it to see that a text can still end: a step runs into its limit at some hundred characters."""
    first, behind = _character(marker[0]), ""
    for char in reversed(marker[1:]):
        # Behind a part of the marker: nothing, what does not continue it, or its next character and so on.
        follows = f"|{_character(char)}{behind}" if behind else ""
        behind = f"(?:|[^{first}{_character(char)}][^{first}]*{follows})"
    return f"[^{first}]*" + (f"(?:{first}{behind})*" if behind else "")


def _length(text: Mapping[str, Any], name: str) -> int | None:
    value = text.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != int(value):
        raise ValueError(f"`{name}`: {excerpt(value, 40)} is no count")
    return int(value)


def _regex(expression: str) -> str:
    # ECMA-262's \d and \w are of ASCII.
    return f"/{llguidance.regex_to_lark(expression, 'dw')}/"


def _character(char: str) -> str:
    return f"\\x{{{ord(char):x}}}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
