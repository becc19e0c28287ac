"""The ollama package: `embed` and the older `embeddings`.

Usage: python ollama_embed.py http://127.0.0.1:8000
"""

from __future__ import annotations

import math
import sys

import ollama


def main(url: str) -> None:
    client = ollama.Client(host=url)
    model = client.list().models[0].model
    found = client.embed(model=model, input=["A river", "a mill"])
    assert len(found.embeddings) == 2
    assert all(abs(math.hypot(*one) - 1) < 1e-5 for one in found.embeddings)
    assert found.prompt_eval_count
    assert client.embed(model=model, input="A river").embeddings[0] == found.embeddings[0]
    assert len(client.embed(model=model, input="A river", dimensions=8).embeddings[0]) == 8
    old = client.embeddings(model=model, prompt="A river").embedding
    length = math.hypot(*old)
    assert max(abs(a / length - b) for a, b in zip(old, found.embeddings[0], strict=True)) < 1e-5


if __name__ == "__main__":
    main(sys.argv[1])
