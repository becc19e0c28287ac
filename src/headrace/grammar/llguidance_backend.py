"""Grammars by llguidance: JSON schemas, regular expressions, choices, Lark and GBNF."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import llguidance
import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidRequest
from headrace.grammar.backend import GrammarVocabulary
from headrace.grammar.places import PlacedSchema, with_place
from headrace.grammar.raw_text import text_terminal
from headrace.grammar.schema import checked_schema
from headrace.grammar.structural_tag import tag_grammar
from headrace.types import Constraint

__all__ = ["LlguidanceBackend"]

_MAX_TEXT = 256 << 10
_WHITESPACE = r"[ \n\t]{1,32}"
"""Bounded: unbounded whitespace lets a model spin until max_tokens."""
_LARK_LITERALS = re.compile(r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|\#[^\n]*')
"""Strings, regular expressions and comments of a Lark grammar."""
_OPTION_LINES = re.compile(r"%llguidance(?!\s*\{\s*\})")
"""Options of the library, of which a Lark grammar may give none."""
_UNFORCED = '%llguidance {"no_forcing": true}\n'
"""Of grammars whose terminals are the user's. The library looks ahead as long as one byte alone can follow, which may
be without end: a terminal takes all that it can, so that in `/0+/ /0+/` the second never begins."""
_ENDLESS = "it allows no text that ever ends"
_POSITION = re.compile(r"^at \d+\(\d+\): ")
_NORMAL_STOPS = ("NotStopped", "NoExtension", "EndOfSentence")
_ALWAYS: dict[str, Any] = {
    "lenient": False,
    "coerce_one_of": False,
    # Without `u`: a free key could spell a listed property's name by escapes, and hold any value.
    "json_allowed_escapes": 'nrbtf\\"',
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "flexible": {"whitespace_flexible": True, "whitespace_pattern": _WHITESPACE},
    "compact": {"whitespace_flexible": False},
}


_SCHEMAS = ("json_schema", "json_object", "tool_calls")
"""Constraints that are schemas and what we wrote around them."""


def _limits(items: int, row: int) -> Any:
    """Limits of a step, which the step loop waits for. `items` of the parser, of which one byte may have `row`: under
    an ambiguous grammar their time grows with the square, to some milliseconds under the limits for any grammar."""
    return llguidance.LLParserLimits(
        step_lexer_fuel=100_000,
        step_max_items=items,
        max_items_in_row=row,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


class _Tokens:
    """The vocabulary in the form that `TokenizerWrapper` reads."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        count = len(vocabulary.token_bytes)
        # Columns of the logits beyond the vocabulary: names that nothing can spell, and special.
        padding = [f"<|pad_{i}|>".encode() for i in range(vocabulary.width - count)]
        self.tokens = [*vocabulary.token_bytes, *padding]
        self.special_token_ids = sorted({*vocabulary.special_ids, *range(count, vocabulary.width)})
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id = None
        self._encode = vocabulary.encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


class LlguidanceBackend:
    """A `backend.GrammarBackend`. Takes half a second to make, and one thread to use."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        if not vocabulary.eos_token_ids:
            raise InvalidRequest(
                "this model names no end token, so that output cannot be constrained", "response_format", "unsupported"
            )
        wrapper = llguidance.TokenizerWrapper(_Tokens(vocabulary))
        self._tokenizer = llguidance.LLTokenizer(wrapper, eos_token=list(vocabulary.eos_token_ids))
        self._ends = frozenset(vocabulary.eos_token_ids)
        self._special = {vocabulary.token_bytes[i].decode("utf-8", "replace"): i for i in vocabulary.special_ids}
        self._limits = _limits(items=5_000, row=1_300)
        # Schemas are not ambiguous: a wide object needs many items, and each of them takes little time.
        self._schema_limits = _limits(items=20_000, row=8_000)

    def compile(self, constraint: Constraint) -> _Compiled:
        """Raises InvalidRequest, its `param` left to the caller."""
        try:
            length = len(constraint.text.encode())
        except UnicodeEncodeError:
            raise _refusal("has half of a surrogate pair, which is no character") from None
        if length > _MAX_TEXT:
            raise _refusal(f"is longer than {_MAX_TEXT} bytes")
        limits = self._schema_limits if constraint.kind in _SCHEMAS else self._limits
        matcher = llguidance.LLMatcher(self._tokenizer, self._grammar(constraint), log_level=0, limits=limits)
        if matcher.is_error():
            raise self._uncompiled(constraint, matcher.get_error())
        # Some errors show only here: a schema that refers to itself and nothing else.
        mask = self._mask(matcher)
        if matcher.is_error():
            raise self._uncompiled(constraint, matcher.get_error())
        if not mask.any():
            raise _refusal("allows no text at all")
        return _Compiled(matcher, mask)

    def _uncompiled(self, constraint: Constraint, error: str) -> InvalidRequest:
        """The library's reason, with the place in the schema if it names a keyword."""
        schemas: list[PlacedSchema] = []
        if constraint.kind == "json_schema":
            schemas = [PlacedSchema("", json.loads(constraint.text))]
        elif constraint.kind == "tool_calls":
            schemas = [PlacedSchema("", schema) for schema in json.loads(constraint.text)["schemas"]]
        elif constraint.kind == "structural_tag":
            schemas = tag_grammar(constraint.text, self._special, self._ends).schemas
        return _refusal(f"cannot be compiled: {with_place(_first_line(error), schemas)}")

    def _grammar(self, constraint: Constraint) -> str:
        kind, text = constraint.kind, constraint.text
        try:
            if kind in ("json_schema", "json_object"):
                schema = {"type": "object"} if kind == "json_object" else _checked(text, constraint.strict)
                overrides: Any = {**_ALWAYS, **_OPTIONS[constraint.whitespace]}
                return str(llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=overrides))
            if kind == "regex":
                if (len(text) - len(text.rstrip("\\"))) % 2:
                    raise _refusal("ends with a backslash, which escapes nothing")
                return str(llguidance.LLMatcher.grammar_from_regex(text))
            if kind == "tool_calls":
                given = json.loads(text)
                schemas = [PlacedSchema("", schema) for schema in given["schemas"]]
                lark = "\n".join([given["lark"], *self._terminals(given.get("texts", []))])
                return _with_schemas(lark, schemas, given["strict"], constraint.whitespace)
            if kind == "structural_tag":
                tag = tag_grammar(text, self._special, self._ends)
                lark = tag.lark if tag.closed else _UNFORCED + tag.lark
                return _with_schemas(lark, tag.schemas, [constraint.strict] * len(tag.schemas), constraint.whitespace)
            if kind == "choice":
                return str(llguidance.grammar_from("choice", _choices(text)))
            if kind == "lark":
                _check_lark(text)
            form: Any = kind
            return str(llguidance.grammar_from("lark", _UNFORCED + str(llguidance.grammar_from(form, text))))
        except (ValueError, RuntimeError) as error:
            raise _refusal(f"cannot be compiled: {_first_line(error)}") from None

    def _terminals(self, texts: list[dict[str, Any]]) -> Iterator[str]:
        """Those of a grammar of our own, `PATTERN_0` and so on."""
        for at, text in enumerate(texts):
            terminal = f"PATTERN_{at}: {_terminal(text)}"
            # Alone: within the grammar, one that no text fits would show when the output gets there.
            grammar = str(llguidance.grammar_from("lark", f"start: PATTERN_{at}\n{terminal}"))
            matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._schema_limits)
            if not matcher.is_error():
                self._mask(matcher)
            if matcher.is_error():
                why = _POSITION.sub("", _first_line(matcher.get_error()))
                if why == _ENDLESS:
                    why = "no text fits" + (f" that does not hold {text['marker']}" if text["marker"] else "")
                raise _refusal(f"cannot be compiled: {text['where']}: {why}")
            yield terminal

    def _mask(self, matcher: Any) -> npt.NDArray[np.uint32]:
        mask = np.zeros(-(-self._tokenizer.vocab_size // 32), np.uint32)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return mask


class _Compiled:
    """A `backend.CompiledGrammar`. Its own matcher never moves; sequences get copies, which share what it has
    learnt."""

    def __init__(self, matcher: Any, mask: npt.NDArray[np.uint32]) -> None:
        self._matcher, self._mask = matcher, mask

    def matcher(self) -> _LlguidanceMatcher:
        return _LlguidanceMatcher(self._matcher.deep_copy(), self._mask.copy())


class _LlguidanceMatcher:
    """A `core.matcher.Matcher`."""

    def __init__(self, matcher: Any, mask: npt.NDArray[np.uint32]) -> None:
        self._matcher = matcher
        self.mask = mask
        self.stopped = bool(matcher.is_stopped())

    @property
    def accepting(self) -> bool:
        return bool(self._matcher.is_accepting())

    def copy(self) -> _LlguidanceMatcher:
        return _LlguidanceMatcher(self._matcher.deep_copy(), self.mask.copy())

    def forced(self) -> list[int]:
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return tokens

    def advance(self, token: int) -> str | None:
        matcher = self._matcher
        if not matcher.consume_token(token):
            return _first_line(matcher.get_error() or f"token {token} is not allowed here")
        if matcher.is_stopped():
            self.stopped = True
            reason = str(matcher.stop_reason())
            return None if reason in _NORMAL_STOPS else f"the grammar's limits were hit ({reason})"
        matcher.unsafe_compute_mask_ptr(self.mask.ctypes.data, self.mask.nbytes)
        # In error the mask admits ends alone: unnoticed, it would look like a clean stop.
        return _first_line(matcher.get_error()) if matcher.is_error() else None


def _with_schemas(lark: str, schemas: list[PlacedSchema], strict: list[bool], whitespace: str) -> str:
    """A grammar of our own that refers to schemas, with the schemas checked and added."""
    rules = [lark]
    for at, ((where, schema), held) in enumerate(zip(schemas, strict, strict=True)):
        try:
            checked = _checked(json.dumps(schema), held)
        except InvalidRequest as error:
            raise InvalidRequest(f"`{where}`: {error}" if where else str(error), error.param, error.code) from None
        checked["x-guidance"] = {**_ALWAYS, **_OPTIONS[whitespace]}
        rules.append(f"schema_{at}: %json {json.dumps(checked)}")
    return str(llguidance.grammar_from("lark", "\n".join(rules)))


def _terminal(text: dict[str, Any]) -> str:
    try:
        return text_terminal(text)
    except ValueError as error:
        raise _refusal(f"cannot be compiled: {text['where']}: {error}") from None


def _checked(text: str, strict: bool) -> dict[str, Any]:
    """A schema as an object, from which alone the library takes its options. Raises InvalidRequest."""
    schema = checked_schema(text, strict)
    if schema is False:
        raise _refusal("cannot be compiled: the schema `false` allows no value")
    return {} if schema is True else schema


def _check_lark(text: str) -> None:
    """Refuse what a grammar could say past our own checks, or what the sampler would not honour."""
    if "%json" in text:
        raise _refusal("may not hold %json, which would not be checked: give the schema as JSON schema")
    bare = _LARK_LITERALS.sub("", text)
    if re.search(r"<\S", bare):
        raise _refusal("may not name control tokens")
    if _OPTION_LINES.search(bare):
        raise _refusal("may not set options by %llguidance: leave the line out")
    if re.search(r"\b(temperature|max_tokens)\s*=", bare):
        raise _refusal("may not set temperature or max_tokens: they are parameters of the request")


def _choices(text: str) -> str:
    found = json.loads(text)
    if not isinstance(found, list) or not found or not all(isinstance(item, str) and item for item in found):
        raise ValueError("choices are a list of texts that are not empty")
    if any("\ud800" <= char <= "\udfff" for item in found for char in item):
        raise ValueError("a choice has half of a surrogate pair, which is no character")
    return text


def _refusal(why: str) -> InvalidRequest:
    return InvalidRequest(f"the constraint {why}", "response_format", "invalid_constraint")


def _first_line(error: object) -> str:
    """The library's reason, with what a reader can do about it."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    if not lines:
        return type(error).__name__
    if lines[0].startswith("NoExtensionBias"):
        return _ENDLESS
    if "coerce_one_of" in lines[0]:
        return "oneOf whose alternatives overlap is not supported: use anyOf"
    if lines[0].endswith("regex parse error:"):
        detail = next((line for line in lines if line.startswith("error: ")), "")
        return f"{lines[0][:150]} {detail.removeprefix('error: ')[:150]}".rstrip()
    return lines[0][:200]
