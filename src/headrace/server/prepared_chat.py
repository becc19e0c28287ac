"""Makes an engine's request of a conversation, and the reader of its answer: the form behind every API of chat.

`ChatRequest` is the one internal form. Every other API translates its body into one, and writes down the deltas of the
reader in its own way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from headrace.client.api import GenerateRequest, ModelInfo
from headrace.errors import InvalidRequest
from headrace.formats.parser import Parser
from headrace.server.answer_reader import AnswerReader, ReadingOptions
from headrace.server.context import Context
from headrace.server.draft_fields import speculation_choice, with_prediction
from headrace.server.foreign_fields import FOREIGN_FIELDS
from headrace.server.metrics import ServerMetrics
from headrace.server.output_constraint import constraint_of
from headrace.server.prompted_tools import prompted_messages
from headrace.server.request_ids import new_request_id
from headrace.server.request_params import (
    CHARACTERS_PER_TOKEN,
    MOST_CHARACTERS,
    check_characters,
    check_size,
    check_stream_options,
    encode_within,
    kept_tokens,
    output_room,
    sampling_params,
    stop_tokens,
)
from headrace.server.schemas import ChatRequest, Message, TokenizeRequest
from headrace.server.template_call import chat_inputs
from headrace.server.tool_use import ToolUse, after_reasoning, prompt_reasons, tool_use
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.types import Constraint

__all__ = ["PreparedChat", "prepare_chat", "render_chat", "rendered_prompt"]

_SMALL = 1 << 16
"""Bytes. The messages of a smaller body are checked in the event loop, those of a larger one in a thread."""


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A conversation that the engine can be asked to answer."""

    body: ChatRequest
    job: GenerateRequest
    new_reader: Callable[[], AnswerReader] | None
    """Makes the reader of one choice; None: all text is content."""
    counts_reasoning: bool


async def prepare_chat(
    context: Context, body: ChatRequest, sent: bytes, *, cut: bool = False, raw: str | None = None
) -> PreparedChat:
    """`sent` is the body that was decoded. `cut`: `max_tokens` beyond the context or the cache is cut, not refused.
    `raw`: the prompt, which no template renders and whose answer is content alone. Raises HttpError and
    InvalidRequest."""
    context.check_model(body.model)
    _refuse_unenforced(body)
    if body.documents and "documents" not in context.tokenizer.template_source:
        message = "`documents`: this model's chat template shows none: put their texts into a message"
        raise InvalidRequest(message, "documents", "unsupported_value")
    check_stream_options(body)
    use = tool_use(body, context.formats) if raw is None else ToolUse()
    info = context.client.info
    context.check_choices(1, body.n or 1)
    check = partial(check_size, param="messages", limit=info.max_model_len)
    if body.truncate_prompt_tokens is not None:
        most = max(MOST_CHARACTERS, CHARACTERS_PER_TOKEN * info.max_model_len)
        check = partial(check_characters, param="messages", most=most)
    text = await render_chat(context, body, sent, check) if raw is None else raw
    reasons = prompt_reasons(context.formats, text, _continued(body)) if raw is None else False
    encode = context.tokenizer.encode_chat if raw is None else context.tokenizer.encode
    work = partial(_job, context, info, body, partial(_encode, encode, body, text, info), _constraint(body, use), cut)
    job = await context.workers.run(len(sent), work)
    if job.constraint is not None:
        job = replace(job, constraint=after_reasoning(job.constraint, context.formats, reasons))
    counts = use.machine is not None and use.machine.can_reason
    return PreparedChat(body, job, _reading(context, body, job, use, reasons), counts)


def _reading(
    context: Context, body: ChatRequest, job: GenerateRequest, use: ToolUse, reasons: bool | None
) -> Callable[[], AnswerReader] | None:
    machine, formats = use.machine, context.formats
    if machine is None:
        return None
    options = ReadingOptions(
        markers=formats.markers,
        counts=machine.can_reason,
        prompt_tail=job.prompt[-8:],
        skip_special_tokens=job.params.skip_special_tokens,
        shows_stops=job.params.include_stop_str_in_output,
        hides_reasoning=body.include_reasoning is False,
        single=use.single,
        short_ids=formats.tools is not None and formats.tools.short_ids,
        on_call=partial(_count_call, context.metrics, frozenset(tool.function.name for tool in body.tools or ())),
    )

    def new_reader() -> AnswerReader:
        return AnswerReader(Parser(machine, use.schemas, bool(reasons)), options, context.tokenizer)

    return new_reader


def _count_call(metrics: ServerMetrics, tools: frozenset[str], name: str) -> None:
    metrics.tool_calls["yes" if name in tools else "no"] += 1


def _constraint(body: ChatRequest, use: ToolUse) -> Constraint | None:
    """Of the output's form, or of the tools."""
    found = constraint_of(body)
    if found is not None and use.constraint is not None:
        message = (
            "tools that are `strict` or forced cannot be combined with a constraint of the output: give one of them"
        )
        raise InvalidRequest(message, found.field.partition(".")[0], "invalid_value")
    return found or use.constraint


def _continued(body: ChatRequest) -> str | None:
    """The text of the message that the answer continues."""
    content = body.messages[-1].content if body.continue_final_message else None
    return content if isinstance(content, str) else None


def _refuse_unenforced(body: ChatRequest) -> None:
    """Refuse fields that the server cannot apply yet, instead of ignoring them."""
    if body.chat_template is not None:
        message = "`chat_template` is refused: templates come from the checkpoint or the server's own options"
        raise InvalidRequest(message, "chat_template", "unsupported_value")
    for name in ("audio", "function_call", "functions", "moderation", "web_search_options"):
        if getattr(body, name) is not None:
            raise InvalidRequest(f"`{name}` is not supported: {FOREIGN_FIELDS[name]}", name, "unknown_parameter")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("`top_logprobs` needs `logprobs: true`", "top_logprobs", "invalid_value")
    if None not in (body.max_tokens, body.max_completion_tokens) and body.max_tokens != body.max_completion_tokens:
        message = "`max_tokens` and `max_completion_tokens` differ: give one of them"
        raise InvalidRequest(message, "max_tokens", "invalid_value")


def _job(
    context: Context,
    info: ModelInfo,
    body: ChatRequest,
    encode: Callable[[], list[int]],
    constraint: Constraint | None,
    cut: bool,
) -> GenerateRequest:
    """The engine's request. Runs in any thread. Raises ContextOverflow if the text clearly does not fit."""
    request = _request(info, body, encode(), stop_tokens(body, context.tokenizer), constraint, cut)
    return with_prediction([request], body, context.tokenizer, info)[0]


def _encode(encode: Callable[[str, bool], list[int]], body: ChatRequest, text: str, info: ModelInfo) -> list[int]:
    special, keep = bool(body.add_special_tokens), body.truncate_prompt_tokens
    prompt = encode_within(encode, text, special, "messages", info.max_model_len, keep is not None)
    return kept_tokens(prompt, keep, info)


async def rendered_prompt(context: Context, body: ChatRequest, sent: bytes) -> tuple[str, list[int]]:
    """The prompt of a conversation as text and tokens, of any length. Raises HttpError and InvalidRequest."""
    context.check_model(body.model)
    # Its tools are checked as those of a request that is answered.
    tool_use(body, context.formats)
    most = max(MOST_CHARACTERS, CHARACTERS_PER_TOKEN * context.client.info.max_model_len)
    text = await render_chat(context, body, sent, partial(check_characters, param="messages", most=most))
    encode = partial(context.tokenizer.encode_chat, text, bool(body.add_special_tokens))
    return text, await context.workers.run(len(sent), encode)


async def render_chat(
    context: Context, body: ChatRequest | TokenizeRequest, sent: bytes, check: Callable[[int], None]
) -> str:
    """The conversation as the model's prompt. `sent` is the body that was decoded. `check` is called with the number of
    characters: of the messages before the template is rendered, and of the rendered text."""
    prepare = partial(_prepare, body, sent, check, context.formats.prompted)
    inputs = prepare() if len(sent) < _SMALL else await context.workers.run(len(sent), prepare)
    text = await context.tokenizer.apply_chat_template_async(inputs)
    check(len(text))
    return text


def _prepare(
    body: ChatRequest | TokenizeRequest, sent: bytes, check: Callable[[int], None], prompted: bool
) -> ChatInputs:
    check(sum(map(_text_length, body.messages or ())))
    inputs = chat_inputs(body, sent)
    if prompted and inputs.tools:
        return replace(inputs, messages=prompted_messages(inputs.messages, inputs.tools), tools=None)
    return inputs


def _text_length(message: Message) -> int:
    """Characters that every template shows; some leave out earlier reasoning."""
    content = message.content or ""
    return len(content) if isinstance(content, str) else sum(len(part.text or "") for part in content)


def _request(
    info: ModelInfo,
    body: ChatRequest,
    prompt: list[int],
    stops: tuple[int, ...],
    constraint: Constraint | None,
    cut: bool,
) -> GenerateRequest:
    if not prompt:
        raise InvalidRequest("`messages` render to an empty prompt", "messages", "invalid_value")
    wanted = ("max_tokens", body.max_tokens)
    if body.max_completion_tokens is not None:
        wanted = ("max_completion_tokens", body.max_completion_tokens)
    limit = None
    if cut and (wanted[1] is None or wanted[1] > 0):
        wanted, limit = (wanted[0], None), wanted[1]
    room = output_room(wanted, limit, ("messages", len(prompt)), info)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    scored = body.prompt_logprobs
    params = sampling_params(
        body, room, info.sampling_defaults, logprobs=logprobs, prompt_logprobs=scored, stop_tokens=stops
    )
    return GenerateRequest(
        id=new_request_id("chatcmpl"),
        prompt=tuple(prompt),
        params=params,
        priority=body.priority or 0,
        salt=body.cache_salt or "",
        constraint=constraint,
        speculation=speculation_choice(body),
    )
