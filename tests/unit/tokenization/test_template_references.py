"""Published chat templates, rendered as transformers' `apply_chat_template` renders them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from inline_templates import inline_template

from headrace.errors import InvalidRequest
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.chat_template import ChatTemplate

SHARED = Path(__file__).parents[4] / "shared" / "cases" / "templates"
TEMPLATES = sorted(SHARED.glob("*.jinja"))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
ARGUMENTS = '{"city": "Rome", "days": [1, 2], "unit": "°é", "deep": {"x": 1.5, "y": true}}'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a <city>.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Its name."},
                    "days": {"type": "array", "items": {"type": "integer"}},
                },
                "required": ["city"],
            },
        },
    }
]
USER = {"role": "user", "content": "Weather in Rome?"}
RESULT = {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": "21 °C"}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def calling(arguments: object, count: int = 1, **fields: object) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    calls = [{"id": f"abcdef12{3 + i}", "type": "function", "function": function} for i in range(count)]
    return {"role": "assistant", **fields, "tool_calls": calls}


def conversations(arguments: object) -> dict[str, list[dict[str, Any]]]:
    null = calling(arguments, content=None)
    return {
        "one": [USER],
        "turns": [
            {"role": "system", "content": "Be <brief> & kind."},
            USER,
            {"role": "assistant", "content": "Sunny. "},
            {"role": "user", "content": " é\n"},
        ],
        "answered": [USER, {"role": "assistant", "content": "Sunny."}],
        "named": [{**USER, "name": "Ada"}],
        "thinking": [USER, {"role": "assistant", "content": "b", "reasoning_content": "a"}, USER],
        "thinking, other name": [USER, {"role": "assistant", "content": "b", "reasoning": "a"}, USER],
        "thought in text": [USER, {"role": "assistant", "content": "<think>\na\n</think>\n\nb"}, USER],
        "parts": [{"role": "user", "content": parts("First", "Second")}],
        "one part": [{"role": "user", "content": parts(" First ")}],
        "system's parts": [{"role": "system", "content": parts("First", "Second")}, USER],
        "assistant's parts": [USER, {"role": "assistant", "content": parts("First", "Second")}, USER],
        "call": [USER, null, RESULT],
        "call, no content": [USER, calling(arguments), RESULT, {"role": "assistant", "content": "21."}, USER],
        "call, empty content": [USER, calling(arguments, content=""), RESULT],
        "call, text": [USER, calling(arguments, content="Let me see."), RESULT],
        "call, thought": [USER, calling(arguments, content=None, reasoning_content="Hm."), RESULT],
        "two calls": [USER, calling(arguments, 2, content=None), RESULT, {**RESULT, "tool_call_id": "abcdef124"}],
        "two rounds": [USER, null, RESULT, null, RESULT],
        "call at the end": [USER, null],
        "result in parts": [USER, null, {**RESULT, "content": parts("First", "Second")}],
    }


PRINTED = ("type': 'text", 'type": "text', 'type\\": \\"text', "None", "'deep'", '\\"deep')
"""Output of templates that don't support their input."""


def theirs(source: str, messages: list[dict[str, Any]], as_sent: bool, **options: Any) -> str | None:
    """None: the template fails on these messages. `as_sent`: as `apply_chat_template` passes them on."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    try:
        talk = utils._normalize_chat_messages(messages) if as_sent else messages
        text: str = utils.render_jinja_template([talk], chat_template=source, **SPECIAL, **options)[0][0]
    except Exception:
        return None
    return text


def changed(messages: list[dict[str, Any]], joined: bool, empty: bool, content: str | None) -> list[dict[str, Any]]:
    """With parts joined, and with `content` where there are only calls."""
    talk = [dict(message) for message in messages]
    for message in talk:
        if joined and isinstance(message.get("content"), list):
            message["content"] = "\n".join(part["text"] for part in message["content"])
        if empty and message.get("tool_calls") and not message.get("content"):
            message["content"] = content
    return talk


def expected(source: str, talks: list[list[dict[str, Any]]], **options: Any) -> list[str]:
    """The talks (they differ in the form of arguments) as transformers renders them as they were sent, if that shows
    everything; else the least changed ones that show most."""
    words = [word for word in ("First", "Second", "21 °C", "deep") if word in json.dumps(talks, ensure_ascii=False)]
    best, most = [], -1
    for joined in (False, True):
        for empty, content in ((False, None), (True, None), (True, "")):
            texts = [
                theirs(source, changed(talk, joined, empty, content) if joined or empty else talk, not empty, **options)
                for talk in talks
            ]
            sound = [text for text in texts if text is not None and not any(sign in text for sign in PRINTED)]
            shown = max((sum(word in text for word in words) for text in sound), default=-1)
            if shown > most:
                best, most = [text for text in sound if sum(word in text for word in words) == shown], shown
            if most == len(words):
                return best
    return best


@pytest.mark.skipif(not TEMPLATES, reason=f"no templates in {SHARED}")
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_renders_as_transformers_does(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    template = inline_template({"default": source}, SPECIAL)
    as_object = conversations(json.loads(ARGUMENTS))
    for name, messages in conversations(ARGUMENTS).items():
        for tools in (None, TOOLS):
            options: dict[str, Any] = {"tools": tools, "add_generation_prompt": tools is None}
            allowed = expected(source, [messages, as_object[name]], **options)
            try:
                ours = template.render(ChatInputs(messages, **options))
            except InvalidRequest:
                assert not allowed, name
            else:
                assert ours in allowed, (name, tools is not None)


def shared(name: str) -> ChatTemplate:
    path = SHARED / f"{name}.jinja"
    if not path.exists():
        pytest.skip(f"no {path}")
    return inline_template({"default": path.read_text(encoding="utf-8")}, SPECIAL)


def test_a_call_is_not_lost_if_the_template_asks_whether_content_is_none() -> None:
    template = shared("deepseek-ai-DeepSeek-R1-Distill-Llama-8B")
    for content in (None, ""):
        text = template.render(ChatInputs([USER, calling(ARGUMENTS, content=content), RESULT]))
        assert f"get_weather\n```json\n{ARGUMENTS}\n```" in text
        assert "21 °C" in text


def test_arguments_as_text_and_as_an_object() -> None:
    compact = '{"b":1,"a":[true,null]}'
    for arguments in (compact, json.loads(compact)):
        talk = [USER, calling(arguments, content=None), RESULT]
        text = compact if arguments == compact else '{"b": 1, "a": [true, null]}'
        assert f">>>get_weather\n{text}" in shared("meetkai-functionary-medium-v3.2").render(ChatInputs(talk))
        assert f'"arguments": {text}' in shared("Qwen-Qwen3-0.6B").render(ChatInputs(talk))
        assert '"arguments": {"b": 1, "a": [true, null]}' in shared("Qwen-Qwen2.5-7B-Instruct").render(ChatInputs(talk))
        assert "call:get_weather{a:[true,None],b:1}" in shared("google-gemma-4-31B-it").render(ChatInputs(talk))


@pytest.mark.parametrize("name", ["google-gemma-3-it", "GLM-4.6", "Qwen3.5-4B"])
def test_parts_stay_parts(name: str) -> None:
    talk = ChatInputs([{"role": "user", "content": parts("First", "Second")}])
    assert "FirstSecond" in shared(name).render(talk)
    assert "First\nSecond" in shared("Qwen-Qwen3-0.6B").render(talk)


def test_a_developer_message_becomes_a_system_message_if_unsupported() -> None:
    talk = [{"role": "developer", "content": "Be kind."}, USER]
    assert "system\nBe kind." in shared("Qwen-Qwen3-0.6B").render(ChatInputs(talk))
    assert "system<|im_middle|>Be kind." in shared("Kimi-K2-Instruct").render(ChatInputs(talk))
    for name in ("openai-gpt-oss-120b", "google-gemma-4-31B-it"):
        template = shared(name)
        source = (SHARED / f"{name}.jinja").read_text(encoding="utf-8")
        assert template.render(ChatInputs(talk)) == theirs(source, talk, True, add_generation_prompt=True), name
