"""instructor: every mode that an OpenAI-compatible server can have, complete, as partial objects and as a list.

Usage: python instructor_modes.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any, Literal

import instructor
import openai
from instructor import Mode
from pydantic import BaseModel, ConfigDict, Field


class User(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


class Note(BaseModel):
    """Any JSON object is one: JSON mode does not hold the model to a schema."""

    name: str | None = None


class Weather(BaseModel):
    city: Literal["Rome", "Paris"]


MESSAGES = [{"role": "user", "content": "Ada is 36 years old. Give her name and age."}]
IN_MARKDOWN = {
    "type": "sequence",
    "elements": [
        {"type": "const_string", "value": "```json\n"},
        {"type": "json_schema", "json_schema": User.model_json_schema()},
        {"type": "const_string", "value": "\n```"},
    ],
}


def main(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    settings: dict[str, Any] = {
        "model": client.models.list().data[0].id,
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 120,
        "max_retries": 0,
    }

    def ask(mode: Mode, kind: Any, **more: Any) -> Any:
        create = instructor.from_openai(client, mode=mode).chat.completions.create
        return create(response_model=kind, **{**settings, **more})

    for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.FUNCTIONS, Mode.JSON_SCHEMA, Mode.JSON_O1):
        found = ask(mode, User)
        assert isinstance(found, User), mode
        print(mode, found)
    assert isinstance(ask(Mode.JSON, Note), Note)
    # The next two leave the choice to the model, and this one is small: the body adds what forces it.
    found = ask(Mode.MD_JSON, User, extra_body={"structured_outputs": {"structural_tag": {"format": IN_MARKDOWN}}})
    assert isinstance(found, User)
    called = list(ask(Mode.PARALLEL_TOOLS, Iterable[User | Weather], extra_body={"tool_choice": "required"}))
    assert called
    assert all(isinstance(one, (User, Weather)) for one in called)
    print(Mode.PARALLEL_TOOLS, called)

    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        create = instructor.from_openai(client, mode=mode).chat.completions
        *_, last = create.create_partial(response_model=User, **settings)
        assert last.name is not None
        assert last.age is not None
    # instructor's own schema of a list does not require the list.
    tasks = {"type": "array", "items": User.model_json_schema(), "minItems": 2, "maxItems": 2}
    schema = {"type": "object", "properties": {"tasks": tasks}, "required": ["tasks"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "users", "schema": schema}}
    several = create.create_iterable(response_model=User, **settings, extra_body={"response_format": form})
    assert [type(one) for one in several] == [User, User]


if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    main(sys.argv[1])
