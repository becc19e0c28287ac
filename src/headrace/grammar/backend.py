"""What a grammar library must offer, and what it is given of the model's vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace.core.matcher import Matcher
from headrace.types import Constraint

__all__ = ["CompiledGrammar", "GrammarBackend", "GrammarVocabulary", "MakeGrammarBackend"]


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """The model's tokens, as a grammar sees them."""

    token_bytes: list[bytes]
    """By id; what a token adds to a text."""
    special_ids: frozenset[int]
    """Control tokens: no grammar allows their text."""
    eos_token_ids: tuple[int, ...]
    """Every id that ends a sequence."""
    width: int
    """Columns of the logits; at least the number of tokens. Ids beyond the vocabulary are never allowed."""
    encode: Callable[[str], list[int]]
    """Ids of a text, without special tokens around it or in it: a control token's text is encoded letter by letter."""


class CompiledGrammar(Protocol):
    """A grammar that has been checked down to its first mask. Used by one thread at a time."""

    def matcher(self) -> Matcher:
        """A matcher at the start of the text, for one sequence; takes microseconds. Matchers of one grammar don't
        affect each other."""


class GrammarBackend(Protocol):
    """A grammar library, set up for one vocabulary. It must bound the time of every mask: it has no other limit."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Raises InvalidRequest with the reason for a constraint that cannot be enforced exactly; nothing is ever left
        unenforced. Called by a second thread while an earlier call takes long; native code must release the GIL."""


MakeGrammarBackend = Callable[[GrammarVocabulary], GrammarBackend]
"""What a plugin of the hook `headrace_grammar_backends` names. Raises InvalidRequest if the vocabulary cannot be
served."""
