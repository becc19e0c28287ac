"""How a request is speculated, as its caller states it: how many drafts, from which method, and what is predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import InvalidRequest, excerpt
from headrace.sampling_fields import token_ids

__all__ = ["PREDICTED", "SpeculationChoice", "check_method", "read_predictions"]

PREDICTED = "predicted"
"""The method that drafts from a request's own prediction: every engine has it."""
_KEYS = ("method", "max_tokens")
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SpeculationChoice:
    """Drafts never change an output, so this is only about speed."""

    method: str | None = None
    """None: whatever the engine drafts with."""
    max_tokens: int | None = None
    """Most drafts that one step verifies; 0: none, None: as many as pay."""

    def __post_init__(self) -> None:
        """Raises InvalidRequest."""
        most: object = self.max_tokens
        if self.method is not None and not isinstance(self.method, str):
            raise _wrong(".method", f"takes a text, got {excerpt(self.method, 60)}")
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or not 0 <= most <= _MOST):
            raise _wrong(".max_tokens", f"takes a whole number from 0 on, got {excerpt(most, 60)}")

    @classmethod
    def of(cls, value: object) -> SpeculationChoice:
        """True and None change nothing, False is no drafts, a mapping has `method`, `max_tokens` or both. Raises
        InvalidRequest."""
        if value is None or isinstance(value, bool):
            return cls(max_tokens=0 if value is False else None)
        if not isinstance(value, Mapping):
            raise _wrong("", f"takes True, False or a mapping of {' and '.join(_KEYS)}, got {excerpt(value, 60)}")
        unknown = [key for key in value if key not in _KEYS]
        if unknown:
            raise _wrong("", f"has no field {excerpt(unknown[0], 60)}; there are {' and '.join(_KEYS)}")
        return cls(**value)

    def of_prediction(self, predicted: tuple[int, ...] | None) -> SpeculationChoice:
        """The choice of a request whose prediction has these tokens, or that has none: all drafts of an empty one are
        none, since whether a request is served does not depend on what is expected."""
        return SpeculationChoice(max_tokens=0) if self.method == PREDICTED and predicted == () else self


def check_method(choice: SpeculationChoice, speculate: str | None, predicted: bool) -> None:
    """Raise InvalidRequest for a method that this request cannot have. `speculate`: the engine's option; `predicted`:
    the request has a prediction."""
    own = None if speculate is None else speculate.partition(":")[0]
    if choice.method in (None, own) or (choice.method == PREDICTED and predicted):
        return
    if choice.method == PREDICTED:
        raise _wrong(".method", f"{PREDICTED!r} needs a `prediction`, and this request has none: give one")
    there = [] if own in (None, PREDICTED) else [str(own)]
    there.append(own if own == PREDICTED else f"{PREDICTED} (for a request with a `prediction`)")
    raise _wrong(".method", f"{excerpt(choice.method, 60)} is not what this engine drafts with: {', '.join(there)}")


def read_predictions(
    predictions: object, count: int, encode: Callable[[str], list[int]]
) -> list[tuple[int, ...] | None]:
    """The tokens of the prediction for each of `count` prompts, None where there is none: one text for all of them, or
    a list with a text, token ids or None for each. Raises InvalidRequest."""
    if predictions is None or isinstance(predictions, str):
        return [_read(predictions, "predictions", encode)] * count
    if not isinstance(predictions, Sequence) or isinstance(predictions, (bytes, bytearray)):
        raise _wrong_prediction("predictions", f"takes a text or a list, got {type(predictions).__name__}")
    if len(predictions) != count:
        raise _wrong_prediction("predictions", f"needs one entry a prompt, {count} in all, got {len(predictions)}")
    return [_read(one, f"predictions[{index}]", encode) for index, one in enumerate(predictions)]


def _read(prediction: object, name: str, encode: Callable[[str], list[int]]) -> tuple[int, ...] | None:
    if prediction is None:
        return None
    if isinstance(prediction, str):
        return tuple(encode(prediction)) if prediction else ()
    return token_ids(prediction, name)


def _wrong(path: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"`speculation{path}` {what}", f"speculation{path}", "invalid_value")


def _wrong_prediction(name: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"`{name}` {what}", name, "invalid_value")
