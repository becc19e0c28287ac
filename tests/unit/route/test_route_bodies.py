"""What a body holds does not decide how long the router looks at it."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Callable

import pytest
from route_harness import routed
from stub_engine import Stub
from test_route_relay import run

from headrace.route.fleet import Fleet
from headrace.route.router_app import _one_answer, _parse
from headrace.route.split_bodies import decode_body, prefill_body, splits
from headrace.route.text_prefixes import TextPrefixes

DEEP = b"[" * 100_000 + b"]" * 100_000
WIDE = b"[" + b"[]," * 100_000 + b"[]]"


@pytest.mark.parametrize(
    ("fields", "one"),
    [
        ("", False),
        ('"seed": null', False),
        ('"seed": 0', True),
        ('"seed": 7', True),
        ('"temperature": null', False),
        ('"temperature": 0', True),
        ('"temperature": -0.0', True),
        ('"temperature": 0e9', True),
        ('"temperature": 0.5', False),
        ('"temperature": "0"', False),
        ('"temperature": [0]', False),
        ('"seed": null, "temperature": 1e-9', False),
    ],
)
def test_requests_with_one_answer(fields: str, one: bool) -> None:
    assert _one_answer(_parse(b"{%s}" % fields.encode())) == one


@pytest.mark.parametrize("read", [_parse, splits, prefill_body, TextPrefixes().chain])
@pytest.mark.parametrize("name", ["seed", "temperature", "prompt", "kv_transfer_params", "messages", "other"])
def test_no_objects_are_made_of_what_is_not_looked_at(read: Callable[[bytes], object], name: str) -> None:
    body = b'{"%s": %s}' % (name.encode(), WIDE)
    read(body)
    tracemalloc.start()
    try:
        read(body)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * len(body), "a list takes 56 bytes for each 3 of the body"


def test_a_deep_body_is_not_read() -> None:
    for name in (b"seed", b"prompt", b"messages", b"other"):
        body = b'{"%s": %s}' % (name, DEEP)
        assert TextPrefixes().chain(body) == []
        assert not splits(body)


def test_a_deep_body_is_the_engines_to_refuse() -> None:
    async def check() -> None:
        async with routed([Stub()], watch=False) as it:
            for name in (b"seed", b"messages"):
                body = b'{"%s": %s}' % (name, DEEP)
                assert (await it.http.post("/v1/completions", content=body)).status_code == 200
                assert it.stubs[0].posts[-1].body == body

    run(check())


@pytest.mark.parametrize(("asked", "counted"), [(None, 128), (0, 128), (-5, 1), (1, 1), (70, 70), (10**18, 512)])
def test_an_answer_has_at_least_one_token(asked: int | None, counted: int) -> None:
    query = asyncio.run(Fleet([]).query("/v1/completions", b"{}", None, asked))
    assert query.answer == counted


def test_a_negative_limit_is_the_engines_to_refuse() -> None:
    async def check() -> None:
        async with routed([Stub(), Stub()], watch=False) as it:
            for one in it.fleet.replicas:
                one.load.elsewhere = 100
            assert (await it.ask(max_tokens=-1_000_000)).status_code == 200
            assert sum(len(stub.posts) for stub in it.stubs) == 1

    run(check())


def test_fields_pass_as_they_were_written() -> None:
    body = b'{"prompt": "a", "seed": 12345678901234567890123, "logit_bias": {"1": 1.10}, "n": 2}'
    for sent in (prefill_body(body), decode_body(body, "tcp:a:1", 1.0)):
        assert b"12345678901234567890123" in sent
        assert b"1.10" in sent
        assert json.loads(sent)["prompt"] == "a"
