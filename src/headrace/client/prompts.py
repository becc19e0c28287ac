"""Converts the prompts and parameters of `LLM`'s callers to lists of the same length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from headrace.errors import InvalidRequest
from headrace.sampling import SamplingParams
from headrace.sampling_fields import token_ids

__all__ = ["Prompt", "params_per_prompt", "read_prompts"]

Prompt = Any
"""A text, a sequence or array of token ids, or a mapping with one of both under `prompt` or `prompt_token_ids`."""
_KEYS = ("prompt", "prompt_token_ids")
_SHAPES = "a text, token ids, or a mapping with `prompt` or `prompt_token_ids`"


def read_prompts(prompts: object, encode: Callable[[str], list[int]]) -> tuple[list[str | None], list[tuple[int, ...]]]:
    """Texts (None if ids were given) and ids of one or several prompts. Raises InvalidRequest."""
    many = [prompts] if _is_one(prompts) else _entries(prompts)
    texts: list[str | None] = []
    ids: list[tuple[int, ...]] = []
    for index, prompt in enumerate(many):
        name = "prompt" if len(many) == 1 else f"prompts[{index}]"
        text, found = _read(prompt, name, encode)
        texts.append(text)
        ids.append(found)
    return texts, ids


def params_per_prompt(
    params: object, count: int, defaults: Mapping[str, int | float] = MappingProxyType({})
) -> list[SamplingParams]:
    """Sampling parameters for each prompt: the same for all, or a list. With None they are the defaults, which are the
    checkpoint's. Raises InvalidRequest."""
    if params is None:
        return [SamplingParams(**defaults)] * count  # type: ignore[arg-type]
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or isinstance(params, str):
        raise InvalidRequest(f"`params` takes SamplingParams or a list of them, got {type(params).__name__}", "params")
    for index, one in enumerate(params):
        if not isinstance(one, SamplingParams):
            raise InvalidRequest(f"`params[{index}]` takes SamplingParams, got {type(one).__name__}", "params")
    if len(params) != count:
        raise InvalidRequest(
            f"{count} prompts, but {len(params)} sampling parameters: give one, or one for each prompt", "params"
        )
    return list(params)


def _is_one(prompts: object) -> bool:
    """True for a text, a mapping, or token ids: a sequence whose first entry is a number."""
    if isinstance(prompts, (str, bytes, bytearray, Mapping)):
        return True
    if hasattr(prompts, "ndim"):
        return bool(prompts.ndim == 1)
    return isinstance(prompts, Sequence) and len(prompts) > 0 and _is_number(prompts[0])


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) or getattr(value, "ndim", None) == 0


def _entries(prompts: object) -> list[object]:
    if not isinstance(prompts, Iterable) or getattr(prompts, "ndim", 1) == 0:
        raise InvalidRequest(f"`prompts` takes {_SHAPES}, or a list of those, got {type(prompts).__name__}", "prompt")
    return list(prompts)


def _read(prompt: object, name: str, encode: Callable[[str], list[int]]) -> tuple[str | None, tuple[int, ...]]:
    if isinstance(prompt, Mapping):
        prompt = _from_mapping(prompt, name)
    if isinstance(prompt, str):
        return prompt, tuple(encode(prompt))
    if isinstance(prompt, (bytes, bytearray)):
        raise InvalidRequest(f"`{name}` is bytes: decode them to a text first", "prompt", "invalid_value")
    if not isinstance(prompt, Iterable) or getattr(prompt, "ndim", 1) == 0:
        raise InvalidRequest(f"`{name}` takes {_SHAPES}, got {type(prompt).__name__}", "prompt", "invalid_value")
    try:
        return None, token_ids(prompt, name)
    except InvalidRequest as error:
        error.param = "prompt"
        raise


def _from_mapping(prompt: Mapping[Any, Any], name: str) -> object:
    unknown = [key for key in prompt if key not in _KEYS]
    if unknown:
        raise InvalidRequest(
            f"`{name}` has the key {str(unknown[0])[:60]!r}, which is not supported: give `prompt` or "
            "`prompt_token_ids`",
            "prompt",
            "invalid_value",
        )
    given = [key for key in _KEYS if prompt.get(key) is not None]
    if len(given) != 1:
        what = "both" if given else "neither of"
        raise InvalidRequest(
            f"`{name}` has {what} `prompt` and `prompt_token_ids`: give one", "prompt", "invalid_value"
        )
    key, value = given[0], prompt[given[0]]
    if (key == "prompt") != isinstance(value, str):
        kind = type(value).__name__
        expected = "a text" if key == "prompt" else "token ids"
        raise InvalidRequest(f"`{name}`: `{key}` takes {expected}, got {kind}", "prompt", "invalid_value")
    result: object = value
    return result
