"""Streamed and complete answers agree under any mixture of parameters; many clients and disconnected ones leave no
sequence behind."""

from __future__ import annotations

import asyncio
import json
import random
import socket
from typing import Any

import aiohttp
import httpx
import openai
import pytest
from server_harness import NAME, PATIENCE, Server, until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
FIRST_BYTE = 4
STOPS = ["a", "ab", "ba", "aab", "é", "éa", "😀", "a😀", "\ufffd", "\ufffda", "b\ufffd\ufffd", "</s>"]


def ids_of(server: Server, text: str) -> list[int]:
    return list(server.http.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"])


def idle(server: Server) -> bool:
    figures = server.figures()
    names = ("headrace_requests_running", "headrace_requests_waiting", 'headrace_kv_blocks{state="held"}')
    return not any(figures[name] for name in names)


def until_idle(server: Server) -> None:
    until(lambda: idle(server), server.figures)
    figures = server.figures()
    assert sum(figures[f'headrace_kv_blocks{{state="{state}"}}'] for state in ("free", "cached")) == 20


def until_queued(server: Server, running: int, waiting: int) -> None:
    def queued() -> bool:
        figures = server.figures()
        return (figures["headrace_requests_running"], figures["headrace_requests_waiting"]) == (running, waiting)

    until(queued, server.figures)


def posted(body: dict[str, Any]) -> bytes:
    """A completion's body in bytes."""
    raw = json.dumps(body).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    return head % len(raw) + raw


def connected(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), PATIENCE)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    # A comment comes where nothing else does for a while.
    lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line and not line.startswith(":")]
    assert response.status_code == 200, response.text
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def mixture(rng: random.Random, path: str, tokens: list[int]) -> dict[str, Any]:
    """Few tokens, so that characters, parts of characters and stops occur often."""
    body: dict[str, Any] = {
        "max_tokens": rng.randint(1, 24),
        "seed": rng.randint(0, 99),
        "temperature": rng.choice([0, 1, 1.5]),
        "n": rng.choice([1, 1, 3]),
        "allowed_token_ids": tokens,
        "return_token_ids": True,
    }
    body |= {name: rng.random() < 0.5 for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens")}
    some = {
        "stop": rng.sample(STOPS, rng.randint(1, 3)),
        "stop_token_ids": [rng.choice(tokens)],
        "min_tokens": rng.randint(0, body["max_tokens"]),
        "prompt_logprobs": rng.randint(0, 3),
        "repetition_penalty": 1.3,
    }
    body |= {name: value for name, value in some.items() if rng.random() < 0.4}
    scored = rng.random() < 0.6
    if path == CHAT:
        body |= {"messages": [{"role": "user", "content": rng.choice(["Hi", "😀é" * 5])}]}
        return body | ({"logprobs": True, "top_logprobs": rng.randint(0, 4)} if scored else {})
    prompts: list[Any] = ["Hi", ["a", "😀bb"], tokens[:3], [tokens[:2], tokens[1:]]]
    body |= {"prompt": rng.choice(prompts), "echo": rng.random() < 0.4}
    return body | ({"logprobs": rng.randint(0, 4)} if scored else {})


class Joined:
    """The chunks of one choice of a stream, put together."""

    def __init__(self, chunks: list[dict[str, Any]], index: int) -> None:
        self.parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        self.text = "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in self.parts)
        self.ids = [token for c in self.parts for token in c.get("token_ids", [])]
        self.reasons = [c["finish_reason"] for c in self.parts if c["finish_reason"]]

    def logprobs(self, key: str) -> list[Any]:
        return [entry for c in self.parts if c["logprobs"] for entry in c["logprobs"][key]]


def compare(body: dict[str, Any], whole: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
    *chunks, last = chunks
    assert last["choices"] == []
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][key] == whole["usage"][key]
    running = body["stream_options"].get("continuous_usage_stats", False)
    assert all((chunk["usage"] is not None) == running for chunk in chunks)
    generated = 0
    for at, choice in enumerate(whole["choices"]):
        joined = Joined(chunks, choice["index"])
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert (choice["index"], joined.text, joined.ids) == (at, text, choice["token_ids"])
        assert joined.reasons == [choice["finish_reason"]] == [joined.parts[-1]["finish_reason"]]
        assert joined.parts[-1]["stop_reason"] == choice["stop_reason"]
        echoed = len(joined.parts[0]["prompt_token_ids"]) if body.get("echo") else 0
        generated += len(joined.ids) - echoed
        check_end(body, choice, text, len(joined.ids) - echoed)
        if choice["logprobs"] is not None:
            for key, values in choice["logprobs"].items():
                if values is not None:
                    assert joined.logprobs(key) == values
                    assert len(values) == len(joined.ids)
        if "messages" in body:
            assert [part["delta"].get("role") for part in joined.parts] == ["assistant"] + [None] * (
                len(joined.parts) - 1
            )
    assert generated == whole["usage"]["completion_tokens"]


def check_end(body: dict[str, Any], choice: dict[str, Any], text: str, generated: int) -> None:
    if choice["finish_reason"] == "length":
        assert (generated, choice["stop_reason"]) == (body["max_tokens"], None)
    stop = choice["stop_reason"]
    if isinstance(stop, str):
        assert stop in body["stop"]
        assert not body["include_stop_str_in_output"] or text.endswith(stop)
    if not (body["include_stop_str_in_output"] or body.get("min_tokens") or body.get("echo")):
        assert not any(one in text for one in body.get("stop", ()))


def test_a_stream_equals_the_complete_answer_for_any_parameters(narrow):
    rng = random.Random(7)
    tokens = sorted({*ids_of(narrow, "😀éab"), 2})
    wanted = [(path, mixture(rng, path, tokens)) for path in (COMPLETIONS, CHAT) for _ in range(35)]

    async def all_of_them() -> None:
        async with httpx.AsyncClient(base_url=narrow.url, timeout=PATIENCE) as http:

            async def one(path: str, body: dict[str, Any]) -> None:
                body["stream_options"] = {"include_usage": True, "continuous_usage_stats": rng.random() < 0.5}
                plain = {name: value for name, value in body.items() if name != "stream_options"}
                whole, streamed = await asyncio.gather(
                    http.post(path, json=plain), http.post(path, json={**body, "stream": True})
                )
                assert whole.status_code == 200, whole.text
                compare(body, whole.json(), events(streamed))

            await asyncio.gather(*(one(path, body) for path, body in wanted))

    asyncio.run(all_of_them())
    until_idle(narrow)


def test_bytes_of_tokens_are_exact(narrow):
    body = {"prompt": "😀😀😀", "echo": True, "logprobs": 5, "max_tokens": 0}
    shown = narrow.complete(**body).json()["choices"][0]
    assert b"".join(map(bytes, shown["logprobs"]["bytes"])) == "😀😀😀".encode()
    for text, raw in zip(shown["logprobs"]["tokens"], shown["logprobs"]["bytes"], strict=True):
        assert text == bytes(raw).decode(errors="replace")
    emoji = ids_of(narrow, "😀")
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "logprobs": True, "top_logprobs": 4}
    answer = narrow.http.post(CHAT, json={**body, "allowed_token_ids": emoji, "return_token_ids": True}).json()
    (choice,) = answer["choices"]
    raw = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
    assert raw.decode(errors="replace") == choice["message"]["content"]
    known = dict(zip(emoji, "😀".encode(), strict=True))
    assert raw == bytes(known[token] for token in choice["token_ids"])


def test_echo_and_logprobs_do_not_depend_on_the_cache(narrow):
    prompt = [FIRST_BYTE + 37 * i % 250 for i in range(64)]
    body = {"prompt": prompt, "echo": True, "logprobs": 3, "max_tokens": 4, "ignore_eos": True, "cache_salt": "cold"}
    cold = narrow.complete(**body).json()["choices"][0]["logprobs"]
    assert len(cold["tokens"]) == 68
    assert cold["token_logprobs"][0] is None
    narrow.complete(prompt=prompt[:32] + prompt[:32], max_tokens=2, cache_salt="warm")
    for _ in range(2):
        assert narrow.complete(**{**body, "cache_salt": "warm"}).json()["choices"][0]["logprobs"] == cold
    narrow.complete(prompt=prompt, max_tokens=2, cache_salt="warm")
    assert narrow.complete(**{**body, "cache_salt": "warm"}).json()["choices"][0]["logprobs"] == cold
    alone = {**body, "max_tokens": 0, "cache_salt": "warm"}
    assert narrow.complete(**alone).json()["choices"][0]["logprobs"]["token_logprobs"] == cold["token_logprobs"][:64]


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 47, 48, 49])
def test_a_cached_prompt_answers_as_a_cold_one(narrow, length):
    body = {"prompt": [FIRST_BYTE + length] * length, "logprobs": 3, "max_tokens": 5, "ignore_eos": True}
    first, second = (narrow.complete(**body, cache_salt=f"twice {length}").json() for _ in range(2))
    assert first["choices"] == second["choices"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert length - 2 <= second["usage"]["prompt_tokens_details"]["cached_tokens"] <= length - 1


def test_choices_come_from_their_seed_and_count_the_prompt_once(narrow):
    client = openai.OpenAI(base_url=f"{narrow.url}/v1", api_key="none", max_retries=0)
    asked: dict[str, Any] = {"model": NAME, "prompt": "Hello", "n": 5, "seed": 11, "max_tokens": 12}
    asked["extra_body"] = {"ignore_eos": True}
    first, second = client.completions.create(**asked), client.completions.create(**asked)
    assert [c.text for c in first.choices] == [c.text for c in second.choices]
    assert len({c.text for c in first.choices}) == 5
    assert [c.index for c in first.choices] == list(range(5))
    assert first.usage is not None
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (5, 60)
    texts = dict.fromkeys(range(5), "")
    for chunk in client.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert list(texts.values()) == [c.text for c in first.choices]


def test_setting_back_changes_nothing(narrow):
    """Two requests that together need more blocks than there are have the same output as each alone."""
    bodies = [
        {
            "prompt": [FIRST_BYTE + i] * 60,
            "max_tokens": 240,
            "ignore_eos": True,
            "logprobs": 2,
            "repetition_penalty": 1.1,
            "temperature": 0.7,
            "seed": i,
            "cache_salt": f"back {i}",
        }
        for i in range(3)
    ]
    before = narrow.figures()["headrace_preemptions_total"]

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=narrow.url, timeout=PATIENCE) as http:
            with narrow.slow():
                posts = [asyncio.create_task(http.post(COMPLETIONS, json=body)) for body in bodies]
                await asyncio.to_thread(until_queued, narrow, 2, 1)
            return list(await asyncio.gather(*posts))

    crowd = [response.json() for response in asyncio.run(together())]
    assert narrow.figures()["headrace_preemptions_total"] > before
    for body, answer in zip(bodies, crowd, strict=True):
        alone = narrow.http.post(COMPLETIONS, json={**body, "cache_salt": body["cache_salt"] + "'"}).json()
        assert answer["choices"] == alone["choices"]
        assert answer["usage"]["total_tokens"] == 300


def test_disconnected_clients_leave_no_sequences(narrow):
    """Fifty clients disconnect at different moments, streamed and not, with two slots."""
    rng = random.Random(3)
    until_idle(narrow)
    before = narrow.figures()
    counted = 'headrace_requests_finished_total{{reason="{}"}}'.format

    async def storm() -> None:
        async with httpx.AsyncClient(
            base_url=narrow.url, timeout=PATIENCE, limits=httpx.Limits(max_connections=None)
        ) as http:

            async def one(number: int) -> None:
                body = {
                    "prompt": [FIRST_BYTE + rng.randrange(200) for _ in range(rng.choice([1, 15, 16, 17, 100]))],
                    "max_tokens": 150,
                    "ignore_eos": True,
                    "stream": bool(number % 2),
                    "n": rng.choice([1, 1, 3]),
                }
                with pytest.raises((asyncio.TimeoutError, httpx.HTTPError)):
                    await asyncio.wait_for(http.post(COMPLETIONS, json=body), 0.02 + rng.random() * 0.15)

            await asyncio.gather(*(one(number) for number in range(50)), return_exceptions=True)

    asyncio.run(storm())
    # Slow, so that nothing ends by itself; the last leaves where it certainly runs.
    with narrow.slow():
        until_idle(narrow)
        with connected(narrow) as last:
            last.sendall(posted({"prompt": "x", "max_tokens": 150, "ignore_eos": True}))
            until_queued(narrow, 1, 0)
        until_idle(narrow)
    after = narrow.figures()
    assert after[counted("error")] == before[counted("error")]
    assert after[counted("abort")] > before[counted("abort")]


def test_clients_that_disconnect_while_they_wait_are_counted(narrow):
    until_idle(narrow)
    before = narrow.figures()
    body = {"max_tokens": 200, "ignore_eos": True, "n": 2, "stream": True}
    # Both slots are taken by the first, and the second waits for them when it leaves.
    with narrow.slow(), connected(narrow) as first, connected(narrow) as second:
        first.sendall(posted({"prompt": "x", **body}))
        until_queued(narrow, 2, 0)
        second.sendall(posted({"prompt": "y", **body}))
        until_queued(narrow, 2, 2)
        second.close()
        until_queued(narrow, 2, 0)
        first.close()
        until_idle(narrow)
    after = narrow.figures()
    ended = {
        reason: after[name] - before[name]
        for reason in ("abort", "length", "stop", "error")
        for name in [f'headrace_requests_finished_total{{reason="{reason}"}}']
    }
    assert ended == {"abort": 4, "length": 0, "stop": 0, "error": 0}


def test_a_thousand_at_once(narrow):
    async def crowd() -> list[int]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(narrow.url, connector=connector) as http:

            async def one(number: int) -> int:
                body = {"prompt": f"q{number}", "max_tokens": 1, "stream": bool(number % 2)}
                async with http.post(COMPLETIONS, json=body) as answer:
                    await answer.read()
                    return answer.status

            return await asyncio.gather(*(one(number) for number in range(1000)))

    assert asyncio.run(crowd()) == [200] * 1000
    until_idle(narrow)


def test_slow_readers_do_not_delay_others(narrow):
    """Thirty-two clients that read fifty bytes and pause: their sequences still end, and their answers are complete."""
    readers = []
    for _ in range(32):
        reader = socket.socket()
        readers.append(reader)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", int(narrow.url.rsplit(":", 1)[1])))
        reader.settimeout(PATIENCE)
        reader.sendall(posted({"prompt": "x", "max_tokens": 150, "ignore_eos": True, "stream": True}))
    try:
        assert all(len(reader.recv(50)) for reader in readers)
        until_idle(narrow)
        assert narrow.complete(max_tokens=2).status_code == 200
        received = b""
        while piece := readers[0].recv(65536):
            received += piece
        assert b"data: [DONE]" in received
        assert received.count(b'"finish_reason":"length"') == 1
    finally:
        for reader in readers:
            reader.close()
    until_idle(narrow)


def test_urgent_requests_run_first(narrow):
    """With two long requests and a queue, a request with a lower priority number is answered before the queue."""

    async def ask() -> list[str]:
        order: list[str] = []
        async with httpx.AsyncClient(base_url=narrow.url, timeout=PATIENCE) as http:

            async def one(name: str, priority: int) -> None:
                body = {"prompt": name, "max_tokens": 40, "ignore_eos": True, "priority": priority}
                await http.post(COMPLETIONS, json=body)
                order.append(name)

            with narrow.slow():
                late = [asyncio.create_task(one(f"late {i}", 1)) for i in range(12)]
                await asyncio.to_thread(until_queued, narrow, 2, 10)
                urgent = asyncio.create_task(one("urgent", -1))
                await asyncio.to_thread(until_queued, narrow, 2, 11)
            await asyncio.gather(urgent, *late)
        return order

    assert asyncio.run(ask()).index("urgent") <= 6
