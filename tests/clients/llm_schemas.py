"""llm: schemas, in three ways of writing them, and tools, on a model that extra-openai-models.yaml declares.

Usage: python llm_schemas.py http://127.0.0.1:8000
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
QUESTION = "Ada is 36 years old."


def schemas(model: Any) -> None:
    from llm import schema_dsl
    from pydantic import BaseModel, ConfigDict

    class User(BaseModel):
        model_config = ConfigDict(extra="forbid")

        name: str
        age: int

    closed = {"additionalProperties": False}
    for schema in (SCHEMA, User, schema_dsl("name, age int") | closed):
        for stream in (False, True):
            text = model.prompt(QUESTION, schema=schema, temperature=0, max_tokens=120, stream=stream).text()
            found = json.loads(text)
            assert set(found) == {"name", "age"}, schema
    print(found)


def tools(model: Any) -> None:
    """`llm` cannot force a call: the model is offered a tool, and gets the result of a call that it may have made."""
    import llm
    from llm.parts import ToolCallPart, ToolResultPart

    def age_of(name: str) -> str:
        """The age of a person."""
        return "36"

    settings = {"temperature": 0, "max_tokens": 40}
    for stream in (False, True):
        answer = model.prompt("How old is Ada?", tools=[age_of], stream=stream, **settings)
        assert answer.text() or answer.tool_calls()
    call = ToolCallPart(name="age_of", arguments={"name": "Ada"}, tool_call_id="call_1")
    result = ToolResultPart(name="age_of", output="36", tool_call_id="call_1")
    history = [llm.user("How old is Ada?"), llm.assistant(call), llm.tool_message(result)]
    answer = model.prompt(messages=history, tools=[age_of], stream=False, **settings)
    assert answer.text() or answer.tool_calls()
    print(answer.text())


def main(url: str) -> None:
    import httpx

    name = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LLM_USER_PATH"] = folder
        lines = ["- model_id: served", f"  model_name: {name}", f"  api_base: {url}/v1"]
        lines += ["  supports_schema: true", "  supports_tools: true"]
        Path(folder, "extra-openai-models.yaml").write_text("\n".join(lines))
        # Late: it reads its folder when it is imported.
        import llm

        model = llm.get_model("served")
        model.key = "none"
        schemas(model)
        tools(model)


if __name__ == "__main__":
    main(sys.argv[1])
