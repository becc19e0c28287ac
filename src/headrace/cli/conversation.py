"""A conversation with a model: the messages so far, and how an answer is shown."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from headrace.cli.answer_view import AnswerView
from headrace.cli.pieces import AnswerClock
from headrace.cli.text_sources import TextSource, cut_form
from headrace.errors import ContextOverflow, EngineDead, HeadraceError, InvalidRequest

__all__ = ["Conversation"]


class Conversation:
    """The messages so far, without the system message, which may change at any time."""

    def __init__(self, params: Mapping[str, Any], view: AnswerView, system: str | None, interactive: bool) -> None:
        self.source: TextSource | None = None
        """What answers; None while no model is loaded."""
        self.system = system
        self.turns: list[dict[str, str]] = []
        self._params = params
        self._view = view
        self._interactive = interactive

    @property
    def messages(self) -> list[dict[str, str]]:
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]

    def ask(self, text: str) -> None:
        """Add a question, and show and add its answer. Raises a HeadraceError if the conversation is not interactive,
        or if no other question can be answered either."""
        if self.source is None:
            self._view.note("no model is loaded: /model NAME loads one")
            return
        self.turns.append({"role": "user", "content": text})
        answer: list[str] = []
        clock, stopped = AnswerClock(), False
        try:
            with (
                self._view.answer() as show,
                contextlib.closing(self.source.chat(self.messages, self._params)) as pieces,
            ):
                for piece in pieces:
                    clock.piece()
                    answer.append(piece)
                    show(piece)
        except KeyboardInterrupt:
            # An interrupt stops the answer; the part that was shown stays in the conversation.
            if not self._interactive:
                raise
            stopped = True
        except HeadraceError as error:
            self.turns.pop()
            self._report(error, self.source)
            return
        if answer:
            self.turns.append({"role": "assistant", "content": "".join(answer)})
        else:
            self.turns.pop()
        note = ["stopped"] if stopped else []
        note += [clock.summary(self.source.tokens)] if answer else []
        note += [remark] if answer and (remark := cut_form(self.source, self._params)) else []
        if note:
            self._view.note(", ".join(note))

    def _report(self, error: HeadraceError, source: TextSource) -> None:
        """Show an error after which the chat can go on; raise any other."""
        lasting = isinstance(error, InvalidRequest) and error.code == "no_chat_template"
        # A server may come back; an engine in this process does not.
        if not self._interactive or lasting or (isinstance(error, EngineDead) and not source.is_remote):
            raise error
        hint = "; /reset starts again" if isinstance(error, ContextOverflow) else ""
        again = "; the arrow key brings the question back" if source.is_remote else ""
        self._view.note(f"error: {error}{hint or again}")
