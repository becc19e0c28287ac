"""The openai package, any version from 1 on: models, chat and completions, whole, streamed and asynchronous, with
logprobs, several choices, errors, and an answer that is given up in the middle.

Usage: python openai_chat.py http://127.0.0.1:8000
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import openai

QUESTION: Any = [{"role": "user", "content": "Name three rivers."}]
GREEDY: Any = {"temperature": 0, "max_tokens": 24}


def chat(client: openai.OpenAI, model: str) -> str:
    whole = client.chat.completions.create(model=model, messages=QUESTION, logprobs=True, top_logprobs=2, **GREEDY)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 24
    assert whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.content or ()) == 24
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    # The answer goes back as it came.
    history = [*QUESTION, whole.choices[0].message, {"role": "user", "content": "And one more?"}]
    several = client.chat.completions.create(model=model, messages=history, n=2, seed=1, max_tokens=8)
    assert [choice.index for choice in several.choices] == [0, 1]
    return text


def given_up(client: openai.OpenAI, model: str) -> None:
    with client.chat.completions.create(model=model, messages=QUESTION, stream=True, max_tokens=200) as stream:
        assert next(iter(stream)).choices


def completions(client: openai.OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, prompt="The river", logprobs=1, echo=True, **GREEDY)
    assert whole.choices[0].text.startswith("The river")
    parts = client.completions.create(model=model, prompt="The river", stream=True, **GREEDY)
    assert "The river" + "".join(part.choices[0].text for part in parts) == whole.choices[0].text
    assert len(client.completions.create(model=model, prompt=["a", "b"], max_tokens=2).choices) == 2


def errors(client: openai.OpenAI, model: str) -> None:
    calls: list[tuple[type[openai.APIStatusError], dict[str, Any]]] = [
        (openai.NotFoundError, {"model": "other", "messages": QUESTION}),
        (openai.BadRequestError, {"model": model, "messages": QUESTION, "max_tokens": 10**6}),
        (openai.BadRequestError, {"model": model, "messages": []}),
    ]
    for kind, body in calls:
        found = None
        try:
            client.chat.completions.create(**body)
        except kind as error:
            found = error.code
        assert found, body


async def asynchronous(client: openai.AsyncOpenAI, model: str, text: str) -> None:
    async def one() -> str:
        stream = await client.chat.completions.create(model=model, messages=QUESTION, stream=True, **GREEDY)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert await asyncio.gather(*(one() for _ in range(4))) == [text] * 4


def main(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model
    text = chat(client, model)
    given_up(client, model)
    completions(client, model)
    errors(client, model)
    asyncio.run(asynchronous(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none"), model, text))
    print(openai.__version__, text)


if __name__ == "__main__":
    main(sys.argv[1])
