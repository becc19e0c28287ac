"""A fake source of answers, and a fake terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.cli.pieces import Pieces


class FakeSource:
    """Repeats the last message, letter by letter; `script` may fail instead."""

    def __init__(self, script: Callable[[int], None] = lambda at: None) -> None:
        self.asked: list[Any] = []
        self.params: list[Mapping[str, Any]] = []
        self.aborted = 0
        self.closed = False
        self.said = 0
        self._script = script

    is_remote = False
    header = "fake on nothing"
    finish_reason: str | None = "stop"

    @property
    def tokens(self) -> int | None:
        return self.said

    def models(self) -> Sequence[str]:
        return ("first", "second")

    def complete(self, prompt: str, params: Mapping[str, Any]) -> Pieces:
        return self._say(prompt, params, prompt)

    def chat(self, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> Pieces:
        return self._say([dict(message) for message in messages], params, messages[-1]["content"])

    def _say(self, asked: Any, params: Mapping[str, Any], text: str) -> Pieces:
        self.asked.append(asked)
        self.params.append(params)
        self.said = 0
        try:
            for at, letter in enumerate(text):
                self._script(at)
                self.said += 1
                yield letter
        except GeneratorExit:
            self.aborted += 1
            raise

    def close(self) -> None:
        self.closed = True


class Terminal(io.StringIO):
    """An input or output stream that looks like a terminal."""

    def isatty(self) -> bool:
        return True
