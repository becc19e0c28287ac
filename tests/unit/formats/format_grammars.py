"""Grammars of forced calls over a vocabulary of bytes and markers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache

import numpy as np
from format_samples import Sample, machine

from headrace.core.matcher import Matcher
from headrace.formats.call_grammar import CallableTool, call_grammar
from headrace.formats.tool_formats import TOOL_FORMATS
from headrace.grammar.backend import CompiledGrammar, GrammarVocabulary
from headrace.grammar.llguidance_backend import LlguidanceBackend
from headrace.types import Constraint

SPECIAL = (
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|start|>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "｜DSML｜",
    "<start_function_call>",
    "<end_function_call>",
    "<escape>",
    "<|tool_call>",
    "<tool_call|>",
    '<|"|>',
    "<|open|>",
    "<|close|>",
    "<|sep|>",
    "<|START_ACTION|>",
    "<|END_ACTION|>",
    "<|START_TEXT|>",
    "<|END_TEXT|>",
    "<cofl:tool_calls>",
    "</cofl:tool_calls>",
    "</cofl:value>",
)
END = 256 + len(SPECIAL)
WORDS = [*(bytes([i]) for i in range(256)), *(marker.encode() for marker in SPECIAL), b"<end>"]
IDS = {marker: 256 + at for at, marker in enumerate(SPECIAL)}


@cache
def make_backend() -> LlguidanceBackend:
    ids = frozenset(range(256, END + 1))
    return LlguidanceBackend(GrammarVocabulary(WORDS, ids, (END,), END + 1, lambda text: list(text.encode())))


@lru_cache(256)
def compiled(text: str) -> CompiledGrammar:
    return make_backend().compile(Constraint("tool_calls", text))


def matcher(
    name: str,
    special: bool | Mapping[str, int],
    tools: Sequence[CallableTool],
    free_text: bool = False,
    parallel: bool = True,
) -> Matcher:
    """Of calls of these tools. `special`: these markers, or all those in SPECIAL, are tokens."""
    of = machine(Sample("", name, "harmony" if name == "harmony" else None, ""))
    found = call_grammar(
        TOOL_FORMATS[name], tools, _tokens(special).get, of.markers | of.inline,
        free_text=free_text, parallel=parallel,
    )  # fmt: skip
    text = json.dumps({"lark": found.lark, "schemas": found.schemas, "strict": found.strict, "texts": found.texts})
    return compiled(text).matcher()


def _tokens(special: bool | Mapping[str, int]) -> Mapping[str, int]:
    return special if not isinstance(special, bool) else IDS if special else {}


def tokens(text: str, special: bool | Mapping[str, int]) -> list[int]:
    found = []
    while text:
        marker = next((m for m in _tokens(special) if text.startswith(m)), None)
        found += [IDS[marker]] if marker else list(text[0].encode())
        text = text[len(marker or " ") :]
    return found


def allowed(found: Matcher, token: int) -> bool:
    return bool(found.mask[token // 32] >> np.uint32(token % 32) & 1)


def accepts(found: Matcher, text: str, special: bool | Mapping[str, int]) -> bool:
    for token in tokens(text, special):
        if found.stopped or not allowed(found, token):
            return False
        assert found.advance(token) is None
    return found.accepting
