"""Sends one prompt to the server's own HTTP endpoint and shows the streamed answer in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, TextIO

import msgspec

from headrace.event_stream import event_data
from headrace.server.request_log import LineHeldBack

__all__ = ["ask"]

_MOST = 256
"""Pieces shown; a longer answer is cut off there."""


def ask(url: str, model: str, prompt: str, api_key: str | None = None, out: TextIO | None = None) -> None:
    """Print the prompt and the streamed answer, or the error. Blocks; meant for a thread."""
    out = sys.stdout if out is None else out
    # Late: a server without a first prompt needs no HTTP client.
    import httpx

    print(f"\n> {prompt}", file=out, flush=True)
    line = LineHeldBack()
    try:
        for text in islice(_answer(url, model, prompt, api_key, line), _MOST):
            print(text, end="", file=out, flush=True)
        print(file=out, flush=True)
    except (httpx.HTTPError, msgspec.DecodeError) as error:
        print(f"(no answer: {error or type(error).__name__})", file=out, flush=True)
    finally:
        line.release()


def _answer(url: str, model: str, prompt: str, api_key: str | None, line: LineHeldBack) -> Iterator[str]:
    import httpx

    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "temperature": 0,
    }
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    # The server is this process: its certificate names another host than this address.
    file = url.partition("unix:")[2] or None
    transport = httpx.HTTPTransport(uds=file, verify=False)
    target = f"{'http://server' if file else url}/v1/chat/completions"
    with (
        httpx.Client(transport=transport, timeout=300) as client,
        client.stream("POST", target, json=body, headers=headers) as response,
    ):
        if response.status_code != 200:
            yield _message(msgspec.json.decode(response.read()))
            return
        for data in event_data(response.iter_bytes()):
            chunk = msgspec.json.decode(data)
            line.id = chunk.get("id", line.id)
            yield from _texts(chunk)


def _texts(chunk: dict[str, Any]) -> Iterator[str]:
    if "error" in chunk:
        yield f" {_message(chunk)}"
    for choice in chunk.get("choices", ()):
        yield choice["delta"].get("content", "")


def _message(body: dict[str, Any]) -> str:
    return f"(no answer: {body['error']['message']})"
