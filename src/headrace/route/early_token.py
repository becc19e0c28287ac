"""The first token of a prompt that one engine computes for another, before that one has the blocks."""

from __future__ import annotations

from typing import Any

from headrace.route.stream_replay import Differs, parsed_event, plain_choices, texts_of
from headrace.server.stream_form import DONE, event

__all__ = ["EarlyToken"]

_END = b"\n\n"


class EarlyToken:
    """Reads the stream of the engine that computes the prompt, in OpenAI's form.

    The engine samples the token that the other one will sample, and shows of its text only what cannot change by what
    follows. Of its events a client can be shown those up to the first with text, without the end that the stream has
    because no more was asked for.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._held: list[bytes] | None = []
        """Events before the first text; None when there is nothing more to show."""
        self.complete = False
        """The stream has ended as it should."""

    def feed(self, data: bytes) -> bytes:
        """The events to show, once; empty otherwise."""
        whole, end, self._rest = (self._rest + data).rpartition(_END)
        shown = b""
        for block in (whole + end).split(_END)[:-1]:
            self.complete = self.complete or block + _END == DONE
            if block.startswith(b"data: {") and self._held is not None:
                try:
                    shown += self._next(parsed_event(block))
                except Differs:
                    self._held = None
        return shown

    def _next(self, one: dict[str, Any]) -> bytes:
        """Raises Differs if the token is shown with more than its text, which may not be the other engine's."""
        if "error" in one or one.get("usage") is not None:
            raise Differs
        assert self._held is not None
        choices = plain_choices(one)
        begun = {name: value for name, value in one.items() if name != "kv_transfer_params"}
        begun["choices"] = [_unfinished(choice) for choice in choices]
        self._held.append(event(begun))
        if not any(texts_of(choice) for choice in choices):
            return b""
        shown, self._held = b"".join(self._held), None
        return shown


def _unfinished(choice: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in choice.items() if name != "stop_reason"}
    return kept | ({"finish_reason": None} if "finish_reason" in kept else {})
