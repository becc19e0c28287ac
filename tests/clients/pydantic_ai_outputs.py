"""pydantic-ai: tools, and every kind of output (by tool, native, prompted, by a function of the text), whole and
streamed.

Usage: python pydantic_ai_outputs.py http://127.0.0.1:8000
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, NativeOutput, PromptedOutput, RunContext, TextOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class User(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: str = Field(max_length=20)


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


OUTPUTS: dict[str, tuple[Any, Any]] = {
    "a type, which means by tool": (User, User),
    "by tool": (ToolOutput(User, name="user", strict=True), User),
    "by one of two tools": ([ToolOutput(User), ToolOutput(City)], (User, City)),
    "native": (NativeOutput(User), User),
    "native, one of two": (NativeOutput([User, City]), (User, City)),
    "native, strict": (NativeOutput(User, name="user", strict=True), User),
    "prompted": (PromptedOutput(User), User),
    "a function of the text": (TextOutput(words), list),
    "text": (str, str),
}
SETTINGS: Any = {"temperature": 0.0, "max_tokens": 160}
FORCED: Any = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "user", "schema": User.model_json_schema()}}
}
"""Prompted output asks for any JSON object, and the model is small."""


async def streamed(model: OpenAIChatModel) -> None:
    for output in (ToolOutput(User), NativeOutput(User)):
        agent: Any = Agent(model, output_type=output, model_settings=SETTINGS)
        async with agent.run_stream("Ada is 36 years old.") as run:
            found = [piece async for piece in run.stream_output(debounce_by=None)]
        assert isinstance(found[-1], User)


def with_tool(model: OpenAIChatModel) -> None:
    """A tool that must be called first; its result goes back, and then the output's tool must be called."""
    called: list[str] = []

    def first_the_tool(context: RunContext[None]) -> Any:
        name = "final_result" if called else "age_of"
        choice = {"type": "function", "function": {"name": name}}
        return {**SETTINGS, "extra_body": {"tool_choice": choice, "parallel_tool_calls": False}}

    agent: Any = Agent(model, output_type=ToolOutput(User), model_settings=first_the_tool)

    @agent.tool_plain
    def age_of(name: str) -> int:
        """The age of a person."""
        called.append(name)
        return 36

    result = agent.run_sync("How old is Ada?")
    assert len(called) == 1
    assert isinstance(result.output, User)
    assert [message.kind for message in result.all_messages()] == ["request", "response"] * 2 + ["request"]


def main(url: str) -> None:
    name = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    for what, (output, kind) in OUTPUTS.items():
        settings = {**SETTINGS, "extra_body": FORCED} if what == "prompted" else SETTINGS
        agent: Any = Agent(model, output_type=output, model_settings=settings, retries=0)
        found = agent.run_sync("Ada is 36 years old.").output
        assert isinstance(found, kind), what
        print(what, found)
    asyncio.run(streamed(model))
    with_tool(model)


if __name__ == "__main__":
    main(sys.argv[1])
