"""The lines that a user types into a chat: several lines at once, pasted text as one, a history, completed commands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

__all__ = ["QUOTES", "LineInput", "is_open"]

QUOTES = '"""'
"""Around a text of several lines."""
_ENDS = "Ctrl-D or /bye ends the chat"


class LineInput:
    """Reads questions with prompt_toolkit. Enter sends; Alt-Enter, Ctrl-J, a backslash before Enter and an open
    quotation of three marks begin a new line, and so does pasted text."""

    def __init__(self, commands: Mapping[str, str], history: Path | None) -> None:
        """`commands` are completed, with a description of each; `history` keeps what was typed, from chat to chat."""
        self._session = _session(commands, history)

    def lines(self) -> Iterator[str]:
        """One text for each question, until Ctrl-D."""
        while True:
            try:
                text = str(self._session.prompt())
            except EOFError:
                return
            except KeyboardInterrupt:
                print(_ENDS, flush=True)
                continue
            yield text.strip().removeprefix(QUOTES).removesuffix(QUOTES) if text.strip().startswith(QUOTES) else text


def is_open(text: str) -> bool:
    """True if a quotation of three marks has begun and not ended."""
    inner = text.strip()
    return inner.startswith(QUOTES) and (len(inner) < 2 * len(QUOTES) or not inner.endswith(QUOTES))


def _session(commands: Mapping[str, str], history: Path | None) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.output.defaults import create_output

    return PromptSession(
        "> ",
        multiline=True,
        prompt_continuation=". ",
        key_bindings=_keys(),
        history=_history(history),
        completer=WordCompleter(list(commands), meta_dict=commands, sentence=True),
        complete_while_typing=False,
        output=create_output(always_prefer_tty=True),
    )


def _history(path: Path | None) -> Any:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    with contextlib.suppress(OSError):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            # What people ask a model is their own affair.
            os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
            return FileHistory(str(path))
    return InMemoryHistory()


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.keys import Keys

    keys = KeyBindings()

    def more(event: KeyPressEvent) -> bool:
        """True if keys wait behind this one. What a terminal tells of its cursor is none."""
        return any(press.key != Keys.CPRResponse for press in event.app.key_processor.input_queue)

    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        before = buffer.document.text_before_cursor
        # Keys that wait behind Enter were not typed: a terminal without bracketed paste has pasted several lines.
        if is_open(buffer.text) or more(event):
            buffer.newline(copy_margin=False)
        elif before.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    keys.add("enter")(send)
    keys.add("escape", "enter")(new_line)
    keys.add("c-j")(new_line)
    return keys
