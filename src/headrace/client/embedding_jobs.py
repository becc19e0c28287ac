"""Requests for embeddings: inputs in, pooled hidden states out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.client.api import GenerateRequest, ModelInfo
from headrace.embedding_facts import EmbeddingFacts, Floats, Pooling, finished
from headrace.errors import ContextOverflow, InvalidRequest
from headrace.sampling import SamplingParams

__all__ = ["EmbeddingOptions", "cut_ids", "embedding_request", "prompt_text", "vector_of"]

Encode = Callable[[str, bool], list[int]]
"""(text, whether special tokens are added) → token ids."""
_NOTHING = SamplingParams(max_tokens=0)


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """How inputs become vectors; None: as the checkpoint says, without one by the last token and with length 1."""

    pooling: Pooling | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    add_special_tokens: bool = True
    truncate: int | None = None
    """Tokens that are kept of a longer input; -1: as many as the model takes."""

    def check(self, facts: EmbeddingFacts) -> None:
        """Raises InvalidRequest for a dimension that there is not, and an unknown prompt."""
        if self.dimensions is not None and not 1 <= self.dimensions <= facts.size:
            message = f"`dimensions` must be from 1 to {facts.size}, the size of a hidden state, got {self.dimensions}"
            raise InvalidRequest(message, "dimensions", "invalid_value")
        if self.truncate is not None and self.truncate != -1 and self.truncate < 1:
            message = f"`truncate_prompt_tokens` must be at least 1, or -1, got {self.truncate}"
            raise InvalidRequest(message, "truncate_prompt_tokens", "invalid_value")
        prompt_text(facts, self.prompt_name)


def prompt_text(facts: EmbeddingFacts, name: str | None) -> str:
    """The text before an input. Raises InvalidRequest for a name that the checkpoint does not have."""
    chosen = facts.default_prompt if name is None else name
    if chosen is None:
        return ""
    if chosen not in facts.prompts:
        known = f"this checkpoint has {', '.join(sorted(facts.prompts))}" if facts.prompts else "it has none"
        raise InvalidRequest(f"`prompt_name` {chosen[:100]!r} is no prompt of this checkpoint: {known}", "prompt_name")
    return facts.prompts[chosen]


def embedding_request(
    one: str | Sequence[int],
    name: str,
    options: EmbeddingOptions,
    info: ModelInfo,
    encode: Encode,
    param: str = "input",
) -> GenerateRequest:
    """The request of one input: a text, or token ids as they are. `param` is the field that holds it. Raises
    InvalidRequest and ContextOverflow."""
    most = _most(info) if options.truncate in (None, -1) else min(options.truncate or 0, _most(info))
    if isinstance(one, str):
        text = prompt_text(info.embedding, options.prompt_name) + one
        ids = cut_ids(encode, text, options.add_special_tokens, None if options.truncate is None else most)
    else:
        ids = list(one) if options.truncate is None else list(one)[:most]
    if not ids:
        message = f"`{param}` has no tokens: give at least one character or token"
        raise InvalidRequest(message, param, "invalid_value")
    if len(ids) > _most(info):
        message = (
            f"this model's maximum context length is {_most(info)} tokens, but a text of `{param}` has {len(ids)}: "
            "shorten it, or set `truncate_prompt_tokens` to -1"
        )
        raise ContextOverflow(message, param, len(ids), _most(info))
    return GenerateRequest(name, tuple(ids), _NOTHING, pooling=options.pooling or info.embedding.pooling or "last")


def cut_ids(encode: Encode, text: str, special: bool, most: int | None) -> list[int]:
    """The ids of a text, of which at most `most` are kept: the first ones, and the special tokens at the end."""
    ids = encode(text, special)
    if most is None or len(ids) <= most:
        return ids
    plain = encode(text, False)
    start = next((at for at in range(len(ids) - len(plain) + 1) if ids[at : at + len(plain)] == plain), None)
    tail = [] if start is None else ids[start + len(plain) :]
    return [*ids[: max(0, most - len(tail))], *tail][:most]


def vector_of(pooled: bytes, options: EmbeddingOptions, facts: EmbeddingFacts) -> Floats:
    """float32 [dimensions]."""
    normalize = facts.normalize if options.normalize is None else options.normalize
    return finished(pooled, options.dimensions, normalize)


def _most(info: ModelInfo) -> int:
    return info.max_model_len if info.kv_tokens is None else min(info.max_model_len, info.kv_tokens)
