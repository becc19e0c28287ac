"""litellm: chat and completions through its providers `openai` and `hosted_vllm`, streams, tools, JSON mode, a schema,
and Anthropic's form through `anthropic`.

Usage: python litellm_calls.py http://127.0.0.1:8000
"""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import litellm

QUESTION = [{"role": "user", "content": "Name three rivers."}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "It.", "parameters": PARAMETERS}}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": PARAMETERS, "strict": True}}


def provider(kind: str, model: str, url: str) -> None:
    common: dict[str, Any] = {"model": f"{kind}/{model}", "api_base": f"{url}/v1", "api_key": "none", "temperature": 0}
    whole = litellm.completion(messages=QUESTION, max_tokens=24, **common)
    text = whole.choices[0].message.content
    assert text
    assert whole.usage.completion_tokens == 24
    stream = litellm.completion(messages=QUESTION, max_tokens=24, stream=True, **common)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
    called = litellm.completion(messages=QUESTION, tools=TOOLS, tool_choice="required", max_tokens=80, **common)
    (call,) = called.choices[0].message.tool_calls
    assert set(json.loads(call.function.arguments)) == {"city"}
    # The call goes back as litellm has it, with its result.
    history = [*QUESTION, called.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    assert litellm.completion(messages=history, tools=TOOLS, max_tokens=8, **common).choices
    formed = litellm.completion(messages=QUESTION, response_format=FORMAT, max_tokens=80, **common)
    assert set(json.loads(formed.choices[0].message.content)) == {"city"}
    mode = {"type": "json_object"}
    loose = litellm.completion(messages=QUESTION, response_format=mode, max_tokens=80, seed=1, **common)
    assert loose.choices[0].message.content


def main(url: str) -> None:
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    for kind in ("openai", "hosted_vllm"):
        provider(kind, model, url)
    text = litellm.text_completion(
        model=f"text-completion-openai/{model}", prompt="The river", api_base=f"{url}/v1", api_key="none", max_tokens=8
    )
    assert text.choices[0].text
    claude = litellm.completion(
        model=f"anthropic/{model}", messages=QUESTION, api_base=url, api_key="none", max_tokens=24, temperature=0
    )
    assert claude.choices[0].message.content
    print(claude.choices[0].message.content)


if __name__ == "__main__":
    main(sys.argv[1])
