"""The openai package: `parse` and `stream` with pydantic models, as a response format and as tools, with the plain and
the asynchronous client.

Usage: python openai_parse.py http://127.0.0.1:8000
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from enum import Enum
from typing import Any, Literal

import openai
from pydantic import BaseModel, Field


class Unit(str, Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Day(BaseModel):
    weekday: Literal["monday", "tuesday"]
    degrees: int = Field(ge=-50, le=60)


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(max_length=20)
    unit: Unit
    days: int


class Forecast(BaseModel):
    """A nested model: its schema has references, a union and a list."""

    place: Weather | None
    days: list[Day] = Field(min_length=1, max_length=2)


class Add(BaseModel):
    """Add two numbers."""

    a: int
    b: int


QUESTION: Any = [{"role": "user", "content": "What will the weather be in Rome in the next 3 days, in celsius?"}]
LIMITS: Any = {"temperature": 0, "max_tokens": 160}
TOOL = openai.pydantic_function_tool(Weather, name="weather")
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


def formats(client: openai.OpenAI, model: str) -> None:
    for kind in (Weather, Forecast):
        parsed = client.chat.completions.parse(model=model, messages=QUESTION, response_format=kind, **LIMITS)
        assert isinstance(parsed.choices[0].message.parsed, kind)
        with client.chat.completions.stream(
            model=model, messages=QUESTION, response_format=kind, stream_options={"include_usage": True}, **LIMITS
        ) as stream:
            seen = [event.type for event in stream]
            whole = stream.get_final_completion()
        assert seen.count("content.delta") > 3
        assert seen.count("content.done") == 1
        assert whole.choices[0].message.parsed == parsed.choices[0].message.parsed
        assert whole.usage is not None
    # The older place of the same helper.
    parsed = client.beta.chat.completions.parse(model=model, messages=QUESTION, response_format=Weather, n=2, **LIMITS)
    assert all(isinstance(choice.message.parsed, Weather) for choice in parsed.choices)
    with contextlib.suppress(openai.LengthFinishReasonError):
        cut = {**LIMITS, "max_tokens": 3}
        client.chat.completions.parse(model=model, messages=QUESTION, response_format=Weather, **cut)
        raise AssertionError("a text that was cut was parsed")


def tools(client: openai.OpenAI, model: str) -> None:
    tool: Any = [TOOL, openai.pydantic_function_tool(Add)]
    called = client.chat.completions.parse(
        model=model, messages=QUESTION, tools=tool, tool_choice="required", parallel_tool_calls=False, **LIMITS
    ).choices[0]
    assert called.finish_reason == "tool_calls"
    (call,) = called.message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, (Weather, Add))

    named = client.chat.completions.parse(model=model, messages=QUESTION, tools=tool, tool_choice=NAMED, **LIMITS)
    with client.chat.completions.stream(
        model=model, messages=QUESTION, tools=tool, tool_choice=NAMED, **LIMITS
    ) as stream:
        pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        last = stream.get_final_completion().choices[0]
    assert len(pieces) > 3
    (streamed,) = last.message.tool_calls or []
    (whole,) = named.choices[0].message.tool_calls or []
    assert isinstance(streamed.function.parsed_arguments, Weather)
    assert streamed.function.parsed_arguments == whole.function.parsed_arguments

    # The result goes back, and the model answers in words, or in a format.
    history = [*QUESTION, called.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}]
    answer = client.chat.completions.create(model=model, messages=history, tools=tool, tool_choice="none", **LIMITS)
    assert answer.choices[0].message.content
    formed = client.chat.completions.parse(model=model, messages=history, response_format=Weather, **LIMITS)
    assert isinstance(formed.choices[0].message.parsed, Weather)


async def asynchronous(client: openai.AsyncOpenAI, model: str) -> None:
    asked = client.chat.completions.parse(model=model, messages=QUESTION, response_format=Weather, **LIMITS)
    other = client.chat.completions.parse(model=model, messages=QUESTION, tools=[TOOL], tool_choice=NAMED, **LIMITS)
    formed, called = await asyncio.gather(asked, other)
    assert isinstance(formed.choices[0].message.parsed, Weather)
    (call,) = called.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)


def main(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    formats(client, model)
    tools(client, model)
    asyncio.run(asynchronous(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none"), model))


if __name__ == "__main__":
    main(sys.argv[1])
