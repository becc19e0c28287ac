"""Scores of pairs of a query and a document: by embeddings, by a classification head, or by the word yes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

from headrace.client.api import GenerateRequest, ModelInfo, PromptScores
from headrace.client.embedding_jobs import EmbeddingOptions, Encode, embedding_request, vector_of
from headrace.embedding_facts import EmbeddingFacts, cosine, head_outputs
from headrace.errors import ContextOverflow, InvalidRequest
from headrace.sampling import SamplingParams

__all__ = [
    "Encoders",
    "PairAnswer",
    "ScoreJob",
    "ScoreMethod",
    "ScoreOptions",
    "pairs_of",
    "score_job",
]

ScoreMethod = Literal["cosine", "head", "yes_no"]

# The prompt of Qwen3-Reranker (its model card); others that were trained to answer yes or no take it, too.
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_YES, _NO = "yes", "no"


class Encoders(NamedTuple):
    """A tokenizer's functions."""

    encode: Encode
    plain: Callable[[str], list[int]]
    """For texts of others: what looks like a special token is text."""


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    method: ScoreMethod | None = None
    """None: `head` if the checkpoint has one, `yes_no` if it is a reranker by its name, otherwise `cosine`."""
    instruction: str | None = None
    """For `yes_no` and heads of such models."""
    prompts: bool = False
    """Put the checkpoint's prompts `query` and `document` before the texts, if it has them (cosine)."""
    truncate: int | None = None
    """As in `EmbeddingOptions`; of a document."""
    salt: str = ""
    priority: int = 0


class PairAnswer(NamedTuple):
    """The parts of an engine's answer that scores are made of."""

    embedding: bytes | None
    scores: PromptScores | None


@dataclass(frozen=True, slots=True)
class ScoreJob:
    """Requests, and what makes the scores of their answers."""

    method: ScoreMethod
    requests: list[GenerateRequest]
    scores: Callable[[Sequence[PairAnswer]], list[float]]

    @property
    def tokens(self) -> int:
        """The tokens of all texts."""
        return sum(len(request.prompt) for request in self.requests)


Pairs = Sequence[tuple[str, str]]


def pairs_of(first: str | Sequence[str], second: str | Sequence[str], names: tuple[str, str]) -> list[tuple[str, str]]:
    """Pairs of texts: each of the first with its second, or the only first one with all. Raises InvalidRequest."""
    ones = [first] if isinstance(first, str) else list(first)
    others = [second] if isinstance(second, str) else list(second)
    ones = ones * len(others) if len(ones) == 1 else ones
    if len(ones) != len(others) or not others:
        message = f"`{names[0]}` has {len(ones)} texts and `{names[1]}` {len(others)}: give one, or as many"
        raise InvalidRequest(message, names[0], "invalid_value")
    return list(zip(ones, others, strict=True))


def score_job(pairs: Pairs, name: str, options: ScoreOptions, info: ModelInfo, encoders: Encoders) -> ScoreJob:
    """The requests for the scores of pairs (query, document). Raises InvalidRequest and ContextOverflow."""
    method = options.method or _method(info)
    if method == "head" and not info.embedding.labels:
        message = "`method` head: this checkpoint has no classification head; use cosine or yes_no"
        raise InvalidRequest(message, "method", "unsupported_value")
    made = {"cosine": _by_cosine, "head": _by_head, "yes_no": _by_answer}[method](pairs, options, info, encoders)
    named = [
        replace(request, id=f"{name}-{index}", salt=options.salt, priority=options.priority)
        for index, request in enumerate(made.requests)
    ]
    return replace(made, requests=named)


def _refuse_instruction(options: ScoreOptions, method: str) -> None:
    """Raises InvalidRequest for an instruction that would be left out."""
    if options.instruction is not None:
        message = (
            f"`instruction` is for models that answer yes or no, and `method` {method} of this checkpoint takes none: "
            "write it into the query as the model's card says, or leave it out"
        )
        raise InvalidRequest(message, "instruction", "unsupported_parameter")


def _method(info: ModelInfo) -> ScoreMethod:
    if info.embedding.labels:
        return "head"
    if info.embedding.pooling is None and info.embedding.generates and _is_reranker(info):
        return "yes_no"
    return "cosine"


def _is_reranker(info: ModelInfo) -> bool:
    return "rerank" in f"{info.name}\n{info.path}".lower()


def _by_cosine(pairs: Pairs, options: ScoreOptions, info: ModelInfo, encoders: Encoders) -> ScoreJob:
    """One vector for each different text."""
    _refuse_instruction(options, "cosine")
    places: dict[tuple[str, str], int] = {}
    requests: list[GenerateRequest] = []
    named = info.embedding.prompts if options.prompts else {}

    def place(text: str, role: str) -> int:
        prompt = role if role in named else None
        key = (text, prompt or "")
        if key not in places:
            cuts = role == "document" or options.truncate == -1
            own = EmbeddingOptions(prompt_name=prompt, truncate=options.truncate if cuts else None)
            places[key] = len(requests)
            param = "documents" if role == "document" else "queries"
            requests.append(embedding_request(text, "", own, info, encoders.encode, param))
        return places[key]

    found = [(place(query, "query"), place(document, "document")) for query, document in pairs]

    def scores(answers: Sequence[PairAnswer]) -> list[float]:
        plain = EmbeddingOptions(normalize=False)
        vectors = [vector_of(answer.embedding or b"", plain, info.embedding) for answer in answers]
        return [cosine(vectors[one], vectors[other]) for one, other in found]

    return ScoreJob("cosine", requests, scores)


def _by_head(pairs: Pairs, options: ScoreOptions, info: ModelInfo, encoders: Encoders) -> ScoreJob:
    """One run of a classifier for each pair. One label: its sigmoid; a label yes: its share."""
    labels = [label.lower() for label in info.embedding.labels]
    if len(labels) > 1 and _YES not in labels:
        shown = ", ".join(info.embedding.labels)
        message = f"this checkpoint's head has the classes {shown[:200]}, of which none is a score: one, or a yes, is"
        raise InvalidRequest(message, "method", "unsupported_value")
    asks = _YES in labels or _is_reranker(info)
    if not asks:
        _refuse_instruction(options, "head")
    encode = partial(_asked, options, info, encoders) if asks else partial(_joined, options, info, encoders)
    nothing = SamplingParams(max_tokens=0)
    requests = [GenerateRequest("", tuple(encode(*pair)), nothing, pooling="last") for pair in pairs]

    def scores(answers: Sequence[PairAnswer]) -> list[float]:
        return [_head_score(answer.embedding or b"", info.embedding, labels) for answer in answers]

    return ScoreJob("head", requests, scores)


def _head_score(pooled: bytes, facts: EmbeddingFacts, labels: Sequence[str]) -> float:
    outputs: list[float] = head_outputs(pooled, facts).tolist()
    if len(outputs) == 1:
        return _sigmoid(outputs[0])
    most = max(outputs)
    shares = [math.exp(one - most) for one in outputs]
    return shares[labels.index(_YES)] / sum(shares)


def _by_answer(pairs: Pairs, options: ScoreOptions, info: ModelInfo, encoders: Encoders) -> ScoreJob:
    """The probability of yes against no: both are scored behind one prompt."""
    if not info.rivals:
        message = "`method` yes_no needs steps of two tokens: serve with a larger --max-num-batched-tokens"
        raise InvalidRequest(message, "method", "unsupported_value")
    yes, no = (_word(encoders.encode, word) for word in (_YES, _NO))
    requests = []
    for pair in pairs:
        prompt = _asked(options, info, encoders, *pair)
        params = SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=len(prompt))
        requests.append(GenerateRequest("", (*prompt, yes), params, rivals=(no,)))

    def scores(answers: Sequence[PairAnswer]) -> list[float]:
        found = [answer.scores for answer in answers if answer.scores is not None]
        return [_sigmoid(one.own[0] - one.rivals[0]) for one in found]

    return ScoreJob("yes_no", requests, scores)


def _word(encode: Encode, word: str) -> int:
    ids = encode(word, False)
    if len(ids) != 1:
        message = f"`method` yes_no: {word!r} is {len(ids)} tokens of this model, not one; use cosine"
        raise InvalidRequest(message, "method", "unsupported_value")
    return ids[0]


def _asked(options: ScoreOptions, info: ModelInfo, encoders: Encoders, query: str, document: str) -> list[int]:
    """The question whether a document fits a query. A document that is too long is cut, if the request says so."""
    before, after = encoders.encode(_BEFORE, False), encoders.encode(_AFTER, False)
    instruction = options.instruction or _INSTRUCTION
    body = encoders.plain(f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}")
    room = _room(options, info) - len(before) - len(after)
    return [*before, *_fitting(body, room, options, info), *after]


def _joined(options: ScoreOptions, info: ModelInfo, encoders: Encoders, query: str, document: str) -> list[int]:
    """The tokens of both texts, one behind the other."""
    first = encoders.encode(query, True)
    return [*first, *_fitting(encoders.encode(document, False), _room(options, info) - len(first), options, info)]


def _room(options: ScoreOptions, info: ModelInfo) -> int:
    most = info.max_model_len if info.kv_tokens is None else min(info.max_model_len, info.kv_tokens)
    return most - 1 if options.truncate in (None, -1) else min(most - 1, options.truncate or 0)


def _fitting(ids: list[int], room: int, options: ScoreOptions, info: ModelInfo) -> list[int]:
    if len(ids) <= room:
        return ids
    if options.truncate is None:
        need = _room(options, info) + len(ids) - room
        message = (
            f"this model's maximum context length is {info.max_model_len} tokens, but a query with its document needs "
            f"{need + 1}: shorten it, or set `truncate_prompt_tokens` to -1"
        )
        raise ContextOverflow(message, "documents", need + 1, info.max_model_len)
    if room < 1:
        message = f"`truncate_prompt_tokens` {options.truncate} leaves no room for a document"
        raise InvalidRequest(message, "truncate_prompt_tokens", "invalid_value")
    return ids[:room]


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
