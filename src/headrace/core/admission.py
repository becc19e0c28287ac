"""What the core is given to work with, and which requests it refuses at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.core.block_pool import blocks_for
from headrace.core.sequence import stop_ids
from headrace.errors import ConfigError, ContextOverflow, InvalidRequest, NeverFits
from headrace.types import Request

__all__ = ["CoreConfig", "admit"]


@dataclass(frozen=True)
class CoreConfig:
    """Sizes of everything. Raises ConfigError where they cannot work together."""

    num_blocks: int
    """Of the KV cache, the padding block 0 included."""
    block_size: int
    max_num_seqs: int
    """Device slots. No more than `max_num_batched_tokens` of them are used at a time."""
    max_num_batched_tokens: int
    """Token budget of a step."""
    max_model_len: int
    """Prompt and output."""
    vocab_size: int
    prefix_caching: bool = True
    max_waiting: int = 4096

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "vocab_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)}: must be at least 1")
        if self.num_blocks < 2:
            raise ConfigError(f"num_blocks {self.num_blocks}: must be at least 2, since block 0 is padding")


def admit(request: Request, config: CoreConfig) -> None:
    """Check what can be known before anything runs.

    Raises InvalidRequest, ContextOverflow or NeverFits, which name the field and both numbers.
    """
    _check_ids(request, config.vocab_size)
    prompt, output = len(request.prompt), request.params.max_tokens
    if output < 0:
        raise InvalidRequest(f"max_tokens {output}: must not be negative", "max_tokens")
    if prompt + output > config.max_model_len:
        raise ContextOverflow(
            f"{prompt} prompt tokens and max_tokens {output} are {prompt + output} tokens, "
            f"but the model's context is {config.max_model_len}: shorten the prompt or lower max_tokens",
            "prompt" if prompt >= config.max_model_len else "max_tokens",
        )
    need = blocks_for(prompt + max(output - 1, 0), config.block_size)
    if need > config.num_blocks - 1:
        raise NeverFits(
            f"{prompt} prompt tokens and max_tokens {output} need {need} KV blocks of {config.block_size} tokens, "
            f"but the pool has {config.num_blocks - 1}: shorten the request or serve with a larger KV cache",
            "prompt" if blocks_for(prompt, config.block_size) > config.num_blocks - 1 else "max_tokens",
        )


def _check_ids(request: Request, vocab: int) -> None:
    params = request.params
    if not request.prompt:
        raise InvalidRequest("the prompt has no tokens: send at least one", "prompt")
    _in_range(request.prompt, vocab, "prompt")
    _in_range(params.stop_token_ids, vocab, "stop_token_ids")
    _in_range((token for token, _ in params.logit_bias), vocab, "logit_bias")
    if params.allowed_token_ids is not None:
        if not params.allowed_token_ids:
            raise InvalidRequest("allowed_token_ids is empty: allow at least one token", "allowed_token_ids")
        _in_range(params.allowed_token_ids, vocab, "allowed_token_ids")
        if params.min_tokens and stop_ids(request).issuperset(params.allowed_token_ids):
            raise InvalidRequest(
                f"min_tokens {params.min_tokens}: every token of allowed_token_ids ends the sequence, so that none is left",
                "min_tokens",
            )


def _in_range(ids: Iterable[int], vocab: int, field: str) -> None:
    ids = tuple(ids)
    if ids and (min(ids) < 0 or max(ids) >= vocab):
        bad = next(token for token in ids if not 0 <= token < vocab)
        raise InvalidRequest(f"{field}: token id {bad} is outside the vocabulary of {vocab} tokens", field)
