"""Asks the server's own HTTP endpoint one question and shows the answer in the terminal as it comes."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, TextIO
from urllib.parse import urlsplit

import msgspec

__all__ = ["ask"]

_MOST = 256
"""Pieces shown; the rest of a longer answer is not waited for."""


def ask(url: str, model: str, prompt: str, api_key: str | None = None, out: TextIO | None = None) -> None:
    """Print the prompt and the streamed answer, or the error. Blocks; meant for a thread."""
    out = sys.stdout if out is None else out
    print(f"\n> {prompt}", file=out, flush=True)
    try:
        for text in islice(_answer(url, model, prompt, api_key), _MOST):
            print(text, end="", file=out, flush=True)
        print(file=out, flush=True)
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        print(f"(no answer: {error or type(error).__name__})", file=out, flush=True)


def _answer(url: str, model: str, prompt: str, api_key: str | None) -> Iterator[str]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=300)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "temperature": 0,
    }
    headers = {"content-type": "application/json"}
    if api_key is not None:
        headers["authorization"] = f"Bearer {api_key}"
    try:
        connection.request("POST", "/v1/chat/completions", msgspec.json.encode(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            yield _message(msgspec.json.decode(response.read()))
            return
        for line in response:
            if line.startswith(b"data: {"):
                yield from _texts(msgspec.json.decode(line[6:]))
    finally:
        connection.close()


def _texts(chunk: dict[str, Any]) -> Iterator[str]:
    if "error" in chunk:
        yield f" {_message(chunk)}"
    for choice in chunk.get("choices", ()):
        yield choice["delta"].get("content", "")


def _message(body: dict[str, Any]) -> str:
    return f"(no answer: {body['error']['message']})"
