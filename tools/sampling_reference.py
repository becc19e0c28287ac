"""Writes docs/sampling.md from the table of sampling parameters: `python tools/sampling_reference.py >
docs/sampling.md`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields

from headrace.sampling import SAMPLING_FIELDS, SamplingParams
from headrace.sampling_fields import Field

HEAD = """\
# Sampling parameters

Made from the table in `src/headrace/sampling.py` by `python tools/sampling_reference.py > docs/sampling.md`.

In Python they are fields of `SamplingParams`, in the API fields of the body under the same names. Python accepts lists,
tuples, sets and numpy's arrays and scalars; whole floats count as whole numbers, and bools do not. None, in the API
null, stands for the default unless the table says otherwise. A value of another type or out of range is an error that
names the field.

Where a request of the API or a `gen` of a program leaves out `temperature`, `top_p`, `top_k`, `min_p` or
`repetition_penalty`, and for `LLM.generate` and `LLM.chat` without parameters, the checkpoint's recommendation stands
in the place of the default (`info.sampling_defaults`; `--generation-config none`: there is none). `SamplingParams` that
are given to `LLM` count as they are.

| parameter | takes | default | range | in the API | |
|---|---|---|---|---|---|
"""
TAKES = {
    "whole": "a whole number",
    "number": "a number",
    "flag": "true or false",
    "texts": "a text or texts",
    "ids": "token ids",
    "biases": "token ids to numbers",
    "structure": "`StructuredOutputs`",
}
ELSEWHERE = {
    "max_tokens": "also `max_completion_tokens` in chat",
    "structured_outputs": "an object, with `json` as a schema",
    "logprobs": "0 to 20; in chat `logprobs: true` and `top_logprobs`",
}


def reference() -> str:
    return HEAD + "".join(_rows())


def _rows() -> Iterator[str]:
    for declared in fields(SamplingParams):
        field = SAMPLING_FIELDS[declared.name]
        none = f" None: {field.none}." if field.none is not None else ""
        cells = (
            f"`{declared.name}`",
            TAKES[field.kind],
            _default(declared.default),
            _range(field.least, field.most, field.above) if field.longest is None else f"at most {field.longest}",
            ELSEWHERE.get(declared.name, _in_the_api(field)),
            field.doc + none,
        )
        yield "| " + " | ".join(cells) + " |\n"


def _default(value: object) -> str:
    return "none" if value == () else f"{value}"


def _in_the_api(field: Field) -> str:
    if field.api_longest is not None:
        return f"at most {field.api_longest}"
    return "" if field.api is None else _range(*field.api, above=False)


def _range(least: float | None, most: float | None, above: bool) -> str:
    if least is None:
        return ""
    low = f"above {_number(least)}" if above else _number(least)
    return f"{low} and up" if most is None else f"{low} to {_number(most)}"


def _number(value: float) -> str:
    for power in (31, 53, 63, 64):
        for offset in (0, -1):
            if abs(value) == 2**power + offset:
                return f"{'-' if value < 0 else ''}2^{power}{offset or ''}"
    return str(int(value)) if not math.isinf(value) and value == int(value) else f"{value:g}"


if __name__ == "__main__":
    print(reference(), end="")
