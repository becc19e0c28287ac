"""The table of reasoning formats."""

from __future__ import annotations

from dataclasses import replace

from headrace.formats.harmony import HARMONY_REASONING
from headrace.formats.parameter_formats import COHERE_XML, KIMI_K3
from headrace.formats.states import ReasoningFormat, State, ToolFormat

__all__ = ["REASONING_FORMATS"]


def _tags(name: str, opens: str, close: str, tools: ToolFormat | None = None) -> ReasoningFormat:
    """`tools`: the format in which the same models write calls, and which has markers around content."""
    form = ReasoningFormat(name, {opens: "reasoning"}, frozenset({close}), prompt_opens=(opens,))
    return form if tools is None else replace(form, inline=tools.inline, dropped=tools.dropped)


GRANITE = ReasoningFormat(
    "granite",
    {"Here is my thought process:": "reasoning", "Here's my thought process:": "reasoning"},
    frozenset({"Here is my response:", "Here's my response:"}),
    start_only=True,
)
GEMMA4 = ReasoningFormat(
    "gemma4",
    {"<|channel>": "channel"},
    frozenset({"<channel|>"}),
    states={"channel": State("header", {"\n": "reasoning", "<channel|>": "start"})},
    prompt_opens=("<|channel>thought",),
)
REASONING_FORMATS: dict[str, ReasoningFormat] = {
    found.name: found
    for found in (
        _tags("think", "<think>", "</think>"),
        _tags("mistral", "[THINK]", "[/THINK]"),
        _tags("seed", "<seed:think>", "</seed:think>"),
        _tags("minimax_m3", "<mm:think>", "</mm:think>"),
        _tags("cohere", "<|START_THINKING|>", "<|END_THINKING|>", COHERE_XML),
        replace(_tags("kimi_k3", "<|open|>think<|sep|>", "<|close|>think<|sep|>", KIMI_K3), last_token="<|sep|>"),
        HARMONY_REASONING,
        GRANITE,
        GEMMA4,
    )
}
"""By the name that `--reasoning-format` takes."""
