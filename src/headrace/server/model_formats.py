"""The formats of the served model's tool calls and reasoning."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from headrace.config import ServerConfig
from headrace.errors import ConfigError
from headrace.formats.detection import detect_reasoning_format, detect_tool_format, shows_tools
from headrace.formats.machine import Machine
from headrace.formats.reasoning_forms import REASONING_FORMATS
from headrace.formats.response_template import read_response_template
from headrace.formats.states import ReasoningFormat, ToolFormat
from headrace.formats.tool_formats import SMOLLM2, TOOL_FORMATS

__all__ = ["FormatTokenizer", "ModelFormats", "find_formats"]

_MARKER = re.compile(r"[<\[｜].+[>\]｜]", re.DOTALL)
"""Markers that a vocabulary may have as single tokens."""
_log = logging.getLogger(__name__)
F = TypeVar("F", ToolFormat, ReasoningFormat)


class FormatTokenizer(Protocol):
    """The part of the tokenizer that is used here."""

    @property
    def template_source(self) -> str: ...

    @property
    def response_template(self) -> Any: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class ModelFormats:
    """Immutable."""

    tools: ToolFormat | None = None
    reasoning: ReasoningFormat | None = None
    prompted: bool = False
    """The template does not show tools to the model: the server adds a system text that does."""
    with_tools: Machine | None = None
    """For requests with tools."""
    without_tools: Machine | None = None
    """For other requests; None: all their text is content."""
    markers: Mapping[int, str] = field(default_factory=dict)
    """The markers that are special tokens, by id."""
    ids: Mapping[str, int] = field(default_factory=dict)
    """The ids, by marker."""


def find_formats(tokenizer: FormatTokenizer, config: ServerConfig) -> ModelFormats:
    """The model's formats. Raises ConfigError for an unknown name, and PluginError for a plugin's format that cannot be
    loaded."""
    template = tokenizer.template_source

    def token_id(marker: str) -> int | None:
        found = tokenizer.encode(marker, False) if _MARKER.fullmatch(marker) else []
        return found[0] if len(found) == 1 else None

    def has_token(marker: str) -> bool:
        return token_id(marker) is not None

    def tools_found() -> ToolFormat | None:
        name = detect_tool_format(template, has_token)
        return declared.tools or (None if name is None else TOOL_FORMATS[name])

    def reasoning_found() -> ReasoningFormat | None:
        name = detect_reasoning_format(template, has_token)
        return declared.reasoning or (None if name is None else REASONING_FORMATS[name])

    declared = read_response_template(tokenizer.response_template)
    if declared.ignored:
        _log.warning("response_template in tokenizer_config.json: not used: %s", "; ".join(declared.ignored))
    prompted = config.tool_format is None and bool(template) and not shows_tools(template)
    tools = _named(config.tool_format, "tool_format", TOOL_FORMATS, ToolFormat, tools_found)
    reasoning = _named(config.reasoning_format, "reasoning_format", REASONING_FORMATS, ReasoningFormat, reasoning_found)
    tools = SMOLLM2 if prompted else tools
    if reasoning is not None and reasoning.complete is not None and tools is not None and tools.name != reasoning.name:
        # Its messages are the whole answer, so that calls in another format would not be found.
        message = f"reasoning_format {reasoning.name} goes with tool_format {reasoning.name} or none"
        raise ConfigError(f"{message}, not {tools.name}")
    return _model_formats(tools, reasoning, prompted, token_id)


def _named(
    name: str | None, option: str, known: Mapping[str, F], kind: type[F], detect: Callable[[], F | None]
) -> F | None:
    if name == "none":
        return None
    if name is None:
        return detect()
    if name in known:
        return known[name]
    # Late: only a format that is not built in needs the plugins.
    from headrace.plugins import discover

    offered = discover().find("headrace_formats", name)
    if isinstance(offered, kind):
        return offered
    raise ConfigError(f"{option} {name!r} is not known; there are {', '.join(known)} and none")


def _model_formats(
    tools: ToolFormat | None,
    reasoning: ReasoningFormat | None,
    prompted: bool,
    token_id: Callable[[str], int | None],
) -> ModelFormats:
    plain = Machine(tools, reasoning)
    ids = {marker: found for marker in plain.markers | plain.inline if (found := token_id(marker)) is not None}
    return ModelFormats(
        tools,
        reasoning,
        prompted,
        None if tools is None else Machine(tools, reasoning, ids),
        None if reasoning is None else Machine(None, reasoning, ids),
        {found: marker for marker, found in ids.items()},
        ids,
    )
