"""Texts through a matcher: a given one, and random ones that keep to the mask."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core.matcher import Matcher
from headrace.errors import InvalidRequest
from headrace.grammar.backend import CompiledGrammar, GrammarBackend, GrammarVocabulary
from headrace.types import Constraint

_STRUCTURE = frozenset(b' \n"{}[]:,-.0123456789aefnrlstuTZ')
_MOST_TOKENS = 600


def compiled(backend: GrammarBackend, schema: Any) -> CompiledGrammar | str:
    """The grammar of a schema, or the reason for its refusal."""
    try:
        return backend.compile(Constraint("json_schema", json.dumps(schema)))
    except InvalidRequest as error:
        return str(error)


def accepts(matcher: Matcher, tokens: Sequence[int]) -> bool:
    """Whether these tokens are a complete text."""
    for token in tokens:
        if matcher.stopped or not matcher.mask[token // 32] >> np.uint32(token % 32) & 1:
            return False
        assert matcher.advance(token) is None
    return matcher.accepting


def orders(value: Any, names: Sequence[str]) -> Any:
    """The value with the keys of its objects in the order of `names`, others behind: properties come in the schema's
    order."""
    if isinstance(value, list):
        return [orders(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    place = {name: at for at, name in enumerate(names)}
    keys = sorted(value, key=lambda key: place.get(key, len(place)))
    return {key: orders(value[key], names) for key in keys}


def property_names(schema: Any) -> Iterator[str]:
    """Names of properties anywhere in a schema, in their order."""
    if isinstance(schema, list):
        for item in schema:
            yield from property_names(item)
    elif isinstance(schema, dict):
        properties = schema.get("properties")
        if isinstance(properties, dict):
            yield from properties
        for item in schema.values():
            yield from property_names(item)


@dataclass(frozen=True)
class Walker:
    """Draws random texts from grammars over one vocabulary."""

    vocabulary: GrammarVocabulary
    structure: np.ndarray[Any, np.dtype[np.bool_]]
    """Per token: all its bytes are of JSON's structure and of numbers."""

    @classmethod
    def over(cls, vocabulary: GrammarVocabulary) -> Walker:
        plain = [bool(raw) and set(raw) <= _STRUCTURE for raw in vocabulary.token_bytes]
        plain += [False] * (-(-vocabulary.width // 32) * 32 - len(plain))
        return cls(vocabulary, np.array(plain))

    def walk(self, matcher: Matcher, rng: random.Random) -> str | None:
        """A random complete text; None if it was not complete after some hundred tokens.

        Half of the tokens are drawn from those of JSON's structure, so that texts end; the others from all allowed
        ones.
        """
        text = bytearray()
        for _ in range(_MOST_TOKENS):
            if matcher.stopped or (matcher.accepting and rng.random() < 0.4):
                return text.decode("utf-8", "replace")
            bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little").astype(np.bool_)
            bits[list(self.vocabulary.eos_token_ids)] = False
            allowed = np.flatnonzero(bits & self.structure) if rng.random() < 0.5 else np.flatnonzero(bits)
            if not len(allowed):
                allowed = np.flatnonzero(bits)
            if not len(allowed):
                return text.decode("utf-8", "replace")
            token = int(allowed[rng.randrange(len(allowed))])
            why = matcher.advance(token)
            assert why is None, why
            text += self.vocabulary.token_bytes[token]
        return None
