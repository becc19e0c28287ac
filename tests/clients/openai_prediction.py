"""The openai package: `prediction` in chat, complete and streamed, with the counts in the usage.

Usage: python openai_prediction.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys

import openai

SOURCE = """class Wheel:
    def __init__(self, blades):
        self.blades = blades

    def turn(self, flow):
        return flow * self.blades
"""
QUESTION = [{"role": "user", "content": f"Repeat this file word for word:\n{SOURCE}"}]
LIMITS = {"temperature": 0, "max_tokens": 80}


def main(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    plain = client.chat.completions.create(model=model, messages=QUESTION, **LIMITS)
    whole = client.chat.completions.create(
        model=model, messages=QUESTION, prediction={"type": "content", "content": SOURCE}, **LIMITS
    )
    assert whole.choices[0].message.content == plain.choices[0].message.content
    assert counts(whole.usage) >= (0, 0)
    assert counts(plain.usage) == (0, 0)

    parts = [{"type": "text", "text": line} for line in SOURCE.splitlines(keepends=True)]
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        prediction={"type": "content", "content": parts},
        stream=True,
        stream_options={"include_usage": True},
        **LIMITS,
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == plain.choices[0].message.content
    assert last.usage.completion_tokens == plain.usage.completion_tokens
    assert counts(last.usage) >= (0, 0)

    several = client.chat.completions.create(
        model=model, messages=QUESTION, prediction={"type": "content", "content": SOURCE}, n=2, **LIMITS
    )
    assert [choice.message.content for choice in several.choices] == [plain.choices[0].message.content] * 2
    refused = None
    try:
        client.chat.completions.create(
            model=model, messages=QUESTION, extra_body={"speculation": {"method": "eagle"}}, **LIMITS
        )
    except openai.BadRequestError as error:
        refused = error.param
    assert refused == "speculation.method"


def counts(usage: openai.types.CompletionUsage) -> tuple[int, int]:
    """Accepted and rejected drafts. How many there are depends on the measured times: drafts must pay."""
    details = usage.completion_tokens_details
    return details.accepted_prediction_tokens, details.rejected_prediction_tokens


if __name__ == "__main__":
    main(sys.argv[1])
