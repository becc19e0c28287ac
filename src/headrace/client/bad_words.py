"""The parameter `bad_words` as tokens."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.client.request_outputs import TextTokenizer
from headrace.errors import InvalidRequest

__all__ = ["bad_word_ids"]


def bad_word_ids(words: Sequence[str], tokenizer: TextTokenizer, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word, as it stands at the start of a text and behind a space. Raises InvalidRequest."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        # White space alone has no other form.
        texts = (bare, f" {bare}") if bare else (word,) * bool(word)
        forms = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
        if not all(forms) or not forms or not all(0 <= token < vocab_size for form in forms for token in form):
            message = f"`bad_words` {word[:100]!r} has no tokens that the model could write"
            raise InvalidRequest(message, "bad_words", "invalid_value")
        plain, *rest = forms
        found[plain] = None
        # A tokenizer may write the space as a token of its own: then the first form is in the second.
        found.update(dict.fromkeys(spaced for spaced in rest if spaced[-len(plain) :] != plain))
    return tuple(found)
