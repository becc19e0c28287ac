"""llama-index: `chat_with_tools` with a required call, whole and streamed; `structured_predict` by tools and by schema;
`as_structured_llm`.

Usage: python llama_index_tools.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys
from typing import Any

import httpx
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, ConfigDict, Field


class User(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


PROMPT = PromptTemplate("{text} Give the name and the age.")
TEXT = "Ada is 36 years old."


def tools(model: OpenAILike) -> None:
    one, two = FunctionTool.from_defaults(add), FunctionTool.from_defaults(weather)
    for given in ({"tool_required": True}, {"tool_choice": "required"}, {"tool_choice": "add"}):
        answer = model.chat_with_tools([one], user_msg="What is 2 + 3?", **given)
        (call,) = model.get_tool_calls_from_response(answer)[:1]
        assert call.tool_name == "add", given
        assert set(call.tool_kwargs) == {"a", "b"}, given
    several = model.chat_with_tools([one, two], user_msg="What is 2 + 3?", tool_required=True)
    assert {call.tool_name for call in model.get_tool_calls_from_response(several)} <= {"add", "weather"}
    *_, last = model.stream_chat_with_tools([one], user_msg="What is 2 + 3?", tool_required=True)
    (streamed,) = model.get_tool_calls_from_response(last)[:1]
    assert streamed.tool_kwargs == call.tool_kwargs
    # The result goes back.
    result = ChatMessage(
        role="tool", content=str(one(**call.tool_kwargs)), additional_kwargs={"tool_call_id": call.tool_id}
    )
    history = [ChatMessage(role="user", content="What is 2 + 3?"), answer.message, result]
    assert model.chat_with_tools([one], chat_history=history, tool_choice="none").message.content
    print(call.tool_kwargs)


def structured(options: dict[str, Any]) -> None:
    # The streaming call drops a `tool_choice`, so the body adds it.
    by_tool = OpenAILike(**options, additional_kwargs={"extra_body": {"tool_choice": "required"}})
    found = by_tool.structured_predict(User, PROMPT, text=TEXT)
    assert isinstance(found, User)
    *_, last = by_tool.stream_structured_predict(User, PROMPT, text=TEXT)
    assert last == found
    by_schema = OpenAILike(**options, should_use_structured_outputs=True)
    formed = by_schema.structured_predict(User, PROMPT, text=TEXT)
    assert isinstance(formed, User)
    *_, last = by_schema.stream_structured_predict(User, PROMPT, text=TEXT)
    assert last == formed
    answer = by_schema.as_structured_llm(User).chat([ChatMessage(role="user", content=TEXT)])
    assert isinstance(answer.raw, User)
    print(found, formed, answer.raw)


def main(url: str) -> None:
    options: dict[str, Any] = {
        "model": httpx.get(f"{url}/v1/models").json()["data"][0]["id"],
        "api_base": f"{url}/v1",
        "api_key": "none",
        "is_chat_model": True,
        "is_function_calling_model": True,
        "temperature": 0,
        "max_tokens": 120,
        "max_retries": 0,
    }
    tools(OpenAILike(**options))
    structured(options)


if __name__ == "__main__":
    main(sys.argv[1])
