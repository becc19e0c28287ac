"""langchain-openai: `with_structured_output` by tools and by schema, and `bind_tools`.

Usage: python langchain_tools.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys

import httpx
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field


class User(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def main(url: str) -> None:
    name = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    model = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=name, temperature=0, max_tokens=100)
    for method in ("function_calling", "json_schema"):
        found = model.with_structured_output(User, method=method, strict=True).invoke("Ada is 36 years old.")
        assert isinstance(found, User), method
        print(method, found)
    mapping = model.with_structured_output(None, method="json_mode").invoke('Repeat this JSON: {"name": "Ada"}')
    assert isinstance(mapping, dict)
    answer = model.bind_tools([add], tool_choice="any").invoke("What is 2 + 3?")
    assert next(call["name"] for call in answer.tool_calls) == "add"
    pieces = list(model.bind_tools([add], tool_choice="add").stream("What is 2 + 3?"))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = whole + piece
    assert set(whole.tool_calls[0]["args"]) == {"a", "b"}


if __name__ == "__main__":
    main(sys.argv[1])
