"""What makes a request impossible, found before it costs anything: each check names the field and the value."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headrace.client.api import GenerateRequest
from headrace.engine.wire import EngineInfo
from headrace.errors import ContextOverflow, InvalidRequest
from headrace.types import SamplingParams

__all__ = ["MAX_CHOICES", "MAX_LOGPROBS", "validate"]

MAX_CHOICES = 128
MAX_LOGPROBS = 128
_MAX_BIASES = 4096
_MAX_STOPS = 64
_MAX_STOP_LENGTH = 4096
_RANGES = (
    # field, least, most, whether the least itself is excluded
    ("temperature", 0.0, 1e4, False),
    ("top_p", 0.0, 1.0, True),
    ("min_p", 0.0, 1.0, False),
    ("repetition_penalty", 0.0, 1e4, True),
    ("presence_penalty", -1e4, 1e4, False),
    ("frequency_penalty", -1e4, 1e4, False),
    ("top_k", 0, 2**31 - 1, False),
    ("n", 1, MAX_CHOICES, False),
    ("max_tokens", 0, math.inf, False),
    ("min_tokens", 0, math.inf, False),
    ("logprobs", 0, MAX_LOGPROBS, False),
    ("prompt_logprobs", 0, MAX_LOGPROBS, False),
    ("seed", 0, 2**64 - 1, False),
)


def validate(request: GenerateRequest, info: EngineInfo) -> None:
    """Raises InvalidRequest, ContextOverflow."""
    params = request.params
    _check_ranges(params)
    _check_lists(params, info.vocab_size)
    if not request.prompt:
        raise InvalidRequest("`prompt` is empty: give at least one token", "prompt", "invalid_value")
    _check_ids("prompt", request.prompt, info.vocab_size)
    if params.min_tokens > params.max_tokens:
        message = f"`min_tokens` {params.min_tokens} exceeds `max_tokens` {params.max_tokens}"
        raise InvalidRequest(message, "min_tokens", "invalid_value")
    total = len(request.prompt) + params.max_tokens
    if total > info.max_model_len:
        raise ContextOverflow(
            f"this model's maximum context length is {info.max_model_len} tokens, but {total} were requested: "
            f"{len(request.prompt)} in the prompt and {params.max_tokens} to generate",
            "prompt" if len(request.prompt) >= info.max_model_len else "max_tokens",
        )


def _check_ranges(params: SamplingParams) -> None:
    for name, least, most, excluded in _RANGES:
        value = getattr(params, name)
        if value is None:
            continue
        # NaN fails every comparison.
        if not ((value > least if excluded else value >= least) and value <= most):
            low = f"above {least}" if excluded else f"at least {least}"
            high = "" if most == math.inf else f" and at most {most}"
            raise InvalidRequest(f"`{name}` must be {low}{high}, got {value}", name, "invalid_value")


def _check_lists(params: SamplingParams, vocab_size: int) -> None:
    _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    _check_ids("logit_bias", [token for token, _ in params.logit_bias], vocab_size)
    if len(params.logit_bias) > _MAX_BIASES:
        message = f"`logit_bias` has {len(params.logit_bias)} entries: at most {_MAX_BIASES} are accepted"
        raise InvalidRequest(message, "logit_bias", "invalid_value")
    for token, value in params.logit_bias:
        if not -100 <= value <= 100:
            message = f"`logit_bias` of token {token} must be between -100 and 100, got {value}"
            raise InvalidRequest(message, "logit_bias", "invalid_value")
    if params.allowed_token_ids is not None:
        if not params.allowed_token_ids:
            message = "`allowed_token_ids` is empty: nothing could be sampled"
            raise InvalidRequest(message, "allowed_token_ids", "invalid_value")
        _check_ids("allowed_token_ids", params.allowed_token_ids, vocab_size)
    _check_stops(params.stop)


def _check_stops(stops: tuple[str, ...]) -> None:
    if len(stops) > _MAX_STOPS:
        raise InvalidRequest(f"`stop` has {len(stops)} entries: at most {_MAX_STOPS}", "stop", "invalid_value")
    for stop in stops:
        if not 0 < len(stop) <= _MAX_STOP_LENGTH:
            message = f"`stop` strings have 1 to {_MAX_STOP_LENGTH} characters, got one of {len(stop)}"
            raise InvalidRequest(message, "stop", "invalid_value")


def _check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
    wrong = next(token for token in ids if not 0 <= token < vocab_size)
    message = f"`{name}`: token id {wrong} is outside the vocabulary (0 to {vocab_size - 1})"
    raise InvalidRequest(message, name, "invalid_value")
