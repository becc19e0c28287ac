"""pydantic-ai: tool output and native output.

Usage: python pydantic_ai_outputs.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys

import httpx
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class User(BaseModel):
    name: str
    age: int


def main(url: str) -> None:
    name = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))
    for output in (ToolOutput(User), NativeOutput(User)):
        agent = Agent(model, output_type=output, model_settings={"temperature": 0.0, "max_tokens": 100})
        found = agent.run_sync("Ada is 36 years old.").output
        assert isinstance(found, User)
        print(type(output).__name__, found)


if __name__ == "__main__":
    main(sys.argv[1])
