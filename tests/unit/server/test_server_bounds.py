"""Limits on the cost of a request before it is refused: parts of its body, characters, tokens; and its threads."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_fakes import CONTEXT, MODEL, ByteTokenizer, Served, fault, serve_fake

from headrace.config import Config
from headrace.errors import ContextOverflow, InvalidRequest, Overloaded
from headrace.server import json_limits
from headrace.server.json_limits import check_json_limits
from headrace.server.request_params import encode_within
from headrace.server.workers import TextWorkers

MUCH = 2**31


def parts_of(value: Any) -> tuple[int, int]:
    """Lists, objects and keys; and commas."""
    if isinstance(value, dict):
        inner = [parts_of(v) for v in value.values()]
        return 1 + len(value) + sum(p for p, _ in inner), max(0, len(value) - 1) + sum(v for _, v in inner)
    if isinstance(value, list):
        inner = [parts_of(v) for v in value]
        return 1 + sum(p for p, _ in inner), max(0, len(value) - 1) + sum(v for _, v in inner)
    return 0, 0


TEXT = st.text(st.sampled_from('ab\\"[]{}:,\né'), max_size=12)
VALUES = st.recursive(
    TEXT | st.integers(), lambda v: st.lists(v, max_size=4) | st.dictionaries(TEXT, v, max_size=4), max_leaves=12
)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(VALUES, st.integers(1, 40))
def test_the_count_is_that_of_the_parsed_body(value, size):
    async def count() -> None:
        parts, values = parts_of(value)
        body = json.dumps(value).encode()
        await check_json_limits(body, parts, values)
        for most in ((parts - 1, values), (parts, values - 1)):
            if min(most) >= 0:
                with pytest.raises(InvalidRequest):
                    await check_json_limits(body, *most)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_limits, "SMALL", 0)
        patch.setattr(json_limits, "_SLICE", size)
        asyncio.run(count())


def test_counting_does_not_block_the_event_loop(monkeypatch):
    monkeypatch.setattr(json_limits, "_SLICE", 1000)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def main() -> None:
        task = asyncio.create_task(others())
        await check_json_limits(b"[" + b"1," * 100_000 + b"1]", MUCH, MUCH)
        task.cancel()

    asyncio.run(main())
    assert turns > 150


LISTS, INTS = b"[]," * 70_000 + b"[]", b"1," * 600_000 + b"1"
KEYS = b",".join(b'"%d":1' % i for i in range(70_000))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b'{"prompt":[' + LISTS + b"]}"),
        ("/v1/completions", b'{"prompt":[' + INTS + b"]}"),
        ("/v1/completions", b'{"prompt":"a","logit_bias":{' + KEYS + b"}}"),
        ("/v1/chat/completions", b'{"messages":[' + b"{}," * 70_000 + b"{}]}"),
        ("/v1/chat/completions", b'{"messages":[],"chat_template_kwargs":{"a":[' + LISTS + b"]}}"),
        ("/v1/chat/completions", b'{"messages":[],"stop_token_ids":[' + b"1," * 150_000 + b"1]}"),
        ("/tokenize", b'{"messages":[],"tools":[' + LISTS + b"]}"),
        ("/detokenize", b'{"tokens":[' + INTS + b"]}"),
    ],
)
def test_bodies_of_too_many_parts_are_refused_before_they_are_parsed(path, body, monkeypatch):
    def parsed(*_: object) -> None:
        raise AssertionError("parsed")

    monkeypatch.setattr("headrace.server.request_body.decode_body", parsed)
    response = asyncio.run(serve_fake().http.post(path, content=body))
    assert fault(response, 400)["code"] == "too_many_values"


def test_marks_inside_strings_are_not_counted():
    response = asyncio.run(serve_fake().post("/v1/completions", prompt='{"[,:' * 20_000))
    assert fault(response, 400, "prompt")["code"] == "context_length_exceeded"


class Watched(ByteTokenizer):
    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[str] = []
        self.threads: set[str] = set()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.encoded.append(text)
        self.threads.add(threading.current_thread().name)
        return super().encode(text, add_special_tokens)

    def token_text(self, token_id: int) -> str:
        self.threads.add(threading.current_thread().name)
        return super().token_text(token_id)

    def decode(self, ids: Any, skip_special_tokens: bool = True) -> str:
        self.threads.add(threading.current_thread().name)
        return super().decode(ids, skip_special_tokens)


def watched(config: Config | None = None) -> tuple[Served, Watched]:
    served, tokenizer = serve_fake(config), Watched()
    served.app.state.context.tokenizer = tokenizer
    return served, tokenizer


def test_texts_after_a_refused_one_are_not_tokenised():
    served, tokenizer = watched()
    texts = ["a" * 50, "b" * CONTEXT, "c" * 50, "d" * 50]
    fault(asyncio.run(served.complete(prompt=texts)), 400, "prompt")
    assert tokenizer.encoded == texts[:2]
    fault(asyncio.run(served.complete(prompt=["a", "b" * (CONTEXT + 1) * 256])), 400, "prompt")
    assert tokenizer.encoded == texts[:2]


def test_only_the_start_of_a_text_that_is_too_long_is_tokenised():
    tokenizer = Watched()
    long = "x" * 25_000
    with pytest.raises(ContextOverflow, match="25000 characters"):
        encode_within(tokenizer.encode, long, True, "prompt", 100)
    assert sum(map(len, tokenizer.encoded)) < 5000

    def few(text: str, special: bool) -> list[int]:
        return [1] * (len(text) // 256)

    assert len(encode_within(few, long, True, "prompt", 100)) == 97


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_no_route_tokenises_much_in_the_event_loop(path):
    served, tokenizer = watched()
    text = "a" * 20_000
    prompt: dict[str, Any] = {"prompt": text}
    if path == "/v1/chat/completions":
        prompt = {"messages": [{"role": "user", "content": text}]}
    elif path == "/tokenize":
        prompt |= {"return_token_strs": True}
    elif path == "/detokenize":
        prompt = {"tokens": [97] * 20_000}
    asyncio.run(served.post(path, **prompt))
    assert tokenizer.threads
    assert all(name.startswith(("text", "long-text")) for name in tokenizer.threads)


def test_tokenize_and_detokenize_have_limits():
    served, tokenizer = watched()
    most = 2**20
    error = fault(asyncio.run(served.post("/tokenize", prompt="a" * (most + 1))), 400, "prompt")
    assert f"{most + 1} characters, but at most {most}" in error["message"]
    messages = [{"role": "user", "content": "a" * most}]
    fault(asyncio.run(served.post("/tokenize", messages=messages)), 400, "messages")
    fault(asyncio.run(served.post("/tokenize", messages=messages * 2)), 400, "messages")
    assert len(tokenizer.rendered) == 1
    fault(asyncio.run(served.post("/detokenize", tokens=[1] * (2**17 + 1))), 400, "tokens")
    assert not tokenizer.encoded
    assert asyncio.run(served.post("/tokenize", prompt="a" * 2000)).json()["count"] == 2001


def test_messages_that_are_too_long_are_not_rendered():
    served = serve_fake()
    parts = [{"type": "text", "text": "x" * 20_000}] * 3
    error = fault(asyncio.run(served.chat(messages=[{"role": "user", "content": parts}])), 400, "messages")
    assert error["code"] == "context_length_exceeded"
    assert not served.tokenizer.rendered


def test_more_sequences_than_may_wait_are_refused_with_the_numbers():
    config = Config.model_validate({"scheduler": {"max_waiting": 8}})
    served = serve_fake(config)
    error = fault(asyncio.run(served.complete(prompt=["a", "b", "c"], n=3)), 400, "prompt")
    assert "9 sequences" in error["message"]
    assert "at most 8" in error["message"]
    fault(asyncio.run(served.chat(n=9)), 400, "n")
    assert asyncio.run(served.chat(n=8, max_tokens=1)).status_code == 200


def test_long_work_does_not_delay_short_work_and_is_limited(monkeypatch):
    monkeypatch.setattr("headrace.server.workers.LONG", 10)
    monkeypatch.setattr("headrace.server.workers._MOST_WAITING", 100)
    release = threading.Event()

    async def main() -> None:
        workers = TextWorkers()
        long = [asyncio.ensure_future(workers.run(50, release.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        assert await workers.run(1, lambda: 5) == 5
        with pytest.raises(Overloaded):
            await workers.run(50, release.wait)
        release.set()
        assert await asyncio.gather(*long) == [True, True]
        # One alone is never refused.
        assert await workers.run(1000, release.wait)
        workers.close()

    asyncio.run(main())


@pytest.mark.parametrize("coding", ["gzip", "br", "x-gzip", "deflate, gzip"])
def test_compressed_bodies_are_refused(coding):
    served = serve_fake()
    raw = json.dumps({"model": MODEL, "prompt": "Hi"}).encode()
    response = asyncio.run(served.http.post("/v1/completions", content=raw, headers={"content-encoding": coding}))
    assert fault(response, 415)["code"] == "unsupported_content_encoding"
    assert response.headers["accept-encoding"] == "identity"
    plain = {"content-encoding": "identity"}
    assert asyncio.run(served.http.post("/v1/completions", content=raw, headers=plain)).status_code == 200
