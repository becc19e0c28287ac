"""A server with OpenAI's API that answers from a script, and a backend without HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import httpx

from headrace.lang.backend import Generated, Scores, TokenCounts
from headrace.lang.conversation import Conversation
from headrace.lang.server_source import Server, server

Answer = Callable[[str], str]
"""From what the model sees, as one text, to what it says."""


def seen(body: Mapping[str, Any]) -> str:
    if "messages" not in body:
        return str(body["prompt"])
    texts = [f"<{one['role']}>{one['content']}" for one in body["messages"]]
    return "".join(texts) if body.get("continue_final_message") else "".join(texts) + "<assistant>"


class FakeServer:
    """Tokens are letters. A text's log-probability is high if `likes` is in what stands before it and in it."""

    def __init__(self, answer: Answer = lambda text: "ok", likes: str = "", owner: str = "headrace") -> None:
        self.answer, self.likes, self.owner = answer, likes, owner
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.running = self.most_running = 0

    @property
    def on(self) -> Server:
        return server("http://fake", transport=httpx.MockTransport(self.handle))

    async def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny", "owned_by": self.owner}]})
        if path == "/v1/programs":
            return httpx.Response(404, json={"error": {"message": "no such route"}})
        body = json.loads(request.content)
        self.bodies.append((path, body))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.running -= 1
        if path == "/tokenize":
            text = seen({**body, "continue_final_message": not body.get("add_generation_prompt", False)})
            return httpx.Response(200, json={"tokens": [ord(letter) for letter in text]})
        if body.get("echo"):
            return httpx.Response(200, json=self._echoed(body))
        return self._generated(path, body)

    def _generated(self, path: str, body: dict[str, Any]) -> httpx.Response:
        text = self.answer(seen(body))
        usage = {"prompt_tokens": len(seen(body)), "completion_tokens": len(text)}
        chat = path == "/v1/chat/completions"
        if not body.get("stream"):
            said: dict[str, Any] = {"message": {"content": text}} if chat else {"text": text}
            return httpx.Response(200, json={"choices": [{**said, "finish_reason": "stop"}], "usage": usage})
        chunks: list[dict[str, Any]] = [
            {"choices": [{"delta": {"content": letter}} if chat else {"text": letter}]} for letter in text
        ]
        chunks += [{"choices": [{"delta": {}, "text": "", "finish_reason": "stop"}]}, {"choices": [], "usage": usage}]
        data = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        return httpx.Response(200, content=data.encode())

    def _echoed(self, body: dict[str, Any]) -> dict[str, Any]:
        choices = []
        for index, prompt in enumerate(body["prompt"]):
            text = prompt if isinstance(prompt, str) else "".join(map(chr, prompt))
            good = bool(self.likes) and text.endswith(self.likes)
            logprobs = [None, *[-0.5 if good else -2.0 for _ in text[1:]]]
            choices.append(
                {
                    "index": index,
                    "text": text,
                    "logprobs": {"token_logprobs": logprobs, "text_offset": list(range(len(text)))},
                }
            )
        return {"choices": choices[::-1], "usage": {"prompt_tokens": 1, "completion_tokens": 0}}


class FakeBackend:
    """A `backend.Backend` and its own source. `waits` holds every generation until it is set."""

    def __init__(self, answer: Answer = lambda text: "ok", waits: asyncio.Event | None = None) -> None:
        self.answer, self.waits = answer, waits
        self.asked: list[tuple[Conversation, dict[str, Any], Any]] = []
        self.cancelled = 0

    @contextlib.asynccontextmanager
    async def open_backend(self) -> AsyncIterator[FakeBackend]:
        yield self

    async def generate(
        self,
        conversation: Conversation,
        sampling: Mapping[str, Any],
        constraint: Mapping[str, Any] | None,
        on_text: Callable[[str], None] | None,
    ) -> Generated:
        self.asked.append((conversation, dict(sampling), constraint))
        try:
            await (asyncio.sleep(0) if self.waits is None else self.waits.wait())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        text = self.answer(_whole(conversation))
        for letter in text if on_text is not None else "":
            on_text(letter)
        return Generated(text, "stop", TokenCounts(1, min(len(text), sampling["max_tokens"]), 0, 1))

    async def score(self, conversation: Conversation, choices: Sequence[str], alone: bool) -> Scores:
        await asyncio.sleep(0)
        wanted = self.answer(_whole(conversation))
        rows = [[-0.1 if choice == wanted else -3.0] * len(choice) for choice in choices]
        return Scores(rows, [[-1.0] * len(choice) for choice in choices] if alone else [], TokenCounts(1, 0, 0, 1))


def _whole(conversation: Conversation) -> str:
    texts = [f"<{role}>{text}" for role, text in conversation.messages]
    if conversation.role is not None:
        texts.append(f"<{conversation.role}>")
    return "".join(texts) + conversation.text
