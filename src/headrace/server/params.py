"""From a request's fields to `SamplingParams`: the checks that need the model, and the room that is left for output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace.client.api import ModelInfo
from headrace.client.stops import special_stops
from headrace.errors import ContextOverflow, InvalidRequest, NeverFits
from headrace.server.context import TextTokenizer
from headrace.server.schemas import GenerationRequest
from headrace.types import SamplingParams

__all__ = [
    "check_ids",
    "check_length",
    "check_size",
    "check_stream_options",
    "encode_within",
    "output_room",
    "sampling_params",
    "stop_tokens",
]

_LONGEST_TOKEN = 256
"""Characters; longer than the tokens of any vocabulary in use."""
_PROBE = 8
"""Characters per token of the context, of which a long text's beginning is tokenised to see whether it fits."""
_LEAST_PROBE = 4096


def stop_tokens(request: GenerationRequest, tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Tokens that stop because a stop string is their text, which is not shown."""
    if request.stop is None or request.skip_special_tokens is False:
        return ()
    return special_stops([request.stop] if isinstance(request.stop, str) else request.stop, tokenizer)


def sampling_params(
    request: GenerationRequest,
    vocab_size: int,
    max_tokens: int,
    *,
    logprobs: int | None,
    prompt_logprobs: int | None,
    stop_tokens: tuple[int, ...] = (),
) -> SamplingParams:
    """`stop_tokens` stop beside those of the request. Raises InvalidRequest for token ids outside the vocabulary and for `min_tokens` above `max_tokens`."""
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        message = f"`min_tokens` {min_tokens} exceeds the {max_tokens} tokens that may be generated"
        raise InvalidRequest(message, "min_tokens", "invalid_value")
    stop = request.stop or ()
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_default(request.temperature, 1.0),
        top_p=_default(request.top_p, 1.0),
        top_k=min(max(0, request.top_k or 0), vocab_size),
        min_p=request.min_p or 0.0,
        repetition_penalty=_default(request.repetition_penalty, 1.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=_logit_bias(request.logit_bias, vocab_size),
        allowed_token_ids=_allowed(request.allowed_token_ids, vocab_size),
        seed=None if request.seed is None else request.seed % 2**64,
        n=request.n or 1,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=check_ids(request.stop_token_ids or (), vocab_size, "stop_token_ids") + stop_tokens,
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        min_tokens=min_tokens,
        ignore_eos=bool(request.ignore_eos),
        skip_special_tokens=request.skip_special_tokens is not False,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _default(value: float | None, default: float) -> float:
    return default if value is None else value


def check_ids(ids: Sequence[int], vocab_size: int, param: str) -> tuple[int, ...]:
    """The ids as a tuple. Raises InvalidRequest for one outside the vocabulary."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(i for i in ids if not 0 <= i < vocab_size)
        message = f"`{param}`: token id {wrong} is outside the vocabulary (0 to {vocab_size - 1})"
        raise InvalidRequest(message, param, "invalid_value")
    return tuple(ids)


def _allowed(ids: list[int] | None, vocab_size: int) -> tuple[int, ...] | None:
    if ids is None:
        return None
    if not ids:
        raise InvalidRequest(
            "`allowed_token_ids` is empty: nothing could be sampled", "allowed_token_ids", "invalid_value"
        )
    return check_ids(ids, vocab_size, "allowed_token_ids")


def _logit_bias(bias: dict[str, float] | None, vocab_size: int) -> tuple[tuple[int, float], ...]:
    pairs: dict[int, float] = {}
    for key, value in (bias or {}).items():
        if not (key.isascii() and key.removeprefix("-").isdecimal() and len(key) <= 20):
            message = f"`logit_bias`: key {key[:40]!r} is not a token id"
            raise InvalidRequest(message, "logit_bias", "invalid_value")
        pairs[int(key)] = value
    check_ids(tuple(pairs), vocab_size, "logit_bias")
    return tuple(pairs.items())


def output_room(
    wanted: tuple[str, int | None], default: int | None, prompt: tuple[str, int], info: ModelInfo, least: int = 1
) -> int:
    """How many tokens may be generated: `wanted` and `prompt` are each a field's name and its number of tokens.

    What the client asked for must fit as asked. What it left open (None) is `default`, or with no default the rest of the
    context, and in either case no more than the KV cache holds. Raises ContextOverflow and NeverFits with both numbers,
    InvalidRequest for fewer than `least`.
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
        raise ContextOverflow(message, prompt_param if prompt_tokens + max(least, 1) > limit else wanted_param)
    # A prompt that is only echoed needs no place; where it is scored too, the engine decides.
    if asked and info.kv_tokens is not None and prompt_tokens + asked - 1 > info.kv_tokens:
        message = (
            f"the KV cache holds {info.kv_tokens} tokens, but the request needs {prompt_tokens + asked - 1}: "
            f"{prompt_tokens} in the prompt and {asked} to generate; shorten it or serve with a larger cache"
        )
        raise NeverFits(message, prompt_param if prompt_tokens > info.kv_tokens else wanted_param)
    if count is not None:
        return count
    return info.room(prompt_tokens) if default is None else min(default, info.room(prompt_tokens))


def check_length(text: str, param: str, limit: int) -> None:
    """Raises ContextOverflow for a text so long that it need not be tokenised to be refused."""
    check_size(len(text), param, limit)


def check_size(characters: int, param: str, limit: int) -> None:
    """As `check_length`, of texts in all."""
    least = characters // _LONGEST_TOKEN
    if least > limit:
        message = (
            f"this model's maximum context length is {limit} tokens, but the prompt's {characters} characters make "
            f"at least {least}"
        )
        raise ContextOverflow(message, param)


def encode_within(
    encode: Callable[[str, bool], list[int]], text: str, special: bool, param: str, limit: int
) -> list[int]:
    """The text's tokens. Raises ContextOverflow for a text that is plainly too long, at the cost of about `limit` tokens."""
    check_length(text, param, limit)
    probe = _PROBE * limit + _LEAST_PROBE
    if len(text) > 2 * probe:
        least = len(encode(text[:probe], False))
        # The cut may make a few tokens of what would have been one.
        if least > limit + limit // 8 + 64:
            message = (
                f"this model's maximum context length is {limit} tokens, but the first {probe} of the prompt's "
                f"{len(text)} characters make {least}"
            )
            raise ContextOverflow(message, param)
    return encode(text, special)


def check_stream_options(request: GenerationRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("`stream_options` needs `stream: true`", "stream_options", "invalid_value")
