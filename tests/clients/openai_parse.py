"""The openai package: `parse` with pydantic models, as a response format and as a tool, complete and streamed.

Usage: python openai_parse.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys
from typing import Literal

import openai
from pydantic import BaseModel


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    unit: Literal["celsius", "fahrenheit"]
    days: int


QUESTION = [{"role": "user", "content": "What will the weather be in Rome in the next 3 days, in celsius?"}]
LIMITS = {"temperature": 0, "max_tokens": 120}


def main(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    parsed = client.chat.completions.parse(model=model, messages=QUESTION, response_format=Weather, **LIMITS)
    assert isinstance(parsed.choices[0].message.parsed, Weather)

    tool = openai.pydantic_function_tool(Weather, name="weather")
    called = client.chat.completions.parse(
        model=model, messages=QUESTION, tools=[tool], tool_choice="required", parallel_tool_calls=False, **LIMITS
    ).choices[0]
    assert called.finish_reason == "tool_calls"
    (call,) = called.message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)

    named = {"type": "function", "function": {"name": "weather"}}
    with client.chat.completions.stream(
        model=model, messages=QUESTION, tools=[tool], tool_choice=named, **LIMITS
    ) as stream:
        pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        last = stream.get_final_completion().choices[0]
    assert len(pieces) > 3
    (streamed,) = last.message.tool_calls or []
    assert streamed.function.parsed_arguments == call.function.parsed_arguments

    # The result goes back, and the model answers in words.
    history = [*QUESTION, called.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}]
    answer = client.chat.completions.create(model=model, messages=history, tools=[tool], tool_choice="none", **LIMITS)
    assert answer.choices[0].message.content


if __name__ == "__main__":
    main(sys.argv[1])
