"""langchain-openai: `with_structured_output` by its three methods, and `bind_tools`, complete and streamed.

Usage: python langchain_tools.py http://127.0.0.1:8000
"""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field


class User(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


class Note(BaseModel):
    """Any JSON object is one: JSON mode does not hold the model to a schema."""

    name: str | None = None


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


QUESTION = "Ada is 36 years old."


def structured(model: ChatOpenAI) -> None:
    for method in ("function_calling", "json_schema"):
        for strict in (True, None):
            found = model.with_structured_output(User, method=method, strict=strict).invoke(QUESTION)
            assert isinstance(found, User), method
        raw = model.with_structured_output(User, method=method, include_raw=True).invoke(QUESTION)
        assert raw["parsing_error"] is None
        assert raw["parsed"] == found
        mapping = model.with_structured_output(User.model_json_schema(), method=method).invoke(QUESTION)
        assert set(mapping) == {"name", "age"}
        *_, last = model.with_structured_output(User, method=method).stream(QUESTION)
        assert last == found
        print(method, found)
    asked = 'Repeat this JSON: {"name": "Ada"}'
    assert isinstance(model.with_structured_output(None, method="json_mode").invoke(asked), dict)
    assert isinstance(model.with_structured_output(Note, method="json_mode").invoke(asked), Note)


def bound(model: ChatOpenAI) -> None:
    tools = [add, weather]
    for choice in ("any", "required", True, "add", {"type": "function", "function": {"name": "add"}}):
        offered = [add] if choice is True else tools
        answer = model.bind_tools(offered, tool_choice=choice).invoke("What is 2 + 3?")
        assert answer.tool_calls, choice
        assert not answer.invalid_tool_calls, choice
        if choice not in ("any", "required"):
            assert {call["name"] for call in answer.tool_calls} == {"add"}, choice
    (call,) = model.bind_tools(tools, tool_choice="add", parallel_tool_calls=False).invoke("What is 2 + 3?").tool_calls
    assert set(call["args"]) == {"a", "b"}
    whole: Any = None
    for piece in model.bind_tools([add], tool_choice="add", strict=True).stream("What is 2 + 3?"):
        whole = piece if whole is None else whole + piece
    assert set(whole.tool_calls[0]["args"]) == {"a", "b"}
    # The call is run, and its result goes back.
    history = [HumanMessage("What is 2 + 3?"), whole, *(add.invoke(one) for one in whole.tool_calls)]
    assert model.bind_tools(tools, tool_choice="none").invoke(history).content
    print(json.dumps(whole.tool_calls))


def main(url: str) -> None:
    name = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    model = ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model=name, temperature=0, max_tokens=120, stream_usage=True
    )
    structured(model)
    bound(model)


if __name__ == "__main__":
    main(sys.argv[1])
