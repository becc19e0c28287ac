"""The openai package: `embeddings.create`, as numbers and in base64, which it asks for by itself.

Usage: python openai_embeddings.py http://127.0.0.1:8000
"""

from __future__ import annotations

import math
import sys

import openai

TEXTS = ["The river drives the mill.", "A mill is driven by a river.", "Bread"]


def main(url: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    encoded = client.embeddings.create(model=model, input=TEXTS)
    plain = client.embeddings.create(model=model, input=TEXTS, encoding_format="float")
    assert [one.index for one in plain.data] == [0, 1, 2]
    for one, other in zip(encoded.data, plain.data, strict=True):
        assert len(one.embedding) == len(other.embedding) > 8
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-6
        assert abs(math.hypot(*other.embedding) - 1) < 1e-5
    assert plain.usage.prompt_tokens == plain.usage.total_tokens > 10

    short = client.embeddings.create(model=model, input=TEXTS[0], dimensions=8, encoding_format="float")
    assert len(short.data[0].embedding) == 8
    assert abs(math.hypot(*short.data[0].embedding) - 1) < 1e-5
    ids = client.embeddings.create(model=model, input=[[5, 6, 7], [8]])
    assert len(ids.data) == 2
    refused = None
    try:
        client.embeddings.create(model=model, input="")
    except openai.BadRequestError as error:
        refused = error.param
    assert refused == "input"


if __name__ == "__main__":
    main(sys.argv[1])
