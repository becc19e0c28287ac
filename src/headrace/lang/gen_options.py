"""The arguments of `gen`, read into a plan's fields: sampling parameters, the constraint, the value's type."""

from __future__ import annotations

import difflib
import json as json_text
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import InvalidRequest, ProgramError, excerpt
from headrace.sampling import SAMPLING_FIELDS, SamplingParams
from headrace.structured_outputs import KINDS, StructuredOutputs

__all__ = ["FORMS", "MAX_TOKENS", "GenOptions", "read_constraint", "read_options", "read_sampling"]

MAX_TOKENS = 128
"""Tokens of a `gen` that names no number."""
FORMS: Mapping[type, tuple[str, dict[str, Any]]] = {
    int: ("int", {"regex": "-?(0|[1-9][0-9]{0,17})"}),
    float: ("float", {"regex": r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?"}),
    bool: ("bool", {"choice": ["true", "false"]}),
}
"""Python's types: the value's type and the constraint."""
_REFUSED = {
    "n": "one state cannot go on with several texts: use s.fork(n)",
    "prompt_logprobs": "use select, which scores given texts",
    "prompt_logprobs_start": "use select, which scores given texts",
    "structured_outputs": "give the constraint itself: json=, regex=, choices=, grammar=, type=",
}
_ENDS = ("stop", "stop_token_ids", "min_tokens", "ignore_eos")
"""Sampling parameters that say where a text ends, as a constraint does."""


@dataclass(frozen=True, slots=True)
class GenOptions:
    type: str
    sampling: dict[str, Any]
    constraint: dict[str, Any] | None
    form: StructuredOutputs | None = field(default=None, compare=False)
    """If a Python class was given as the form: it makes instances of the values."""


def read_options(options: Mapping[str, Any]) -> GenOptions:
    """Raises ProgramError without a place."""
    given = dict(options)
    wanted = given.pop("type", None)
    if "choices" in given:
        given["choice"] = given.pop("choices")
    fields = {name: given.pop(name) for name in (*KINDS, "whitespace", "strict") if name in given}
    kind, form = _form(wanted, {name: value for name, value in fields.items() if value is not None})
    sampling = read_sampling({"max_tokens": MAX_TOKENS, **given}, constrained=form is not None)
    if form is None:
        return GenOptions(kind, sampling, None)
    return GenOptions(kind, sampling, _as_data(form), form if form._adapter is not None else None)


def read_sampling(given: Mapping[str, Any], constrained: bool) -> dict[str, Any]:
    """Checked sampling parameters as JSON. Raises ProgramError without a place."""
    for name in given:
        if name in _REFUSED:
            raise ProgramError(f"gen takes no `{name}`: {_REFUSED[name]}")
        if name not in SAMPLING_FIELDS:
            others = {*SAMPLING_FIELDS, "choices", "timeout", "type", *KINDS} - {name}
            near = difflib.get_close_matches(name, sorted(others), 1)
            raise ProgramError(f"gen has no argument `{name}`" + (f": did you mean `{near[0]}`?" if near else ""))
    if given.get("max_tokens") is None:
        raise ProgramError("`max_tokens` must be a number: every plan has an upper bound of tokens")
    ends = [name for name in _ENDS if constrained and given.get(name)]
    if ends:
        raise ProgramError(f"`{ends[0]}` cannot be combined with a constraint, which says itself where the text ends")
    try:
        params = SamplingParams(**given)
    except InvalidRequest as error:
        raise ProgramError(str(error)) from None
    return {name: _plain(getattr(params, name)) for name in given}


def read_constraint(data: Mapping[str, Any]) -> StructuredOutputs:
    """The constraint of a plan. Raises ProgramError without a place."""
    try:
        return StructuredOutputs.of(data)
    except (InvalidRequest, TypeError) as error:
        raise ProgramError(f"the constraint is wrong: {error}") from None


def _form(wanted: Any, fields: dict[str, Any]) -> tuple[str, StructuredOutputs | None]:
    """The value's type and the constraint."""
    constrained = any(name in fields for name in KINDS)
    if wanted is not None and constrained:
        raise ProgramError("give `type` or a constraint, not both")
    if wanted is str or (wanted is None and not constrained):
        return "text", None
    if isinstance(wanted, type) and wanted in FORMS:
        kind, data = FORMS[wanted]
        return kind, read_constraint(data)
    try:
        form = StructuredOutputs(**(fields if wanted is None else {"json": wanted, **fields}))
    except InvalidRequest as error:
        raise ProgramError(str(error)) from None
    return ("json" if form.json is not None or form.json_object else "text"), form


def _as_data(form: StructuredOutputs) -> dict[str, Any]:
    """A constraint as JSON."""
    found = form.constraint()
    data: dict[str, Any]
    if found.kind == "json_schema":
        try:
            data = {"json": json_text.loads(found.text)}
        except ValueError:
            raise ProgramError(f"`json` is no JSON: {excerpt(found.text)}") from None
    elif found.kind == "choice":
        data = {"choice": list(form.choice or ())}
    elif found.kind == "json_object":
        data = {"json_object": True}
    else:
        data = {"grammar" if found.kind in ("lark", "gbnf") else found.kind: found.text}
    if form.whitespace != "flexible":
        data["whitespace"] = form.whitespace
    return data | ({"strict": True} if form.strict else {})


def _plain(value: Any) -> Any:
    return [_plain(entry) for entry in value] if isinstance(value, tuple) else value
