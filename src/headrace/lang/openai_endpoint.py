"""Runs programs on servers with OpenAI's API over HTTP: Headrace, vLLM, and others as far as they go."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import httpx

from headrace.errors import EngineDead, HeadraceError, InvalidRequest, Overloaded, ProgramError, excerpt
from headrace.lang.backend import Generated, Scores, TokenCounts
from headrace.lang.conversation import Conversation
from headrace.lang.openai_bodies import KINDS, ServerKind, generation_body

__all__ = ["HttpBackend", "events_of"]

_FULL = (429, 503)
_TRIES, _LONGEST_PAUSE = 5, 10.0
"""Tries of a request while the server is full, and the most seconds between two."""


class HttpBackend:
    """A `backend.Backend`."""

    def __init__(self, client: httpx.AsyncClient, url: str, model: str | None = None, kind: str | None = None) -> None:
        self._client, self.url = client, url
        self._given = model, kind
        self._model = model or ""
        self.kind: ServerKind = KINDS["openai"]
        self.priority: int | None = None
        """Of all requests of the model; None: they state none."""

    async def connect(self) -> None:
        """Find out the model and the kind of the server, as far as they are not given."""
        model, kind = self._given
        if model is None or kind is None:
            with self.reading():
                listed = (await self._json("GET", "/v1/models", None))["data"]
                mine = next((one for one in listed if one["id"] == model), listed[0])
                model = mine["id"] if model is None else model
                kind = str(mine.get("owned_by")) if kind is None else kind
        self._model, self.kind = model, KINDS.get(kind, KINDS["openai"])

    async def generate(
        self,
        conversation: Conversation,
        sampling: Mapping[str, Any],
        constraint: Mapping[str, Any] | None,
        on_text: Callable[[str], None] | None,
    ) -> Generated:
        path, body = generation_body(self.kind, conversation, sampling, constraint)
        if on_text is not None:
            return await self._streamed(path, body, conversation.is_chat, on_text)
        with self.reading():
            answer = await self._json("POST", path, self.ordered(body))
            choice = answer["choices"][0]
            text = (choice["message"]["content"] if conversation.is_chat else choice["text"]) or ""
            return Generated(text, choice.get("finish_reason"), _usage(answer.get("usage")), choice.get("logprobs"))

    async def score(self, conversation: Conversation, choices: Sequence[str], alone: bool) -> Scores:
        if not self.kind.tokenizes:
            return await self._score_texts(conversation, choices, alone)
        prefix = await self._token_ids(conversation)
        ids = [await self._choice_ids(choice) for choice in choices]
        here, usage = await self._logprobs([prefix + one for one in ids], len(prefix))
        if not alone:
            return Scores(here, [], usage)
        rows, further = await self._logprobs(ids, 0)
        usage.add(further)
        return Scores(here, rows, usage)

    async def _score_texts(self, conversation: Conversation, choices: Sequence[str], alone: bool) -> Scores:
        """Scores by text: the first token of a choice may begin in the text before it."""
        if conversation.is_chat:
            raise ProgramError(
                "select in a chat needs a server with /tokenize for messages (Headrace, vLLM): here it cannot be known "
                "how the model sees the messages; use gen with choices=, or a text without roles"
            )
        if alone:
            raise ProgramError("the method `unconditional` needs a server with /tokenize (Headrace, vLLM)")
        prefix = conversation.text
        answer = await self._completions([prefix + choice for choice in choices])
        with self.reading():
            rows = []
            for choice, found in zip(choices, sorted(answer["choices"], key=lambda one: one["index"]), strict=True):
                end = len(prefix) + len(choice)
                logprobs = found.get("logprobs") or {}
                if "text_offset" not in logprobs or "token_logprobs" not in logprobs:
                    raise ProgramError(
                        "this server gives no log-probabilities of given text (`echo` with `logprobs`), which select "
                        "needs: use gen with choices="
                    )
                starts = [*logprobs["text_offset"], len(found["text"])]
                kept = [
                    value
                    for value, start, stop in zip(logprobs["token_logprobs"], starts, starts[1:], strict=False)
                    if stop > len(prefix) and start < end
                ]
                rows.append(_numbers(kept))
            return Scores(rows, [], _usage(answer.get("usage")))

    async def _token_ids(self, conversation: Conversation) -> list[int]:
        """The prompt as the model sees it."""
        body: dict[str, Any] = {"prompt": conversation.text}
        if conversation.is_chat:
            open_text = bool(conversation.text)
            body = {"messages": conversation.as_messages(), "add_generation_prompt": not open_text}
            if open_text:
                body["continue_final_message"] = True
        elif not conversation.text:
            return []
        with self.reading():
            return [int(one) for one in (await self._json("POST", "/tokenize", self.named(body)))["tokens"]]

    async def _choice_ids(self, choice: str) -> list[int]:
        with self.reading():
            body = self.named({"prompt": choice, "add_special_tokens": False})
            return [int(one) for one in (await self._json("POST", "/tokenize", body))["tokens"]]

    async def _logprobs(self, prompts: list[list[int]], start: int) -> tuple[list[list[float]], TokenCounts]:
        """The log-probability of each token from `start` on."""
        answer = await self._completions(prompts, start)
        with self.reading():
            found = sorted(answer["choices"], key=lambda one: one["index"])
            rows = [
                one["logprobs"]["token_logprobs"][start : len(prompt)]
                for one, prompt in zip(found, prompts, strict=True)
            ]
            return [_numbers(row) for row in rows], _usage(answer.get("usage"))

    async def _completions(self, prompts: Sequence[Any], start: int = 0) -> Any:
        least = 0 if self.kind.scores_alone else 1
        body = {"prompt": list(prompts), "echo": True, "logprobs": 0, "max_tokens": least, "temperature": 0}
        if not self.kind.tokenizes:
            body["logprobs"] = 1  # Some servers take 0 for none.
        if start and self.kind.scores_from:
            body["prompt_logprobs_start"] = start
        return await self._json("POST", "/v1/completions", self.ordered(body))

    def ordered(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body of a request that the model works on. Raises ProgramError if the server has no priorities."""
        if self.priority is not None:
            if not self.kind.priorities:
                raise ProgramError(f"{self.url} is no server whose requests have a priority: leave it out")
            body = {**body, "priority": self.priority}
        return self.named(body)

    def named(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"model": self._model, **body} if self._model else body

    async def _streamed(self, path: str, body: dict[str, Any], chat: bool, on_text: Callable[[str], None]) -> Generated:
        made = Generated("", None)
        pieces: list[str] = []
        sent = self.ordered({**body, "stream": True, "stream_options": {"include_usage": True}})
        with self.reading():
            async with self.sending("POST", path, sent) as response:
                async for data in events_of(response):
                    chunk = json.loads(data)
                    if "error" in chunk:
                        raise EngineDead(str(chunk["error"].get("message", chunk["error"])))
                    if chunk.get("usage"):
                        made.usage = _usage(chunk["usage"])
                    for choice in chunk.get("choices", ()):
                        piece = (choice.get("delta", {}).get("content") if chat else choice.get("text")) or ""
                        made.finish_reason = choice.get("finish_reason") or made.finish_reason
                        made.logprobs = _joined(made.logprobs, choice.get("logprobs"))
                        if piece:
                            pieces.append(piece)
                            on_text(piece)
        made.text = "".join(pieces)
        made.usage.requests = 1
        return made

    async def _json(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        async with self.sending(method, path, body) as response:
            return json.loads(await response.aread())

    @contextlib.asynccontextmanager
    async def sending(self, method: str, path: str, body: dict[str, Any] | None) -> AsyncIterator[httpx.Response]:
        """Send a request. Leaving the block closes the answer, which aborts a request that still runs."""
        try:
            response = await self._answered(method, path, body)
            try:
                if response.status_code != 200:
                    raise _refusal(path, response.status_code, await response.aread())
                yield response
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
            raise EngineDead(
                f"{self.url}: no answer ({why}); is the server running? `headrace serve` starts one"
            ) from error

    async def _answered(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        """The answer, its body not read yet. A server that is full is asked again when it says."""
        for tries_left in reversed(range(_TRIES)):
            request = self._client.build_request(method, path, json=body)
            response = await self._client.send(request, stream=True)
            if response.status_code not in _FULL or not tries_left:
                break
            await response.aclose()
            await asyncio.sleep(_pause(response.headers.get("retry-after")))
        return response

    @contextlib.contextmanager
    def reading(self) -> Any:
        """Turn what an answer of another form raises into an error."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise EngineDead(f"{self.url}: the answer is not in the form of OpenAI's API: {excerpt(error)}") from error


def _pause(retry_after: str | None) -> float:
    """Seconds until the next try."""
    try:
        return min(max(float(retry_after or 1), 0), _LONGEST_PAUSE)
    except ValueError:  # A date.
        return 1.0


async def events_of(response: httpx.Response) -> AsyncIterator[bytes]:
    """The data of each event, up to `[DONE]`. Only a line feed ends a line: JSON may hold other line separators."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield data


def _usage(found: Any) -> TokenCounts:
    if not isinstance(found, Mapping):
        return TokenCounts(requests=1)
    prompt = int(found.get("prompt_tokens") or 0)
    details = found.get("prompt_tokens_details") or {}
    return TokenCounts(
        prompt, int(found.get("completion_tokens") or 0), int(details.get("cached_tokens") or 0), 1, prompt
    )


def _joined(one: Any, other: Any) -> Any:
    """Logprobs of two pieces: their lists behind one another."""
    if one is None or other is None:
        return other if one is None else one
    return {
        name: one[name] + value if isinstance(value, list) and isinstance(one.get(name), list) else value
        for name, value in other.items()
    }


def _numbers(row: Sequence[float | None]) -> list[float]:
    # The first token of a text has none.
    return [0.0 if value is None else float(value) for value in row]


def _refusal(path: str, status: int, raw: bytes) -> HeadraceError:
    code = None
    try:
        found = json.loads(raw)
        detail = found["error"] if isinstance(found.get("error"), dict) else found
        message, code = str(detail["message"]), detail.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"{path}: the server answers {status}"
    if status in _FULL:
        return Overloaded(message)
    return InvalidRequest(message, code=None if code is None else str(code)) if status < 500 else EngineDead(message)
