"""Checks a request before it reaches the engine: each error names the field and the value.

`SamplingParams` itself checks types and ranges; this module checks what depends on the model. The engine relies on it:
its core only has assertions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from headrace.client.api import GenerateRequest
from headrace.embedding_facts import EmbeddingFacts
from headrace.errors import ContextOverflow, InvalidRequest, NeverFits
from headrace.types import SamplingParams

__all__ = ["EngineLimits", "check_ids", "validated"]


class EngineLimits(Protocol):
    """The limits of the engine. `engine.wire.EngineInfo` implements this protocol."""

    @property
    def max_model_len(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def kv_tokens(self) -> int: ...

    @property
    def platform(self) -> str: ...

    @property
    def embedding(self) -> EmbeddingFacts: ...

    @property
    def most_rivals(self) -> int: ...

    @property
    def names_tokens(self) -> bool: ...


def validated(request: GenerateRequest, limits: EngineLimits, ends: Collection[int] = ()) -> GenerateRequest:
    """The request with `max_tokens` as a number. `ends`: the model's end tokens. Raises InvalidRequest and its
    subclasses."""
    if not request.prompt:
        raise InvalidRequest("`prompt` is empty: give at least one token", "prompt", "invalid_value")
    check_ids(request.prompt, limits.vocab_size, "prompt")
    _check_prediction(request.predicted, limits)
    request = _with_constraint(request)
    params = request.params
    _check_tokens(params, limits.vocab_size)
    _check_scored(params, len(request.prompt))
    _check_rivals(request, limits)
    _check_names(params, limits)
    if params.max_tokens is None:
        room = min(limits.max_model_len - len(request.prompt), limits.kv_tokens + 1 - len(request.prompt))
        params = replace(params, max_tokens=max(1, room))
        request = replace(request, params=params)
    _check_min_tokens(params, ends)
    if request.constraint is not None:
        _check_constrained(params)
    _check_room(len(request.prompt), params.max_tokens or 0, limits)
    _check_kind(request, limits)
    if params.max_tokens or params.prompt_logprobs is not None or request.pooling is not None:
        _check_cache(len(request.prompt), params.max_tokens or 0, limits)
    return request


def _with_constraint(request: GenerateRequest) -> GenerateRequest:
    """The parameter `structured_outputs` as the request's constraint."""
    wanted = request.params.structured_outputs
    if wanted is None:
        return request
    if request.constraint is not None:
        message = "`structured_outputs`: the request has a constraint already"
        raise InvalidRequest(message, "structured_outputs", "invalid_value")
    return replace(request, params=replace(request.params, structured_outputs=None), constraint=wanted.constraint())


def check_ids(ids: Sequence[int], vocab_size: int, name: str) -> tuple[int, ...]:
    """The ids as a tuple. Raises InvalidRequest for one outside the vocabulary."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        message = f"`{name}`: token id {wrong} is outside the vocabulary (0 to {vocab_size - 1})"
        raise InvalidRequest(message, name, "invalid_value")
    return tuple(ids)


def _check_kind(request: GenerateRequest, limits: EngineLimits) -> None:
    """Refuse hidden states of a platform that has none, and tokens of a model that makes none."""
    facts, params = limits.embedding, request.params
    if request.pooling is None and not facts.generates and (params.max_tokens or params.prompt_logprobs is not None):
        raise InvalidRequest(
            "this checkpoint has no output matrix (lm_head), so it generates and scores no tokens: use /v1/embeddings, "
            "/v1/score or /v1/rerank",
            code="unsupported_operation",
        )
    if request.pooling is not None and not facts.size:
        raise InvalidRequest(
            f"platform {limits.platform} computes no values, so it has no embeddings: serve on another platform",
            code="unsupported_operation",
        )


def _check_prediction(predicted: Sequence[int], limits: EngineLimits) -> None:
    if len(predicted) > limits.max_model_len:
        raise ContextOverflow(
            f"this model's maximum context length is {limits.max_model_len} tokens, but `prediction` has "
            f"{len(predicted)}: leave out what the output cannot reach",
            "prediction",
        )
    check_ids(predicted, limits.vocab_size, "prediction")


def _check_tokens(params: SamplingParams, vocab_size: int) -> None:
    check_ids(params.stop_token_ids, vocab_size, "stop_token_ids")
    check_ids([token for token, _ in params.logit_bias], vocab_size, "logit_bias")
    check_ids(params.allowed_token_ids or (), vocab_size, "allowed_token_ids")


def _check_scored(params: SamplingParams, prompt: int) -> None:
    start, name = params.prompt_logprobs_start, "prompt_logprobs_start"
    if not start:
        return
    if params.prompt_logprobs is None:
        raise InvalidRequest(f"`{name}` needs `prompt_logprobs`, which says what to report", name, "invalid_value")
    if start >= prompt:
        message = f"`{name}` {start} must be below the number of prompt tokens, which is {prompt}"
        raise InvalidRequest(message, name, "invalid_value")


def _check_rivals(request: GenerateRequest, limits: EngineLimits) -> None:
    if request.rivals is None:
        return
    if request.params.prompt_logprobs is None or (request.rivals and not request.params.prompt_logprobs_start):
        message = "`rivals` needs `prompt_logprobs`, and `prompt_logprobs_start` as their place"
        raise InvalidRequest(message, "rivals", "invalid_value")
    if len(request.rivals) > limits.most_rivals:
        message = f"`rivals` has {len(request.rivals)} tokens, but a request may have at most {limits.most_rivals}"
        raise InvalidRequest(message, "rivals", "invalid_value")
    check_ids(request.rivals, limits.vocab_size, "rivals")


def _check_names(params: SamplingParams, limits: EngineLimits) -> None:
    names, name = params.logprob_token_ids, "logprob_token_ids"
    if not names:
        return
    if params.logprobs is None or params.max_tokens == 0:
        why = "`logprobs`" if params.logprobs is None else "generated tokens, and `max_tokens` is 0"
        raise InvalidRequest(f"`{name}` needs {why}: it says which tokens they report", name, "invalid_value")
    if not limits.names_tokens:
        message = f"`{name}`: platform {limits.platform} has no form of the operator named_logprobs"
        raise InvalidRequest(message, name, "unsupported_operation")
    check_ids(names, limits.vocab_size, name)


def _check_min_tokens(params: SamplingParams, ends: Collection[int]) -> None:
    most = params.max_tokens or 0
    if params.min_tokens > most:
        message = f"`min_tokens` {params.min_tokens} exceeds the {most} tokens that may be generated"
        raise InvalidRequest(message, "min_tokens", "invalid_value")
    if params.min_tokens and params.allowed_token_ids is not None:
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else ends)}
        if stops.issuperset(params.allowed_token_ids):
            message = (
                f"`min_tokens` {params.min_tokens}: every token of `allowed_token_ids` ends the output, so none is left"
            )
            raise InvalidRequest(message, "min_tokens", "invalid_value")


def _check_constrained(params: SamplingParams) -> None:
    """Refuse parameters that would truncate a constrained text, prevent its end, or contradict the constraint."""
    for name in ("min_tokens", "stop", "stop_token_ids", "ignore_eos", "allowed_token_ids"):
        if getattr(params, name):
            message = f"`{name}` cannot be combined with a constraint, which itself decides where the output ends"
            raise InvalidRequest(message, name, "invalid_value")


def _check_room(prompt: int, output: int, limits: EngineLimits) -> None:
    if prompt + output > limits.max_model_len:
        raise ContextOverflow(
            f"this model's maximum context length is {limits.max_model_len} tokens, but {prompt + output} were "
            f"requested: {prompt} in the prompt and {output} to generate",
            "prompt" if prompt >= limits.max_model_len else "max_tokens",
        )


def _check_cache(prompt: int, output: int, limits: EngineLimits) -> None:
    # The last token of the output is not stored in the cache.
    need = prompt + max(output - 1, 0)
    if need > limits.kv_tokens:
        raise NeverFits(
            f"the KV cache holds {limits.kv_tokens} tokens, but the request needs {need}: {prompt} in the prompt and "
            f"{output} to generate; shorten it or serve with a larger cache",
            "prompt" if prompt > limits.kv_tokens else "max_tokens",
        )
