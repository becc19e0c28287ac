"""The tool formats whose parameters are written one by one, most of them as elements."""

from __future__ import annotations

from dataclasses import replace

from headrace.formats.gemma_reader import GemmaCallReader
from headrace.formats.states import CallForm, Move, ReaderFactory, State, ToolFormat
from headrace.formats.xml_reader import XmlCallReader, XmlSyntax

__all__ = [
    "COHERE_XML",
    "DEEPSEEK_V4",
    "DEEPSEEK_V32",
    "FUNCTION_GEMMA",
    "GEMMA4",
    "GLM45",
    "GLM47",
    "KIMI_K3",
    "MINIMAX_M2",
    "QWEN3_CODER",
]

NAME, KEY, VALUE, TYPE = CallForm.NAME, CallForm.KEY, CallForm.VALUE, CallForm.TYPE
PARAMETERS = CallForm.PARAMETERS


def _xml(syntax: XmlSyntax) -> ReaderFactory:
    return lambda schemas: XmlCallReader(syntax, schemas)


_CODER = XmlSyntax("<parameter=", ">", "</parameter>", "</function>", trim=True, outer_end="</tool_call>")
QWEN3_CODER = ToolFormat(
    "qwen3_coder",
    {"<tool_call>": "outer", "<function=": "body"},
    {
        "outer": State("skip", {"<function=": "body", "</tool_call>": "start"}),
        "body": State("reader", reader=_xml(_CODER), then="after"),
        "after": State("skip", {"</tool_call>": "start", "<function=": "body", "<tool_call>": "outer"}),
    },
    form=CallForm(
        ("<tool_call>\n<function=", NAME, ">\n", PARAMETERS, "</function>\n</tool_call>"),
        between="\n",
        trigger="<tool_call>",
        parameter=("<parameter=", KEY, ">\n", VALUE, "\n</parameter>\n"),
    ),
)
_DSML = "｜DSML｜"


def _dsml(name: str, block: str) -> ToolFormat:
    """`block`: the element around the calls. Both are read; this one is forced."""
    syntax = XmlSyntax(
        f"<{_DSML}parameter", ">", f"</{_DSML}parameter>", f"</{_DSML}invoke>", attributes=True,
        outer_end=f"</{_DSML}{block}>",
    )  # fmt: skip
    ends = {f"</{_DSML}function_calls>": "start", f"</{_DSML}tool_calls>": "start"}
    states = {
        "section": State("skip", {f"<{_DSML}invoke": "body", **ends}),
        "body": State("reader", reader=_xml(syntax), then="section"),
    }
    form = CallForm(
        (f'<{_DSML}invoke name="', NAME, '">\n', PARAMETERS, f"</{_DSML}invoke>\n"),
        begin=f"<{_DSML}{block}>\n",
        end=f"</{_DSML}{block}>",
        trigger=f"<{_DSML}{block}>",
        parameter=(f'<{_DSML}parameter name="', KEY, '" string="', TYPE, '">', VALUE, f"</{_DSML}parameter>\n"),
        types={"string": "true", **dict.fromkeys(("integer", "number", "boolean", "null", "object", "array"), "false")},
    )
    opens: dict[str, Move] = {f"<{_DSML}function_calls>": "section", f"<{_DSML}tool_calls>": "section"}
    return ToolFormat(name, opens, states, form=form, inline=frozenset({_DSML}))


DEEPSEEK_V32 = _dsml("deepseek_v32", "function_calls")
DEEPSEEK_V4 = _dsml("deepseek_v4", "tool_calls")
_GLM_SYNTAX = XmlSyntax(
    "<arg_key>", "</arg_key>", "</arg_value>", "</tool_call>", value_open="<arg_value>", plain_name=True
)
_GLM_STATES = {"body": State("reader", reader=_xml(_GLM_SYNTAX))}
_GLM_INLINE = frozenset({"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>"})
GLM45 = ToolFormat(
    "glm45",
    {"<tool_call>": "body"},
    _GLM_STATES,
    form=CallForm(
        ("<tool_call>", NAME, "\n", PARAMETERS, "</tool_call>"),
        between="\n",
        parameter=("<arg_key>", KEY, "</arg_key>\n<arg_value>", VALUE, "</arg_value>\n"),
    ),
    inline=_GLM_INLINE,
)
GLM47 = ToolFormat(
    "glm47",
    {"<tool_call>": "body"},
    _GLM_STATES,
    form=CallForm(
        ("<tool_call>", NAME, PARAMETERS, "</tool_call>"),
        parameter=("<arg_key>", KEY, "</arg_key><arg_value>", VALUE, "</arg_value>"),
    ),
    inline=_GLM_INLINE,
)
_MINIMAX = XmlSyntax("<parameter", ">", "</parameter>", "</invoke>", attributes=True, outer_end="</minimax:tool_call>")
MINIMAX_M2 = ToolFormat(
    "minimax_m2",
    {"<minimax:tool_call>": "section"},
    {
        "section": State("skip", {"<invoke": "body", "</minimax:tool_call>": "start"}),
        "body": State("reader", reader=_xml(_MINIMAX), then="section"),
    },
    form=CallForm(
        ('<invoke name="', NAME, '">\n', PARAMETERS, "</invoke>\n"),
        begin="<minimax:tool_call>\n",
        end="</minimax:tool_call>",
        trigger="<minimax:tool_call>",
        parameter=('<parameter name="', KEY, '">', VALUE, "</parameter>\n"),
    ),
)


def _gemma(name: str, opens: str, close: str, quote: str) -> ToolFormat:
    states = {
        "body": State("reader", reader=lambda _: GemmaCallReader(quote), then="after"),
        "after": State("skip", {close: "start", opens: "body"}),
    }
    form = CallForm(
        (f"{opens}call:", NAME, "{", PARAMETERS, "}" + close),
        trigger=opens,
        parameter=(KEY, ":", VALUE),
        separator=",",
        item=(VALUE,),
        quotes=(quote, quote),
        brackets=("{", "}", "[", "]"),
    )
    return ToolFormat(name, {opens: "body"}, states, form=form, inline=frozenset({quote}))


FUNCTION_GEMMA = _gemma("function_gemma", "<start_function_call>", "<end_function_call>", "<escape>")
GEMMA4 = _gemma("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>')

_JSON_TYPES = ("string", "number", "boolean", "null", "object", "array")


def _element(name: str) -> str:
    return f"<|open|>{name}<|sep|>"


def _end(name: str) -> str:
    return f"<|close|>{name}<|sep|>"


_K3_SYNTAX = XmlSyntax(
    "<|open|>argument", "<|sep|>", _end("argument"), _end("call"), attributes=True, function_key="tool",
    parameter_key="key", name_end="<|sep|>", outer_end=_end("tools"), whole_open="<|open|>json",
    whole_end=_end("json"),
)  # fmt: skip
KIMI_K3 = ToolFormat(
    "kimi_k3",
    {_element("tools"): "section"},
    {
        "section": State("skip", {"<|open|>call": "body", _end("tools"): "start", _end("call"): "section"}),
        "body": State("reader", reader=_xml(_K3_SYNTAX), then="section"),
    },
    form=CallForm(
        ('<|open|>call tool="', NAME, '" index="', CallForm.INDEX, '"<|sep|>', PARAMETERS, _end("call")),
        begin=_element("tools"),
        end=_end("tools"),
        parameter=('<|open|>argument key="', KEY, '" type="', TYPE, '"<|sep|>', VALUE, _end("argument")),
        types={"integer": "number", **{name: name for name in _JSON_TYPES}},
        escaped='&"',
        # The prompt may have opened the response.
        preludes=((_element("response"), _end("response")), (_end("response"),)),
    ),
    inline=frozenset({"<|open|>", "<|close|>", "<|sep|>"}),
    dropped=frozenset({_element("response"), _end("response"), _end("message"), "<|end_of_msg|>"}),
)

_COFL_FLAT = XmlSyntax(
    "<cofl:tool_param", ">", "</cofl:tool_param>", "</cofl:tool_call>", attributes=True, id_key="id",
    outer_end="</cofl:tool_calls>",
)  # fmt: skip
_COFL = replace(_COFL_FLAT, param_open="<cofl:value", value_end="</cofl:value>", nested=True, other=_COFL_FLAT)
COHERE_XML = ToolFormat(
    "cohere_xml",
    {"<cofl:tool_calls>": "section"},
    {
        "section": State("skip", {"<cofl:tool_call": "body", "</cofl:tool_calls>": "start"}),
        "body": State("reader", reader=_xml(_COFL), then="section"),
    },
    form=CallForm(
        ('<cofl:tool_call id="', CallForm.INDEX, '" name="', NAME, '">', PARAMETERS, "</cofl:tool_call>"),
        begin="<cofl:tool_calls>",
        end="</cofl:tool_calls>",
        parameter=('<cofl:value name="', KEY, '" type="', TYPE, '">', VALUE, "</cofl:value>"),
        types={
            "string": "raw",
            "object": "dict",
            "array": "list",
            **dict.fromkeys(("integer", "number", "boolean", "null"), "json"),
        },
        item=('<cofl:value type="', TYPE, '">', VALUE, "</cofl:value>"),
        escaped='&"<>',
    ),
    inline=frozenset({"</cofl:tool_call>", "</cofl:value>", "</cofl:tool_param>"}),
    dropped=frozenset({"<|START_TEXT|>", "<|END_TEXT|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"}),
)
