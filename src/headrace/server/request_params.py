"""Builds `SamplingParams` from a request's fields, and computes the room that is left for output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.client.api import ModelInfo
from headrace.client.stops import special_stops
from headrace.errors import ContextOverflow, InvalidRequest, NeverFits
from headrace.sampling import SAMPLING_FIELDS, SamplingParams
from headrace.server.context import ServerTokenizer
from headrace.server.schemas import GenerationRequest

__all__ = [
    "CHARACTERS_PER_TOKEN",
    "MOST_CHARACTERS",
    "check_characters",
    "check_length",
    "check_size",
    "check_stream_options",
    "encode_within",
    "kept_tokens",
    "output_room",
    "sampling_params",
    "stop_tokens",
]

_LONGEST_TOKEN = 256
"""Characters; no vocabulary in use has a longer token."""
_PROBE = 8
"""Characters per token of the context: so much of a long text is tokenised first, to see whether the text fits."""
_LEAST_PROBE = 4096
MOST_CHARACTERS = 2**20
"""Characters that are tokenised without generating; more for a model with a longer context."""
CHARACTERS_PER_TOKEN = 8


def stop_tokens(request: GenerationRequest, tokenizer: ServerTokenizer) -> tuple[int, ...]:
    """Special tokens whose text is a stop string: since their text is not shown, the token itself must stop."""
    stops = getattr(request, "stop", None)
    if stops is None or getattr(request, "skip_special_tokens", None) is False:
        return ()
    return special_stops([stops] if isinstance(stops, str) else stops, tokenizer)


def sampling_params(
    request: GenerationRequest,
    max_tokens: int,
    defaults: Mapping[str, int | float],
    *,
    logprobs: int | None,
    prompt_logprobs: int | None,
    stop_tokens: tuple[int, ...] = (),
) -> SamplingParams:
    """The sampling parameters of a request. `defaults` are the model's, `stop_tokens` are added to those of the
    request. Raises InvalidRequest; limits that depend on the model are checked by the client."""
    # The constraint is a field of the request itself: `response_format` may state it, too.
    names = [name for name in SAMPLING_FIELDS if name != "structured_outputs"]
    given = {name: value for name in names if (value := getattr(request, name, None)) is not None}
    decided: dict[str, Any] = {"max_tokens": max_tokens, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
    if stop_tokens:
        decided["stop_token_ids"] = (*given.get("stop_token_ids", ()), *stop_tokens)
    return SamplingParams(**{**defaults, **given, **decided})


def output_room(
    wanted: tuple[str, int | None], default: int | None, prompt: tuple[str, int], info: ModelInfo, least: int = 1
) -> int:
    """The number of tokens that may be generated. `wanted` and `prompt` are pairs: a field's name and its tokens.

    A number that the client gives must fit as it is. If it gives none (None), the number is `default`, or without a
    default the rest of the context, and in both cases at most what the KV cache holds. Raises ContextOverflow and
    NeverFits with both numbers, InvalidRequest for fewer than `least`.
    """
    (wanted_param, count), (prompt_param, prompt_tokens), limit = wanted, prompt, info.max_model_len
    if count is not None and count < least:
        raise InvalidRequest(f"`{wanted_param}` must be at least {least}, got {count}", wanted_param, "invalid_value")
    asked = max(least, 1) if count is None else count
    if prompt_tokens + asked > limit:
        message = (
            f"this model's maximum context length is {limit} tokens, but {prompt_tokens + asked} were requested: "
            f"{prompt_tokens} in the prompt and {asked} to generate"
        )
        if prompt_tokens + max(least, 1) > limit:
            raise ContextOverflow(message, prompt_param, prompt_tokens, limit)
        raise ContextOverflow(message, wanted_param)
    # A prompt that is only echoed needs no KV cache; if it is scored too, the engine decides.
    if asked and info.kv_tokens is not None and prompt_tokens + asked - 1 > info.kv_tokens:
        message = (
            f"the KV cache holds {info.kv_tokens} tokens, but the request needs {prompt_tokens + asked - 1}: "
            f"{prompt_tokens} in the prompt and {asked} to generate; shorten it or serve with a larger cache"
        )
        raise NeverFits(message, prompt_param if prompt_tokens > info.kv_tokens else wanted_param)
    if count is not None:
        return count
    return info.room(prompt_tokens) if default is None else min(default, info.room(prompt_tokens))


def kept_tokens(prompt: list[int], keep: int | None, info: ModelInfo) -> list[int]:
    """The prompt's last tokens under `truncate_prompt_tokens`. -1 leaves room for one token in context and cache."""
    if keep is None or len(prompt) <= keep:
        return prompt
    if keep == -1:
        keep = max(1, len(prompt) + min(0, info.room(len(prompt)) - 1))
    if keep < 1:
        message = f"`truncate_prompt_tokens` must be at least 1, or -1, got {keep}"
        raise InvalidRequest(message, "truncate_prompt_tokens", "invalid_value")
    return prompt[-keep:]


def check_length(text: str, param: str, limit: int) -> None:
    """Raise ContextOverflow for a text that is too long for the context, independently of its tokens."""
    check_size(len(text), param, limit)


def check_size(characters: int, param: str, limit: int) -> None:
    """As `check_length`, for the characters of several texts together."""
    least = characters // _LONGEST_TOKEN
    if least > limit:
        message = (
            f"this model's maximum context length is {limit} tokens, but the {characters} characters of `{param}` make "
            f"at least {least}"
        )
        raise ContextOverflow(message, param, least, limit)


def check_characters(characters: int, param: str, most: int) -> None:
    if characters > most:
        message = f"`{param}`: {characters} characters, but at most {most} are tokenised at once"
        raise InvalidRequest(message, param, "string_above_max_length")


def encode_within(
    encode: Callable[[str, bool], list[int]], text: str, special: bool, param: str, limit: int, cuts: bool = False
) -> list[int]:
    """The text's tokens. Raises ContextOverflow for a text that is clearly too long, after tokenising only about
    `limit` tokens of it. `cuts`: the prompt is cut afterwards, so that it may be longer, up to a limit."""
    if cuts:
        check_characters(len(text), param, max(MOST_CHARACTERS, CHARACTERS_PER_TOKEN * limit))
        return encode(text, special)
    check_length(text, param, limit)
    probe = _PROBE * limit + _LEAST_PROBE
    if len(text) > 2 * probe:
        least = len(encode(text[:probe], False))
        # The end of the probe may split one token into a few.
        if least > limit + limit // 8 + 64:
            message = (
                f"this model's maximum context length is {limit} tokens, but the first {probe} of the {len(text)} "
                f"characters of `{param}` make {least}"
            )
            raise ContextOverflow(message, param, least, limit)
    return encode(text, special)


def check_stream_options(request: GenerationRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("`stream_options` needs `stream: true`", "stream_options", "invalid_value")
