"""Sampling parameters in request bodies: types, ranges and descriptions come from the table in `headrace.sampling`."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, Union

from msgspec import Meta, Struct, defstruct

from headrace.sampling import SAMPLING_FIELDS
from headrace.sampling_fields import Field

__all__ = ["limits", "with_sampling_fields"]

B = TypeVar("B", bound=Struct)
_STOP = Annotated[str, Meta(min_length=1, max_length=1000)]
_BIAS = Annotated[float, Meta(ge=-100, le=100)]


def limits(name: str) -> Meta:
    """The range of a number that the server accepts."""
    field = SAMPLING_FIELDS[name]
    least, most = field.api or (field.least, field.most)
    bounds: dict[str, Any] = {"description": field.doc}
    if least is not None:
        bounds["gt" if field.above and field.api is None else "ge"] = _tidy(field, least)
    if most is not None:
        bounds["le"] = _tidy(field, most)
    return Meta(**bounds)


def with_sampling_fields(kind: type[B]) -> type[B]:
    """Add to a body every parameter of the table that it doesn't declare itself; each may be null."""
    missing = {name: field for name, field in SAMPLING_FIELDS.items() if name not in kind.__struct_fields__}
    fields = [(name, Union[_type(name, field), None], None) for name, field in missing.items()]  # noqa: UP007
    made: Any = defstruct(
        kind.__name__, fields, bases=(kind,), module=kind.__module__, namespace={"__doc__": kind.__doc__}
    )
    result: type[B] = made
    return result


def _tidy(field: Field, bound: float) -> float:
    return int(bound) if field.kind == "whole" else float(bound)


def _type(name: str, field: Field) -> Any:
    if field.kind == "texts":
        return Union[_STOP, Annotated[list[_STOP], Meta(description=field.doc, max_length=field.api_longest)]]  # noqa: UP007
    plain: dict[str, Any] = {"flag": bool, "ids": list[int], "biases": dict[str, _BIAS]}
    if field.kind in plain:
        return Annotated[plain[field.kind], Meta(description=field.doc, max_length=field.api_longest)]
    plain_number: Any = int if field.kind == "whole" else float
    return Annotated[plain_number, limits(name)]
