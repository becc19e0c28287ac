"""Grammars by xgrammar, an optional extra (`pip install headrace[xgrammar]`): JSON schemas of the keywords that it
enforces truthfully, plain regular expressions and choices.

xgrammar accepts much that it does not enforce, so every constraint is reduced first (`plain_schema`, `plain_regex`) or
refused. Its masks are computed ahead, when a grammar is compiled: compiling takes longer than with llguidance, and a
mask less time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import InvalidRequest
from headrace.grammar.backend import GrammarVocabulary
from headrace.grammar.plain_regex import plain
from headrace.grammar.plain_schema import plain_schema
from headrace.types import Constraint

__all__ = ["XgrammarBackend"]

_MAX_TEXT = 256 << 10
_WHITESPACE = 32
"""Characters between the parts of JSON: without a bound a model spins until max_tokens."""
_OPTIONS: dict[str, dict[str, Any]] = {
    "flexible": {"any_whitespace": True, "max_whitespace_cnt": _WHITESPACE},
    "compact": {"any_whitespace": False, "separators": (",", ":")},
}
_CONTROL = re.compile(rb"[\x00-\x09\x0b-\x1f]")
_POSITION = re.compile(r"^\[[0-9:]+\] \S+: ")


class XgrammarBackend:
    """A `backend.GrammarBackend`. One thread uses it."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        if not vocabulary.eos_token_ids:
            raise InvalidRequest(
                "this model names no end token, so that output cannot be constrained", "response_format", "unsupported"
            )
        # Late: it imports torch and transformers, which takes seconds.
        import xgrammar

        self._library: Any = xgrammar
        ends = set(vocabulary.eos_token_ids)
        ordinary = set(range(len(vocabulary.token_bytes))) - vocabulary.special_ids - ends
        self._sets = _TokenSets(_bits(ordinary, vocabulary.width), _bits(ends, vocabulary.width))
        # Strings of a limited length take control characters from the library, which JSON has to escape.
        bare = {token for token in ordinary if not _CONTROL.search(vocabulary.token_bytes[token])}
        self._json_sets = self._sets._replace(ordinary=_bits(bare, vocabulary.width))
        # Tokens without text are special to the library: no grammar allows them.
        tokens = [b"" if at in vocabulary.special_ids else raw for at, raw in enumerate(vocabulary.token_bytes)]
        info = xgrammar.TokenizerInfo(
            tokens,
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.width,
            stop_token_ids=list(vocabulary.eos_token_ids),
        )
        # Our own cache is in front, and one thread beside the step loop is enough.
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, constraint: Constraint) -> _Compiled:
        """Raises InvalidRequest, its `param` left to the caller."""
        try:
            length = len(constraint.text.encode())
        except UnicodeEncodeError:
            raise _refusal("has half of a surrogate pair, which is no character") from None
        if length > _MAX_TEXT:
            raise _refusal(f"is longer than {_MAX_TEXT} bytes")
        try:
            compiled = self._compile(constraint)
        except (ValueError, RuntimeError) as error:
            raise _refusal(f"cannot be compiled: {_first_line(error)}") from None
        sets = self._json_sets if constraint.kind in ("json_schema", "json_object") else self._sets
        found = _Compiled(self._library, compiled, sets)
        if not found.matcher().mask.any():
            raise _refusal("allows no text at all")
        return found

    def _compile(self, constraint: Constraint) -> Any:
        compiler, kind, text = self._compiler, constraint.kind, constraint.text
        if kind in ("json_schema", "json_object"):
            schema = '{"type": "object"}' if kind == "json_object" else plain_schema(text, constraint.strict)
            return compiler.compile_json_schema(schema, strict_mode=False, **_OPTIONS[constraint.whitespace])
        if kind == "regex":
            return compiler.compile_regex(plain(text, in_json=False))
        if kind == "choice":
            return compiler.compile_grammar(_choices(text))
        # A mask of an ambiguous GBNF takes minutes, and the library has no limit for it.
        raise _refusal(f"of the kind {kind} is not supported by the grammar backend xgrammar: use llguidance")


class _TokenSets(NamedTuple):
    """Each in the form of a mask."""

    ordinary: npt.NDArray[np.uint32]
    """Tokens with a text."""
    ends: npt.NDArray[np.uint32]


def _bits(tokens: Iterable[int], width: int) -> npt.NDArray[np.uint32]:
    bits = np.zeros(-(-width // 32) * 32, np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view(np.uint32)


class _Compiled:
    """A `backend.CompiledGrammar`."""

    def __init__(self, library: Any, compiled: Any, sets: _TokenSets) -> None:
        self._library, self._compiled, self._sets = library, compiled, sets

    def matcher(self) -> _XgrammarMatcher:
        return _XgrammarMatcher(self._library.GrammarMatcher(self._compiled), self._sets)


class _XgrammarMatcher:
    """A `core.matcher.Matcher`."""

    def __init__(self, matcher: Any, sets: _TokenSets) -> None:
        self._matcher, self._sets = matcher, sets
        self.mask: npt.NDArray[np.uint32] = np.zeros_like(sets.ordinary)
        self._row = self.mask.view(np.int32).reshape(1, -1)
        self.stopped = False
        self._fill()

    @property
    def accepting(self) -> bool:
        return self.stopped or bool(self._matcher.is_completed())

    def copy(self) -> _XgrammarMatcher:
        return _XgrammarMatcher(self._matcher.fork(), self._sets)

    def forced(self) -> list[int]:
        # The library has no tokenizer, so that it cannot tell which tokens of a text the model knows.
        return []

    def advance(self, token: int) -> str | None:
        if self.stopped or not self._matcher.accept_token(token):
            return f"token {token} is not allowed here"
        if self._matcher.is_terminated():
            self.stopped = True
            return None
        self._fill()
        return None if self.stopped or self.mask.any() else "the grammar leads to no complete text"

    def _fill(self) -> None:
        complete = bool(self._matcher.is_completed())
        if self._matcher.fill_next_token_bitmask(self._row):
            # The columns behind the vocabulary are not always clear.
            self.mask &= self._sets.ordinary | self._sets.ends
        else:
            # Every token is allowed, and the mask may be left as it was.
            self.mask[:] = self._sets.ordinary | (self._sets.ends if complete else np.uint32(0))
        self.stopped = complete and not (self.mask & self._sets.ordinary).any()


def _choices(text: str) -> str:
    found = json.loads(text)
    if not isinstance(found, list) or not found or not all(isinstance(item, str) and item for item in found):
        raise ValueError("choices are a list of texts that are not empty")
    if any("\ud800" <= char <= "\udfff" for item in found for char in item):
        raise ValueError("a choice has half of a surrogate pair, which is no character")
    return "root ::= " + " | ".join(f'"{"".join(map(_literal, item))}"' for item in found)


def _literal(char: str) -> str:
    code = ord(char)
    return char if char.isalnum() and code < 128 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _refusal(why: str) -> InvalidRequest:
    return InvalidRequest(f"the constraint {why}", "response_format", "invalid_constraint")


def _first_line(error: object) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return _POSITION.sub("", lines[0])[:200]
