"""`POST /v1/embeddings`, and the same in Ollama's form."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.client.api import GenerateRequest, Output, Usage
from headrace.client.embedding_jobs import EmbeddingOptions, embedding_request, vector_of
from headrace.client.validate import check_ids
from headrace.embedding_facts import EmbeddingFacts, Floats
from headrace.errors import InvalidRequest
from headrace.server.context import Context
from headrace.server.embedding_schemas import (
    MOST_INPUTS,
    EmbeddingItem,
    EmbeddingReply,
    EmbeddingRequest,
    EmbeddingUsage,
)
from headrace.server.exchange import ChunkUsage, Exchange, ExchangeOptions
from headrace.server.generation import GenerationRun, usage_reply
from headrace.server.lenient_body import ignored_header, read_lenient
from headrace.server.ollama_request import plain_name
from headrace.server.ollama_schemas import (
    OldEmbeddingReply,
    OldEmbeddingRequest,
    OllamaEmbedReply,
    OllamaEmbedRequest,
)
from headrace.server.renaming import rename_fields
from headrace.server.replies import UsageReply
from headrace.server.request_body import read_json
from headrace.server.request_ids import new_request_id
from headrace.server.request_params import MOST_CHARACTERS, check_characters, check_length
from headrace.server.route_spec import RouteSpec

__all__ = ["ROUTES", "PooledDialect", "embedding_usage", "pooled_exchange"]

_INLINE = 2000
"""Bytes. The texts of a larger request are tokenised in a thread."""
Input = str | Sequence[int]


class PooledDialect:
    """Collects the answers of requests that generate nothing; `write` makes the body of them, in order."""

    def __init__(self, count: int, write: Callable[[list[Output], UsageReply], bytes]) -> None:
        self._outputs: list[Output | None] = [None] * count
        self._write = write

    def chunk(self, output: Output, usage: ChunkUsage) -> bytes:
        raise AssertionError("nothing is streamed")

    def usage_chunk(self, usage: UsageReply) -> bytes:
        raise AssertionError("nothing is streamed")

    def take(self, output: Output) -> None:
        if output.finish_reason is not None:
            self._outputs[output.index] = output

    def complete(self, usage: UsageReply) -> bytes:
        return self._write([one for one in self._outputs if one is not None], usage)


def pooled_exchange(
    context: Context,
    jobs: Sequence[GenerateRequest],
    name: str,
    arrival: float,
    write: Callable[[list[Output], UsageReply], bytes],
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> Response:
    """The answer to a request that becomes these jobs."""
    context.check_choices(len(jobs), 1)
    options = ExchangeOptions(request_id=name, arrival=arrival, stream=False, include_usage=True, headers=headers)
    return Exchange(context, GenerationRun(context.client, jobs), PooledDialect(len(jobs), write), options)


def embedding_usage(usage: UsageReply) -> EmbeddingUsage:
    return EmbeddingUsage(usage.prompt_tokens, usage.prompt_tokens, usage.prompt_tokens_details)


async def answer_embeddings(context: Context, request: Request) -> Response:
    arrival, info = time.monotonic(), context.client.info
    body, sent = await read_json(request, EmbeddingRequest, info.max_model_len)
    rename_fields(request.scope, {"prompt": "input"})
    context.check_model(body.model)
    options = EmbeddingOptions(
        body.pooling,
        body.dimensions,
        body.normalize,
        body.prompt_name,
        body.add_special_tokens is not False,
        body.truncate_prompt_tokens,
    )
    name = new_request_id("embd")
    work = partial(_jobs, context, _inputs(body.input), name, options)
    jobs = work() if len(sent) <= _INLINE else await context.workers.run(len(sent), work)
    jobs = [replace(job, priority=body.priority or 0, salt=body.cache_salt or "") for job in jobs]
    write = partial(_reply, context.model, info.embedding, options, body.encoding_format == "base64")
    return pooled_exchange(context, jobs, name, arrival, write)


def _inputs(given: str | list[str | int | list[int]]) -> list[Input]:
    """The four forms of `input` as a list. Raises InvalidRequest for an empty input and for a mixture."""
    if isinstance(given, str):
        inputs: list[Input] = [given]
    elif given and all(isinstance(item, int) for item in given):
        inputs = [[item for item in given if isinstance(item, int)]]
    else:
        inputs = [item for item in given if not isinstance(item, int)]
        if len({type(item) for item in given}) > 1:
            message = "`input`: a list holds either texts, token ids or lists of token ids, not a mixture"
            raise InvalidRequest(message, "input", "invalid_value")
    if not inputs or not all(inputs):
        raise InvalidRequest("`input` is empty: give at least one character or token", "input", "invalid_value")
    if len(inputs) > MOST_INPUTS:
        message = f"`input` has {len(inputs)} entries: at most {MOST_INPUTS} are embedded at once"
        raise InvalidRequest(message, "input", "array_above_max_length")
    return inputs


def _jobs(context: Context, inputs: Sequence[Input], name: str, options: EmbeddingOptions) -> list[GenerateRequest]:
    """Tokenises the inputs; any thread."""
    info = context.client.info
    options.check(info.embedding)
    jobs = []
    for index, one in enumerate(inputs):
        if not isinstance(one, str):
            check_ids(one, info.vocab_size, "input")
        elif options.truncate is None:
            check_length(one, "input", info.max_model_len)
        else:
            check_characters(len(one), "input", MOST_CHARACTERS)
        jobs.append(embedding_request(one, f"{name}-{index}", options, info, context.tokenizer.encode))
    return jobs


def _vectors(options: EmbeddingOptions, facts: EmbeddingFacts, outputs: Sequence[Output]) -> list[Floats]:
    return [vector_of(output.embedding or b"", options, facts) for output in outputs]


def _reply(
    model: str,
    facts: EmbeddingFacts,
    options: EmbeddingOptions,
    encoded: bool,
    outputs: list[Output],
    usage: UsageReply,
) -> bytes:
    def shown(vector: Floats) -> list[float] | str:
        if encoded:
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        values: list[float] = vector.tolist()
        return values

    items = [EmbeddingItem(index, shown(one)) for index, one in enumerate(_vectors(options, facts, outputs))]
    return msgspec.json.encode(EmbeddingReply(items, model, embedding_usage(usage)))


async def answer_ollama_embed(context: Context, request: Request) -> Response:
    """Long texts are cut unless `truncate` is false."""
    arrival, info = time.monotonic(), context.client.info
    body, unknown, sent = await read_lenient(request, OllamaEmbedRequest)
    rename_fields(request.scope, {"prompt": "input"})
    context.check_model(plain_name(body.model, context.model))
    options = EmbeddingOptions(
        dimensions=body.dimensions, normalize=True, truncate=None if body.truncate is False else -1
    )
    name = new_request_id("embd")
    inputs = [body.input] if isinstance(body.input, str) else body.input

    def write(outputs: list[Output], usage: UsageReply) -> bytes:
        spent = int((time.monotonic() - arrival) * 1e9)
        vectors: list[list[float]] = [one.tolist() for one in _vectors(options, info.embedding, outputs)]
        return msgspec.json.encode(OllamaEmbedReply(body.model, vectors, spent, 0, usage.prompt_tokens))

    if not inputs:
        return Response(write([], usage_reply(Usage(0, 0, 0))), media_type="application/json")
    jobs = await context.workers.run(len(sent), partial(_jobs, context, _inputs([*inputs]), name, options))
    return pooled_exchange(context, jobs, name, arrival, write, ignored_header(unknown))


async def answer_old_embedding(context: Context, request: Request) -> Response:
    """Ollama's older route, of one text; its vector is not normalised."""
    arrival, info = time.monotonic(), context.client.info
    body, unknown, sent = await read_lenient(request, OldEmbeddingRequest)
    context.check_model(plain_name(body.model, context.model))
    name, options = new_request_id("embd"), EmbeddingOptions(normalize=False, truncate=-1)

    def write(outputs: list[Output], usage: UsageReply) -> bytes:
        return msgspec.json.encode(OldEmbeddingReply(_vectors(options, info.embedding, outputs)[0].tolist()))

    if not body.prompt:
        return Response(msgspec.json.encode(OldEmbeddingReply([])), media_type="application/json")
    jobs = await context.workers.run(len(sent), partial(_jobs, context, [body.prompt], name, options))
    return pooled_exchange(context, jobs, name, arrival, write, ignored_header(unknown))


ROUTES = (
    RouteSpec("POST", "/v1/embeddings", answer_embeddings, "Embed texts", EmbeddingRequest, EmbeddingReply),
    RouteSpec(
        "POST",
        "/api/embed",
        answer_ollama_embed,
        "Embed texts, in Ollama's form",
        OllamaEmbedRequest,
        OllamaEmbedReply,
        family="ollama",
    ),
    RouteSpec(
        "POST",
        "/api/embeddings",
        answer_old_embedding,
        "Embed a text, in Ollama's older form",
        OldEmbeddingRequest,
        OldEmbeddingReply,
        family="ollama",
    ),
)
