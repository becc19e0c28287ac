"""The sizes of the core, and the check that refuses requests which can never run."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.core.block_pool import blocks_for
from headrace.errors import ConfigError, NeverFits
from headrace.types import Request

__all__ = ["CoreConfig", "admit"]


@dataclass(frozen=True)
class CoreConfig:
    """The sizes of the core. Raises ConfigError if they are not valid together."""

    num_blocks: int
    """Blocks of the KV cache, including the padding block 0."""
    block_size: int
    max_num_seqs: int
    """Device slots. No more than `max_num_batched_tokens` of them are used at a time."""
    max_num_batched_tokens: int
    """Token budget per step."""
    max_model_len: int
    """Most tokens of prompt and output together."""
    vocab_size: int
    prefix_caching: bool = True
    max_waiting: int = 4096
    stages: int = 1
    """Of a pipeline. With several, so many steps are in flight, of different sequences, and plans have the tokens that
    earlier steps have sampled."""

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "vocab_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} {getattr(self, name)}: must be at least 1")
        if self.num_blocks < 2:
            raise ConfigError(f"num_blocks {self.num_blocks}: must be at least 2, since block 0 is padding")


def admit(request: Request, config: CoreConfig) -> None:
    """Raises NeverFits, with both numbers, for a request that is larger than the pool. The client checks everything
    else."""
    _assert_valid(request, config)
    prompt, output = len(request.prompt), request.params.max_tokens or 0
    need = blocks_for(prompt + max(output - 1, 0), config.block_size)
    if need > config.num_blocks - 1:
        raise NeverFits(
            f"{prompt} prompt tokens and max_tokens {output} need {need} KV blocks of {config.block_size} tokens, "
            f"but the pool has {config.num_blocks - 1}: shorten the request or serve with a larger KV cache",
            "prompt" if blocks_for(prompt, config.block_size) > config.num_blocks - 1 else "max_tokens",
        )


def _assert_valid(request: Request, config: CoreConfig) -> None:
    params, vocab = request.params, config.vocab_size
    assert request.prompt, "the prompt has tokens"
    assert params.max_tokens is not None, "max_tokens is a number by now"
    assert len(request.prompt) + params.max_tokens <= config.max_model_len, "the context holds it"
    ids = (request.prompt, params.stop_token_ids, params.allowed_token_ids or (), [t for t, _ in params.logit_bias])
    assert all(min(part) >= 0 and max(part) < vocab for part in ids if part), "token ids are of the vocabulary"
