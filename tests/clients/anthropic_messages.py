"""The anthropic package: messages, streams, forced tools, a schema, and counting.

Usage: python anthropic_messages.py http://127.0.0.1:8000
"""

from __future__ import annotations

import json
import sys

import anthropic

QUESTION = [{"role": "user", "content": "Name three rivers."}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    },
}


def main(url: str) -> None:
    client = anthropic.Anthropic(base_url=url, api_key="none")
    (card,) = list(client.models.list())
    asked = {"model": card.id, "max_tokens": 24, "messages": QUESTION, "extra_body": {"temperature": 0}}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    assert final.usage.output_tokens == whole.usage.output_tokens == 24
    counted = client.messages.count_tokens(model=card.id, messages=QUESTION)
    used = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    assert counted.input_tokens == used

    forced = {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "get_weather"}, "max_tokens": 120}
    called = client.messages.create(**{**asked, **forced})
    (call,) = [block for block in called.content if block.type == "tool_use"]
    assert called.stop_reason == "tool_use"
    assert isinstance(call.input["city"], str)
    with client.messages.stream(**{**asked, **forced}) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[-1].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain, 12 degrees"}
    turns = [*QUESTION, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    after = client.messages.create(**{**asked, "messages": turns, "tools": [WEATHER]})
    assert after.usage.output_tokens > 0

    schema = {"type": "object", "properties": {"river": {"enum": ["Nile", "Rhine"]}}, "required": ["river"]}
    config = {"format": {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}}
    formatted = client.messages.create(**{**asked, "max_tokens": 80, "output_config": config})
    assert json.loads(formatted.content[0].text)["river"] in ("Nile", "Rhine")

    long = [{"role": "user", "content": "word " * 20000}]
    refused = None
    try:
        client.messages.create(**{**asked, "messages": long})
    except anthropic.BadRequestError as error:
        refused = error
    assert refused is not None
    assert "prompt is too long" in refused.body["error"]["message"], refused.body


if __name__ == "__main__":
    main(sys.argv[1])
