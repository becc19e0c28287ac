"""Formats found from published templates and from vocabularies."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.formats.detection import detect_reasoning_format, detect_tool_format, shows_tools
from headrace.formats.reasoning_forms import REASONING_FORMATS
from headrace.formats.tool_formats import TOOL_FORMATS

TEMPLATES = Path(__file__).parents[4] / "shared/cases/templates"
FOUND = {
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("cohere_json", "cohere"),
    "GLM-4.6": ("glm45", "think"),
    "GLM-4.7-Flash": ("glm47", "think"),
    "Kimi-K2-Instruct": ("kimi_k2", None),
    "MiniMax-M2": ("minimax_m2", "think"),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral_v11", None),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral_v3", None),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", None),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", None),
    "Qwen-Qwen3-0.6B": ("hermes", "think"),
    "Qwen3-Coder": ("qwen3_coder", None),
    "Qwen3.5-4B": ("qwen3_coder", "think"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("deepseek_v3", "think"),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v31", "think"),
    "deepseek-ai-DeepSeek-V3.2": ("deepseek_v32", "think"),
    "google-gemma-3-it": (None, None),
    "google-gemma-4-31B-it": ("gemma4", "gemma4"),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite30", "think"),
    "ibm-granite-granite-4.0": ("hermes", None),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3_json", None),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3_json", None),
    "microsoft-Phi-3.5-mini-instruct": (None, None),
    "openai-gpt-oss-120b": ("harmony", "harmony"),
}


@pytest.mark.parametrize("name", FOUND)
def test_published_templates(name: str) -> None:
    file = TEMPLATES / f"{name}.jinja"
    if not file.exists():
        pytest.skip(f"{file.name} is not at hand")
    template = file.read_text(encoding="utf-8")
    found = detect_tool_format(template, lambda _: False), detect_reasoning_format(template, lambda _: False)
    assert found == FOUND[name]


@pytest.mark.parametrize(
    ("tokens", "tools"),
    [
        ({"[TOOL_CALLS]"}, "mistral_v3"),
        ({"[TOOL_CALLS]", "[ARGS]"}, "mistral_v13"),
        ({"<|channel|>", "<|constrain|>"}, "harmony"),
        ({"<|channel|>"}, None),
        ({"<start_function_call>"}, "function_gemma"),
        ({"<|open|>", "<|close|>", "<|sep|>", "<|tool_calls_section_begin|>"}, "kimi_k3"),
        ({"<|sep|>"}, None),
        ({"<cofl:tool_calls>", "<|START_ACTION|>"}, "cohere_xml"),
        ({"<|START_ACTION|>"}, "cohere_json"),
    ],
)
def test_vocabularies(tokens: set[str], tools: str | None) -> None:
    assert detect_tool_format("", tokens.__contains__) == tools


def test_blocks_of_deepseek() -> None:
    assert detect_tool_format("<' + '｜DSML｜' + 'tool_calls>", lambda _: False) == "deepseek_v4"
    assert detect_tool_format("", {"｜DSML｜"}.__contains__) == "deepseek_v32"


def test_a_vocabulary_alone_does_not_make_a_model_think() -> None:
    assert detect_reasoning_format("{{ messages }}", {"<think>", "</think>"}.__contains__) is None
    assert detect_reasoning_format("", {"[THINK]"}.__contains__) == "mistral"
    assert detect_reasoning_format("", {"<|open|>", "<|close|>", "<|sep|>"}.__contains__) == "kimi_k3"
    assert detect_reasoning_format("<cofl:tool_calls>", {"<|START_THINKING|>"}.__contains__) == "cohere"


def test_whether_tools_are_shown() -> None:
    assert shows_tools("{% if tools %}")
    assert not shows_tools("{{ xml_tools }}")


def test_detected_names_are_known() -> None:
    for tools, reasoning in FOUND.values():
        assert tools is None or tools in TOOL_FORMATS
        assert reasoning is None or reasoning in REASONING_FORMATS
