"""A tokenizer for tests that look at ids alone."""

from __future__ import annotations

from collections.abc import Sequence


class Letters:
    """Every id is a letter, and the stream of them."""

    eos_token_ids: tuple[int, ...] = ()

    def token_text(self, token_id: int) -> str:
        return chr(97 + token_id % 26)

    def token_bytes(self, token_id: int) -> bytes:
        return self.token_text(token_id).encode()

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Sequence[int] = ()) -> Letters:
        return self

    unfinished = False

    def push(self, token_id: int) -> str:
        return self.token_text(token_id)

    def flush(self) -> str:
        return ""
