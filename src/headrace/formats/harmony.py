"""The harmony format of gpt-oss: an answer is a sequence of messages, each with a channel and perhaps a recipient."""

from __future__ import annotations

import re

from headrace.formats.states import CallForm, ReasoningFormat, State, Target, ToolFormat

__all__ = ["HARMONY_REASONING", "HARMONY_TOOLS"]

_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


def _message(header: str) -> Target:
    """The state of a message with this header."""
    recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
    if recipient is not None:
        return Target("arguments", recipient[1].removeprefix("functions."))
    return Target("reasoning" if channel is not None and channel[1] == "analysis" else "content")


def _message_without_tools(header: str) -> Target:
    target = _message(header)
    return Target("content") if target.name else target


_NEXT = {
    "<|end|>": "start",
    "<|return|>": "start",
    "<|call|>": "start",
    "<|start|>": "role",
    "<|channel|>": "channel",
}


def _states(tools: bool) -> dict[str, State]:
    message = _message if tools else _message_without_tools
    return {
        "start": State("start", _NEXT),
        "content": State("content", _NEXT),
        "reasoning": State("reasoning", _NEXT),
        "arguments": State("arguments", _NEXT),
        "role": State("header", {"<|channel|>": "channel", "<|constrain|>": "type", "<|message|>": message}),
        "channel": State("header", {"<|constrain|>": "type", "<|message|>": message}),
        "type": State("header", {"<|channel|>": "channel", "<|message|>": message}),
    }


_ANALYSIS = ("<|channel|>analysis<|message|>", CallForm.FREE, "<|end|><|start|>assistant")
_PREAMBLE = ("<|channel|>commentary<|message|>", CallForm.FREE, "<|end|><|start|>assistant")
HARMONY_REASONING = ReasoningFormat("harmony", {}, frozenset(), complete=_states(False))
HARMONY_TOOLS = ToolFormat(
    "harmony",
    {},
    _states(True),
    form=CallForm(
        (
            "<|channel|>commentary to=functions.",
            CallForm.NAME,
            " <|constrain|>json<|message|>",
            CallForm.ARGUMENTS,
        ),
        preludes=(_ANALYSIS, _PREAMBLE, (*_ANALYSIS, *_PREAMBLE)),
        answer=("<|channel|>final<|message|>", CallForm.FREE),
    ),
)
