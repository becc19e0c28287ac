"""The token ids of a request's prompt, read as the engine reads them, so that its cached blocks can be found.

The engine's own code renders and tokenises. What it would refuse has no tokens here: the engine's answer says why. This
runs in a process of its own (`prompt_process`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from headrace.client.api import ModelInfo
from headrace.config import ServerConfig
from headrace.errors import HeadraceError
from headrace.keys.key_ring import KeyRing
from headrace.route.segment_encoder import SegmentEncoder
from headrace.server.context import Context, ServerTokenizer
from headrace.server.http_errors import HttpError
from headrace.server.json_limits import SMALL, check_json_limits
from headrace.server.lenient_body import as_chat
from headrace.server.messages_request import chat_fields
from headrace.server.messages_schemas import MessagesRequest
from headrace.server.model_formats import find_formats
from headrace.server.prepared_chat import render_chat
from headrace.server.request_body import decode_body
from headrace.server.request_params import MOST_CHARACTERS, check_characters
from headrace.server.schemas import ChatRequest, CompletionRequest
from headrace.server.tool_use import tool_use
from headrace.tokenization.quoting import split_quoted

__all__ = ["Prompt", "PromptReader", "load_reader"]

_AT_ONCE = 1 << 13
"""Characters of a text that is tokenised in the event loop: a thread would take longer."""
_MOST_AT_ONCE = 1 << 16
"""The same for conversations, of which most is known."""


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

    def __init__(self, tokenizer: ServerTokenizer, info: ModelInfo, control_tokens: Iterable[str] = ()) -> None:
        self._encoder = SegmentEncoder(partial(tokenizer.encode, add_special_tokens=False), control_tokens)
        client: Any = _Described(info)
        self._context = Context(
            client, tokenizer, info.name, KeyRing(), 1, formats=find_formats(tokenizer, ServerConfig())
        )

    async def read(self, path: str, body: bytes) -> Prompt | None:
        """None for a path without a prompt, and for a body that an engine refuses."""
        try:
            if path == "/v1/completions":
                return await self._completion(body)
            if path == "/v1/chat/completions":
                await check_json_limits(body, ChatRequest.MOST_PARTS, max(ChatRequest.MOST_VALUES, SMALL))
                return await self._rendered(decode_body(body, ChatRequest), body)
            if path == "/v1/messages":
                await check_json_limits(body, MessagesRequest.MOST_PARTS, max(MessagesRequest.MOST_VALUES, SMALL))
                fields, _ = chat_fields(decode_body(body, MessagesRequest))
                return await self._rendered(*as_chat(fields, None))
            return None
        except (HeadraceError, HttpError, msgspec.MsgspecError, UnicodeError):
            return None

    def close(self) -> None:
        self._context.workers.close()

    async def _completion(self, sent: bytes) -> Prompt | None:
        await check_json_limits(sent, CompletionRequest.MOST_PARTS, max(CompletionRequest.MOST_VALUES, SMALL))
        body = decode_body(sent, CompletionRequest)
        # Of several prompts the first decides.
        first: Any = body.prompt
        if isinstance(first, list) and first and not isinstance(first[0], int):
            first = first[0]
        if isinstance(first, str):
            first = await self._encode(first, body.add_special_tokens is not False)
        return Prompt(first, body.cache_salt or "") if first else None

    async def _rendered(self, body: ChatRequest, sent: bytes) -> Prompt:
        context = self._context
        # Its tools are checked as those of a request that is answered.
        tool_use(body, context.formats)
        text = await render_chat(context, body, sent, partial(check_characters, param="messages", most=MOST_CHARACTERS))
        special = bool(body.add_special_tokens)
        if special or len(text) > _MOST_AT_ONCE or split_quoted(text) is not None:
            encode = partial(context.tokenizer.encode_chat, text, special)
            return Prompt(await context.workers.run(len(text), encode), body.cache_salt or "")
        return Prompt(self._encoder.encode(text), body.cache_salt or "")

    async def _encode(self, text: str, special: bool) -> list[int]:
        encode = partial(self._context.tokenizer.encode, text, special)
        return encode() if len(text) < _AT_ONCE else await self._context.workers.run(len(text), encode)


def load_reader(path: str, model: str, max_model_len: int) -> PromptReader:
    """The reader of a model whose files are at `path`, for a process that may be killed: templates are rendered in it.
    Raises what loading a tokenizer raises."""
    from headrace.tokenization.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(Path(path))
    tokenizer.render_here()
    info = ModelInfo(model, path, max_model_len, 1 << 31, "", "")
    return PromptReader(tokenizer, info, map(tokenizer.token_text, tokenizer.special_ids))
