"""Finds the grammar backend by its name and sets it up for a checkpoint's vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.errors import ConfigError, PluginError
from headrace.grammar.backend import GrammarBackend, GrammarVocabulary, MakeGrammarBackend
from headrace.plugins import PluginSet, discover
from headrace.tokenization.tokenizer import Tokenizer, load_tokenizer

__all__ = ["find_backend", "open_backend", "read_vocabulary", "vocabulary_of"]

_HOOK = "headrace_grammar_backends"
_EXTRAS = ("xgrammar",)
"""Backends that are offered once an extra of this package is installed."""


def find_backend(name: str, discovered: Callable[[], PluginSet] = discover) -> MakeGrammarBackend:
    """The backend that is built in, or a plugin's. Raises ConfigError for an unknown name, PluginError for a plugin
    that
    cannot be used."""
    if name == "llguidance":
        return _llguidance
    plugins = discovered()
    found = plugins.find(_HOOK, name)
    if found is None:
        known = ", ".join(sorted({"llguidance", *plugins.grammar_backends()}))
        remedy = f": pip install 'headrace[{name}]'" if name in _EXTRAS else ""
        raise ConfigError(f"grammar backend {name!r} is not installed; there are {known}{remedy}")
    if not callable(found):
        raise PluginError(f"hook {_HOOK}: {name!r} is {found!r}: expected something to call")
    make: MakeGrammarBackend = found
    return make


def open_backend(
    make: MakeGrammarBackend, checkpoint: Path, width: int, eos_token_ids: tuple[int, ...]
) -> GrammarBackend:
    """Read the vocabulary of a checkpoint and set the backend up for it; takes about a second. `width`: columns of the
    logits. Raises what `load_tokenizer` does."""
    return make(read_vocabulary(checkpoint, width, eos_token_ids))


def read_vocabulary(checkpoint: Path, width: int, eos_token_ids: tuple[int, ...]) -> GrammarVocabulary:
    """The tokens of a checkpoint. Raises what `load_tokenizer` does."""
    return vocabulary_of(load_tokenizer(checkpoint), width, eos_token_ids)


def vocabulary_of(tokenizer: Tokenizer, width: int, eos_token_ids: tuple[int, ...]) -> GrammarVocabulary:
    """The tokens of a tokenizer."""
    size = min(tokenizer.vocab_size, width)
    return GrammarVocabulary(
        token_bytes=[tokenizer.token_bytes(i) for i in range(size)],
        special_ids=frozenset(token for token in tokenizer.special_ids if token < size),
        eos_token_ids=tuple(token for token in eos_token_ids if token < size),
        width=width,
        # A control token that a grammar spells is text: its id would end the output, or fail the grammar.
        encode=tokenizer.plain_encoder(),
    )


def _llguidance(vocabulary: GrammarVocabulary) -> GrammarBackend:
    # Late: only constrained output needs it.
    from headrace.grammar.llguidance_backend import LlguidanceBackend

    return LlguidanceBackend(vocabulary)
