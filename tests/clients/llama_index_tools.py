"""llama-index: `chat_with_tools` with a required call.

Usage: python llama_index_tools.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys

import httpx
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def main(url: str) -> None:
    name = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    model = OpenAILike(
        model=name,
        api_base=f"{url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        temperature=0,
        max_tokens=100,
    )
    answer = model.chat_with_tools([FunctionTool.from_defaults(add)], user_msg="What is 2 + 3?", tool_required=True)
    (call,) = model.get_tool_calls_from_response(answer)[:1]
    assert call.tool_name == "add"
    assert set(call.tool_kwargs) == {"a", "b"}
    print(call.tool_kwargs)


if __name__ == "__main__":
    main(sys.argv[1])
