"""Sets a grammar library up for a checkpoint's vocabulary."""

from __future__ import annotations

from pathlib import Path

from headrace.grammar.backend import GrammarBackend, GrammarVocabulary
from headrace.tokenization.tokenizer import load_tokenizer

__all__ = ["open_backend"]


def open_backend(checkpoint: Path, width: int, eos_token_ids: tuple[int, ...]) -> GrammarBackend:
    """Read the vocabulary of a checkpoint and prepare the library for it; takes about a second. `width`: columns of the
    logits. Raises what `load_tokenizer` does."""
    # Late: only constrained output needs it.
    from headrace.grammar.llguidance_backend import LlguidanceBackend

    tokenizer = load_tokenizer(checkpoint)
    size = min(tokenizer.vocab_size, width)
    vocabulary = GrammarVocabulary(
        token_bytes=[tokenizer.token_bytes(i) for i in range(size)],
        special_ids=frozenset(token for token in tokenizer.special_ids if token < size),
        eos_token_ids=tuple(token for token in eos_token_ids if token < size),
        width=width,
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
    )
    return LlguidanceBackend(vocabulary)
