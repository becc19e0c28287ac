"""Tokens that complete a stop string by themselves.

The client finds stop strings in the text. If a stop string is one ASCII character, every token with this character ends
the text, whatever came before it: then the engine itself ends the sequence at such a token, and does not compute
further ones until the client has told it. The client still cuts the text.
"""

from __future__ import annotations

import threading
import time

from headrace.client.request_outputs import TextTokenizer
from headrace.sampling import SamplingParams

__all__ = ["StopTokens"]

_MOST = 4096
"""Tokens with a character, beyond which it is left to the client: all of them go with each request."""
_AT_ONCE, _PAUSE = 256, 0.0005
"""Tokens that are read without a pause, and its seconds: other threads run in the meantime."""


class StopTokens:
    """Reads the vocabulary in a thread when the first stop string comes; until then the client alone looks for it."""

    def __init__(self, tokenizer: TextTokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._thread: threading.Thread | None = None
        self._found: dict[str, tuple[int, ...]] = {}

    def of(self, params: SamplingParams) -> tuple[int, ...] | None:
        """The tokens at which the engine ends a sequence in any case; None: it cannot find all its stop strings.

        Special tokens count as text if they are not skipped, and stop tokens are excluded before `min_tokens` while
        stop strings are not: then the client alone decides.
        """
        if not params.stop:
            return ()
        if params.min_tokens or not params.skip_special_tokens or not all(map(_is_simple, params.stop)):
            return None
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="headrace-stop-tokens", daemon=True)
            self._thread.start()
        found = [self._found.get(stop) for stop in params.stop]
        if any(one is None for one in found):
            return None
        return tuple({token: None for one in found for token in one or ()})

    def wait(self) -> None:
        """Wait until the vocabulary has been read, if that has begun. For tests."""
        if self._thread is not None:
            self._thread.join()

    def _read(self) -> None:
        holding: dict[int, list[int]] = {}
        unclear: set[int] = set()
        for token in range(self._vocab_size):
            if token % _AT_ONCE == 0:
                time.sleep(_PAUSE)
            letters = {byte for byte in self._tokenizer.token_bytes(token) if byte < 128}
            text = self._tokenizer.stream(True).push(token) if letters else ""
            for byte in letters if text else ():
                holding.setdefault(byte, []).append(token)
                if chr(byte) not in text:
                    unclear.add(byte)
        self._found = {
            chr(byte): tuple(tokens) for byte, tokens in holding.items() if byte not in unclear and len(tokens) <= _MOST
        }


def _is_simple(stop: str) -> bool:
    # A vocabulary may drop a space before a text's first word.
    return len(stop) == 1 and stop.isascii() and stop != " "
