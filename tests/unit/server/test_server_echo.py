"""An error repeats only a little of a request, for long values in any field."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from server_fakes import MODEL, serve_fake

from headrace.errors import InvalidRequest, excerpt, shortened, truncate
from headrace.server import schemas

SERVED = serve_fake()
LONG = "".join(f"{number:05d}" for number in range(2000))
"""No two of its runs of 200 characters are the same."""
_RUNS = frozenset(LONG[at : at + 201] for at in range(len(LONG) - 200))
VALUES: tuple[Any, ...] = (
    LONG,
    [LONG] * 3,
    {LONG: 1},
    [{"role": LONG, "type": LONG, LONG: LONG}],
    [number + 10**9 for number in range(400)],
)
ROUTES = {
    "/v1/completions": (schemas.CompletionRequest, {"model": MODEL, "prompt": [5, 6], "max_tokens": 1}),
    "/v1/chat/completions": (
        schemas.ChatRequest,
        {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
    ),
    "/tokenize": (schemas.TokenizeRequest, {"model": MODEL, "prompt": "a"}),
}


def told(path: str, body: Any, **more: Any) -> str | None:
    """The whole body of an error; None where there was none."""
    response = asyncio.run(SERVED.http.post(path, content=json.dumps(body), **more))
    assert response.status_code < 500, response.text
    return None if response.status_code == 200 else response.text


def little(error: str) -> None:
    assert not any(error[at : at + 201] in _RUNS for at in range(max(0, len(error) - 200)))
    assert len(error) < 1000


@pytest.mark.parametrize("path", ROUTES)
def test_every_field(path: str) -> None:
    kind, sound = ROUTES[path]
    names = kind.__struct_fields__
    refused = 0
    for name in (*names, LONG, f"a.{LONG}", "a " * 2000):
        for value in VALUES:
            error = told(path, {**sound, name: value})
            if error is not None:
                refused += 1
                little(error)
    assert refused > len(VALUES)


def test_paths_and_headers() -> None:
    for path in (f"/{LONG}", f"/v1/models/{LONG}"):
        response = asyncio.run(SERVED.http.get(path))
        assert response.status_code == 404
        little(response.text)
    for name in ("content-encoding", "content-type"):
        error = told("/v1/completions", ROUTES["/v1/completions"][1], headers={name: LONG})
        if error is not None:
            little(error)


def test_long_texts_are_shortened_in_the_middle() -> None:
    assert truncate("abc", 3) == "abc"
    assert truncate("a" * 300) == "a" * 149 + "…" + "a" * 50
    assert len(excerpt(["x" * 1000] * 1000)) <= 120
    assert "\n" not in excerpt("a\nb")
    assert shortened(f"field {'x' * 5000!r} is wrong").endswith("' is wrong")
    assert len(shortened("word " * 5000)) == 1000
    error = InvalidRequest(f"`{LONG}` is not known", LONG)
    assert len(str(error)) < 250
    assert error.param is not None
    assert len(error.param) == 200
