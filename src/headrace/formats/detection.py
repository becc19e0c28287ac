"""Finds a model's formats from its chat template and its vocabulary."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["detect_reasoning_format", "detect_tool_format", "shows_tools"]

Seen = Callable[[str], bool]


def shows_tools(template: str) -> bool:
    """Whether the template shows the tools of a request to the model."""
    return re.search(r"\btools\b", template) is not None


def detect_tool_format(template: str, has_token: Seen) -> str | None:
    """The name of the format in which the model writes tool calls; None if it is not known."""

    def seen(marker: str) -> bool:
        return marker in template or has_token(marker)

    for marker, name in (
        ("<|channel|>", "harmony" if _is_harmony(seen) else None),
        ("<|sep|>", "kimi_k3" if _is_kimi_k3(seen) else None),
        ("[TOOL_CALLS]", _mistral_version(template, seen)),
        ("<|tool_calls_section_begin|>", "kimi_k2"),
        ("｜DSML｜", "deepseek_v4" if _is_deepseek_v4(template) else "deepseek_v32"),
        ("<｜tool▁calls▁begin｜>", "deepseek_v3" if "```json" in template else "deepseek_v31"),
        ("<minimax:tool_call>", "minimax_m2"),
        ("<|tool_call>", "gemma4"),
        ("<start_function_call>", "function_gemma"),
        ("<cofl:tool_calls>", "cohere_xml"),
        ("<|START_ACTION|>", "cohere_json"),
        ("<arg_key>", "glm45" if re.search(r"</arg_key>(\\n|\s)", template) else "glm47"),
    ):
        if name is not None and seen(marker):
            return name
    return _from_text(template)


def _is_harmony(seen: Seen) -> bool:
    return seen("<|channel|>") and (seen("<|constrain|>") or seen("<|message|>"))


def _is_kimi_k3(seen: Seen) -> bool:
    return all(map(seen, ("<|open|>", "<|close|>", "<|sep|>")))


def _is_deepseek_v4(template: str) -> bool:
    return "tool_calls>" in template and "function_calls>" not in template


def _mistral_version(template: str, seen: Seen) -> str:
    if not seen("[ARGS]"):
        return "mistral_v3"
    return "mistral_v11" if "[CALL_ID]" in template else "mistral_v13"


def _from_text(template: str) -> str | None:
    if "<function=" in template:
        return "qwen3_coder"
    if "<tool_call>[" in template:
        return "smollm2"
    if "<tool_call>" in template and '"arguments' in template:
        return "hermes"
    if "<|tool_call|>" in template:
        return "phi4_mini" if "<|/tool_call|>" in template else "granite30"
    if '"parameters' in template and ("<|python_tag|>" in template or "ipython" in template):
        return "llama3_json"
    return "pythonic" if "[func_name1(" in template else None


def detect_reasoning_format(template: str, has_token: Seen) -> str | None:
    """The name of the format in which the model marks its reasoning; None if it marks none."""

    def seen(marker: str) -> bool:
        return marker in template or has_token(marker)

    if _is_harmony(seen):
        return "harmony"
    if _is_kimi_k3(seen):
        return "kimi_k3"
    for marker, name in (
        ("[THINK]", "mistral"),
        ("<|channel>", "gemma4"),
        ("<|START_THINKING|>", "cohere"),
        ("<seed:think>", "seed"),
        ("<mm:think>", "minimax_m3"),
    ):
        if seen(marker):
            return name
    # A vocabulary may have the tags of a sibling that thinks; the template shows whether this model does.
    if "</think>" in template:
        return "think"
    return "granite" if "Here is my thought process" in template else None
