"""The openai package's `responses`: complete and streamed, a forced function, a schema, and the turn after.

Usage: python openai_responses.py http://127.0.0.1:8000
"""

from __future__ import annotations

import json
import sys

import openai

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]},
    "strict": False,
}
QUESTION = "Name three rivers."


def main(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    asked = {"model": model, "temperature": 0, "max_output_tokens": 24}
    whole = client.responses.create(input=QUESTION, **asked)
    assert whole.status == "incomplete"
    with client.responses.stream(input=QUESTION, **asked) as stream:
        events = list(stream)
    final = events[-1].response
    assert events[-1].type == "response.incomplete"
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens == 24
    assert [event.sequence_number for event in events] == list(range(len(events)))
    chat = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=24
    )
    assert chat.choices[0].message.content == whole.output_text

    forced = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    called = client.responses.create(**{**asked, "max_output_tokens": 120}, input="Weather in Oslo?", **forced)
    (call,) = [item for item in called.output if item.type == "function_call"]
    assert isinstance(json.loads(call.arguments)["city"], str)
    with client.responses.stream(**{**asked, "max_output_tokens": 120}, input="Weather in Oslo?", **forced) as stream:
        streamed = stream.get_final_response()
    assert streamed.output[-1].arguments == call.arguments
    turns = [{"role": "user", "content": "Weather in Oslo?"}, *called.output]
    turns.append({"type": "function_call_output", "call_id": call.call_id, "output": "Rain"})
    assert client.responses.create(**asked, input=turns, tools=[WEATHER]).usage.output_tokens

    schema = {"type": "object", "properties": {"river": {"enum": ["Nile", "Rhine"]}}, "required": ["river"]}
    schema["additionalProperties"] = False
    form = {"format": {"type": "json_schema", "name": "river", "schema": schema, "strict": True}}
    made = client.responses.create(**{**asked, "max_output_tokens": 80}, input=QUESTION, text=form)
    assert json.loads(made.output_text)["river"] in ("Nile", "Rhine")

    refused = None
    try:
        client.responses.create(**asked, input="And?", previous_response_id=whole.id)
    except openai.BadRequestError as error:
        refused = error
    assert refused is not None
    assert refused.param == "previous_response_id"


if __name__ == "__main__":
    main(sys.argv[1])
