"""The table of tool formats, one per family of models."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.formats.harmony import HARMONY_TOOLS
from headrace.formats.json_reader import JsonArgumentsReader, JsonCallsReader
from headrace.formats.parameter_formats import (
    COHERE_XML,
    DEEPSEEK_V4,
    DEEPSEEK_V32,
    FUNCTION_GEMMA,
    GEMMA4,
    GLM45,
    GLM47,
    KIMI_K3,
    MINIMAX_M2,
    QWEN3_CODER,
)
from headrace.formats.python_reader import PythonCallsReader
from headrace.formats.states import CallForm, State, ToolFormat
from headrace.formats.values import Schemas

__all__ = ["TOOL_FORMATS"]

NAME, ARGUMENTS, KEY, VALUE = CallForm.NAME, CallForm.ARGUMENTS, CallForm.KEY, CallForm.VALUE
PARAMETERS = CallForm.PARAMETERS
_JSON_CALL = ('{"name": "', NAME, '", "arguments": ', ARGUMENTS, "}")


def _json_calls(_: Schemas) -> JsonCallsReader:
    return JsonCallsReader()


def _bare_json(_: Schemas) -> JsonCallsReader:
    return JsonCallsReader(bare=True)


def _json_with_ids(_: Schemas) -> JsonCallsReader:
    return JsonCallsReader(id_last=True)


def _json_arguments(_: Schemas) -> JsonArgumentsReader:
    return JsonArgumentsReader()


def _tagged(opens: tuple[str, ...], close: str) -> dict[str, State]:
    """JSON between two markers."""
    body = State("reader", reader=_json_calls, then="after")
    return {"body": body, "after": State("skip", {close: "start", **dict.fromkeys(opens, "body")})}


HERMES = ToolFormat(
    "hermes",
    {"<tool_call>": "body"},
    _tagged(("<tool_call>",), "</tool_call>"),
    form=CallForm(("<tool_call>\n", *_JSON_CALL, "\n</tool_call>"), between="\n", trigger="<tool_call>"),
)
SMOLLM2 = ToolFormat(
    "smollm2",
    {"<tool_call>": "body"},
    _tagged(("<tool_call>",), "</tool_call>"),
    form=CallForm(_JSON_CALL, begin="<tool_call>[", between=", ", end="]</tool_call>", trigger="<tool_call>"),
)
PHI4_MINI = ToolFormat(
    "phi4_mini",
    {"<|tool_call|>": "body", "functools": "body"},
    _tagged(("<|tool_call|>",), "<|/tool_call|>"),
    form=CallForm(_JSON_CALL, begin="<|tool_call|>[", between=", ", end="]<|/tool_call|>", trigger="<|tool_call|>"),
)


def _granite(name: str, marker: str) -> ToolFormat:
    opens = ("<|tool_call|>", "<tool_call>", "<function_call>")
    form = CallForm(_JSON_CALL, begin=f"{marker}[", between=", ", end="]", trigger=marker)
    return ToolFormat(name, dict.fromkeys(opens, "body"), _tagged(opens, "</tool_call>"), form=form)


LLAMA3_JSON = ToolFormat(
    "llama3_json",
    {"<|python_tag|>": "tag"},
    {
        "tag": State("skip", chars={"{": "body", "": "built_in"}),
        "body": State("reader", reader=_bare_json, then="after"),
        "built_in": State("reader", reader=lambda _: PythonCallsReader(False, ".call"), then="after"),
        "after": State("skip", {"<|python_tag|>": "tag"}, chars={"{": "body"}, ignored=";,"),
    },
    start_chars={"{": "body"},
    form=CallForm(
        ('{"name": "', NAME, '", "parameters": ', ARGUMENTS, "}"),
        between="; ",
        trigger='{"name": "',
        preludes=(("<|python_tag|>",),),
    ),
)
PYTHONIC = ToolFormat(
    "pythonic",
    {"<|python_start|>": "list", "<function_calls>": "lines"},
    {
        "list": State("skip", chars={"[": "body"}),
        "lines": State("skip", chars={"[": "body", "": "line"}),
        "body": State("reader", reader=lambda _: PythonCallsReader(), then="after"),
        "line": State("reader", reader=lambda _: PythonCallsReader(False), then="after"),
        "after": State("skip", {"<|python_end|>": "start", "</function_calls>": "start"}),
    },
    start_chars={"[": "body"},
    form=CallForm(
        (NAME, "(", PARAMETERS, ")"),
        begin="[",
        between=", ",
        end="]",
        trigger="[",
        parameter=(KEY, "=", VALUE),
        separator=", ",
        json_values=True,
        item=(VALUE,),
        member=('"', KEY, '": ', VALUE),
        brackets=("{", "}", "[", "]"),
        constants={"true": "True", "false": "False", "null": "None"},
    ),
)


def _mistral(name: str, form: CallForm) -> ToolFormat:
    """Every version is read alike; they differ in what is forced."""
    states = {
        "name": State("name", {"[CALL_ID]": "id", "[ARGS]": "arguments"}, chars={"[": "list", "{": "list"}),
        "id": State("id", {"[ARGS]": "arguments"}),
        "list": State("reader", reader=_json_with_ids),
        "arguments": State("reader", reader=_json_arguments),
    }
    return ToolFormat(name, {"[TOOL_CALLS]": "name"}, states, form=form, short_ids=True)


_ID9 = CallForm.ID9
MISTRAL_V3 = _mistral(
    "mistral_v3",
    CallForm(
        ('{"name": "', NAME, '", "arguments": ', ARGUMENTS, ', "id": "', _ID9, '"}'),
        begin="[TOOL_CALLS] [",
        between=", ",
        end="]",
        trigger="[TOOL_CALLS]",
    ),
)
MISTRAL_V11 = _mistral("mistral_v11", CallForm(("[TOOL_CALLS]", NAME, "[CALL_ID]", _ID9, "[ARGS]", ARGUMENTS)))
MISTRAL_V13 = _mistral("mistral_v13", CallForm(("[TOOL_CALLS]", NAME, "[ARGS]", ARGUMENTS)))

_BEGIN, _END, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_ALL_BEGIN, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"


def _deepseek(name: str, states: Mapping[str, State], call: tuple[str, ...], between: str) -> ToolFormat:
    section = State("skip", {_BEGIN: "head", _END: "section", _ALL_END: "start"})
    form = CallForm(call, begin=_ALL_BEGIN, between=between, end=_ALL_END, trigger=_ALL_BEGIN)
    return ToolFormat(name, {_ALL_BEGIN: "section", _BEGIN: "head"}, {"section": section, **states}, form=form)


_CLOSE = {_END: "section", _ALL_END: "start", _BEGIN: "head"}
DEEPSEEK_V3 = _deepseek(
    "deepseek_v3",
    {
        "head": State("header", {_SEP: "name"}),
        "name": State("name", {"```json": "arguments", _END: "section"}),
        "arguments": State("reader", reader=_json_arguments, then="close"),
        "close": State("skip", _CLOSE, ignored="`"),
    },
    (_BEGIN, "function", _SEP, NAME, "\n```json\n", ARGUMENTS, "\n```", _END),
    "\n",
)
DEEPSEEK_V31 = _deepseek(
    "deepseek_v31",
    {
        "head": State("name", {_SEP: "arguments", _END: "section"}),
        "arguments": State("reader", reader=_json_arguments, then="close"),
        "close": State("skip", _CLOSE),
    },
    (_BEGIN, NAME, _SEP, ARGUMENTS, _END),
    "",
)
_KIMI_BEGIN, _KIMI_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_KIMI_ALL, _KIMI_ALL_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"


def _kimi_id(written: str) -> tuple[str, str | None]:
    """The id is `functions.NAME:INDEX`, counted over the conversation."""
    name, colon, index = written.rpartition(":")
    if not colon or not index.isdigit():
        return written.removeprefix("functions."), None
    return name.removeprefix("functions."), written


KIMI_K2 = ToolFormat(
    "kimi_k2",
    {_KIMI_ALL: "section", _KIMI_BEGIN: "name"},
    {
        "section": State("skip", {_KIMI_BEGIN: "name", _KIMI_END: "section", _KIMI_ALL_END: "start"}),
        "name": State(
            "name", {"<|tool_call_argument_begin|>": "arguments", _KIMI_END: "section", _KIMI_ALL_END: "start"}
        ),
        "arguments": State(
            "reader",
            reader=_json_arguments,
            then="section",
        ),
    },
    call_id=_kimi_id,
    form=CallForm(
        (
            f"{_KIMI_BEGIN}functions.",
            NAME,
            ":",
            CallForm.INDEX,
            "<|tool_call_argument_begin|>",
            ARGUMENTS,
            _KIMI_END,
        ),
        begin=_KIMI_ALL,
        end=_KIMI_ALL_END,
        trigger=_KIMI_ALL,
    ),
)
COHERE_JSON = ToolFormat(
    "cohere_json",
    {"<|START_ACTION|>": "body"},
    _tagged(("<|START_ACTION|>",), "<|END_ACTION|>"),
    form=CallForm(
        ('{"tool_call_id": "', CallForm.INDEX, '", "tool_name": "', NAME, '", "parameters": ', ARGUMENTS, "}"),
        begin="<|START_ACTION|>[\n    ",
        between=",\n    ",
        end="\n]<|END_ACTION|>",
        trigger="<|START_ACTION|>",
    ),
    dropped=COHERE_XML.dropped,
)
TOOL_FORMATS: dict[str, ToolFormat] = {
    found.name: found
    for found in (
        HERMES,
        QWEN3_CODER,
        LLAMA3_JSON,
        PYTHONIC,
        MISTRAL_V3,
        MISTRAL_V11,
        MISTRAL_V13,
        DEEPSEEK_V3,
        DEEPSEEK_V31,
        DEEPSEEK_V32,
        DEEPSEEK_V4,
        GLM45,
        GLM47,
        KIMI_K2,
        KIMI_K3,
        MINIMAX_M2,
        _granite("granite30", "<|tool_call|>"),
        _granite("granite31", "<tool_call>"),
        PHI4_MINI,
        HARMONY_TOOLS,
        FUNCTION_GEMMA,
        GEMMA4,
        SMOLLM2,
        COHERE_JSON,
        COHERE_XML,
    )
}
"""By the name that `--tool-format` takes."""
