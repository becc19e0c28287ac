"""The token ids of a request's prompt, read as the engine reads them, so that its cached blocks can be found.

The engine's own code renders and tokenises. What it would refuse has no tokens here: the engine's answer says why.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.client.api import ModelInfo
from headrace.config import ServerConfig
from headrace.errors import HeadraceError
from headrace.keys.key_ring import KeyRing
from headrace.server.context import Context, ServerTokenizer
from headrace.server.http_errors import HttpError
from headrace.server.json_limits import SMALL, check_json_limits
from headrace.server.lenient_body import as_chat
from headrace.server.messages_request import chat_fields
from headrace.server.messages_schemas import MessagesRequest
from headrace.server.model_formats import find_formats
from headrace.server.prepared_chat import rendered_prompt
from headrace.server.request_body import decode_body
from headrace.server.schemas import ChatRequest, CompletionRequest

__all__ = ["Prompt", "PromptReader", "load_reader"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: Sequence[int]
    salt: str = ""


class _Described:
    """The part of an `EngineClient` that rendering reads."""

    def __init__(self, info: ModelInfo) -> None:
        self.info = info


class PromptReader:
    """Reads the prompts of one model. Thread: the event loop's."""

    def __init__(self, tokenizer: ServerTokenizer, info: ModelInfo) -> None:
        client: Any = _Described(info)
        self._context = Context(
            client, tokenizer, info.name, KeyRing(), 1, formats=find_formats(tokenizer, ServerConfig())
        )

    async def read(self, path: str, body: bytes) -> Prompt | None:
        """None for a path without a prompt, and for a body that an engine refuses."""
        reader = _READERS.get(path)
        if reader is None:
            return None
        try:
            return await reader(self._context, body)
        except (HeadraceError, HttpError, msgspec.MsgspecError, UnicodeError):
            return None

    def close(self) -> None:
        self._context.workers.close()


async def _completion(context: Context, sent: bytes) -> Prompt | None:
    await check_json_limits(sent, CompletionRequest.MOST_PARTS, max(CompletionRequest.MOST_VALUES, SMALL))
    body = decode_body(sent, CompletionRequest)
    # Of several prompts the first decides.
    first: Any = body.prompt
    if isinstance(first, list) and first and not isinstance(first[0], int):
        first = first[0]
    if isinstance(first, str):
        special = body.add_special_tokens is not False
        if len(sent) < _AT_ONCE:
            first = context.tokenizer.encode(first, special)
        else:
            text = first
            first = await context.workers.run(len(sent), lambda: context.tokenizer.encode(text, special))
    return Prompt(first, body.cache_salt or "") if first else None


async def _chat(context: Context, sent: bytes) -> Prompt | None:
    await check_json_limits(sent, ChatRequest.MOST_PARTS, max(ChatRequest.MOST_VALUES, SMALL))
    return await _rendered(context, decode_body(sent, ChatRequest), sent)


async def _messages(context: Context, sent: bytes) -> Prompt | None:
    await check_json_limits(sent, MessagesRequest.MOST_PARTS, max(MessagesRequest.MOST_VALUES, SMALL))
    fields, _ = chat_fields(decode_body(sent, MessagesRequest))
    return await _rendered(context, *as_chat(fields, None))


async def _rendered(context: Context, body: ChatRequest, sent: bytes) -> Prompt:
    _, tokens = await rendered_prompt(context, body, sent)
    return Prompt(tokens, body.cache_salt or "")


_AT_ONCE = 1 << 13
"""Bytes of a body that is tokenised in the event loop: a thread would take longer."""
_READERS = {"/v1/completions": _completion, "/v1/chat/completions": _chat, "/v1/messages": _messages}


def load_reader(path: str, info: ModelInfo) -> PromptReader | None:
    """The reader of a model whose files are at `path`; None, with a line in the log, if they cannot be read here."""
    from headrace.tokenization.tokenizer import load_tokenizer

    try:
        tokenizer = load_tokenizer(Path(path))
    except (HeadraceError, OSError) as error:
        _log.warning(
            "the tokenizer of %s cannot be loaded from %s (%s): its requests are placed by the beginnings of their "
            "texts, which is approximate; give its folder with --tokenizer",
            info.name,
            path,
            error,
        )
        return None
    tokenizer.warm_chat_template()
    return PromptReader(tokenizer, info)
