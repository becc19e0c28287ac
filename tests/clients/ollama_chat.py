"""The ollama package: chat and generate, complete and streamed, tools, a schema, and what it asks about models.

Usage: python ollama_chat.py http://127.0.0.1:8000
"""

from __future__ import annotations

import json
import sys

import ollama

QUESTION = [{"role": "user", "content": "Name three rivers."}]
GREEDY = {"temperature": 0, "num_predict": 24}


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
      city: its name
    """
    return f"Rain in {city}"


def main(url: str) -> None:
    client = ollama.Client(url)
    (card,) = client.list().models
    model = card.model
    assert model is not None
    assert "completion" in (client.show(model).capabilities or ())
    assert [running.model for running in client.ps().models] == [model]
    assert client.pull(model).status == "success"

    whole = client.chat(model, messages=QUESTION, options=GREEDY, keep_alive="5m")
    parts = list(client.chat(model, messages=QUESTION, options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].eval_count == whole.eval_count == 24
    assert parts[-1].done_reason == whole.done_reason == "length"
    made = client.generate(model, "Name three rivers.", options=GREEDY)
    streamed = list(client.generate(model, "Name three rivers.", options=GREEDY, stream=True))
    assert "".join(part.response for part in streamed) == made.response == whole.message.content
    raw = client.generate(model, "The headrace of a mill is", raw=True, options=GREEDY)
    assert raw.response

    schema = {"type": "object", "properties": {"river": {"enum": ["Nile", "Rhine"]}}, "required": ["river"]}
    schema["additionalProperties"] = False
    formatted = client.chat(model, messages=QUESTION, format=schema, options={"temperature": 0, "num_predict": 80})
    assert json.loads(formatted.message.content or "")["river"] in ("Nile", "Rhine")

    asked = [{"role": "user", "content": "What is the weather in Oslo?"}]
    called = client.chat(model, messages=asked, tools=[get_weather], options={"temperature": 0, "num_predict": 60})
    turns = [*asked, called.message, {"role": "tool", "content": get_weather("Oslo"), "tool_name": "get_weather"}]
    assert client.chat(model, messages=turns, tools=[get_weather], options=GREEDY).eval_count

    refused = None
    try:
        client.chat("another-model", messages=QUESTION)
    except ollama.ResponseError as error:
        refused = error
    assert refused is not None
    assert refused.status_code == 404
    assert "another-model" in refused.error


if __name__ == "__main__":
    main(sys.argv[1])
