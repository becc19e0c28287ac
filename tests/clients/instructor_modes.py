"""instructor: the modes that use tools, JSON and JSON schemas.

Usage: python instructor_modes.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys

import instructor
import openai
from pydantic import BaseModel


class User(BaseModel):
    name: str
    age: int


def main(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "Ada is 36 years old. Give her name and age."}]
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        found = instructor.from_openai(client, mode=mode).chat.completions.create(
            model=model, messages=messages, response_model=User, temperature=0, max_tokens=100
        )
        assert isinstance(found, User), mode
        print(mode, found)


if __name__ == "__main__":
    main(sys.argv[1])
