"""langchain-openai: `OpenAIEmbeddings`, with texts and without tokenising them itself.

Usage: python langchain_embeddings.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys

import openai
from langchain_openai import OpenAIEmbeddings


def main(url: str) -> None:
    model = openai.OpenAI(base_url=f"{url}/v1", api_key="none").models.list().data[0].id
    # By default it fetches OpenAI's own tokenizer and sends its ids.
    embeddings = OpenAIEmbeddings(model=model, base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False)
    documents = embeddings.embed_documents(["A river", "a mill"])
    assert len(documents) == 2
    assert embeddings.embed_query("A river") == documents[0]


if __name__ == "__main__":
    main(sys.argv[1])
