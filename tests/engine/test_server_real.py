"""The server with a real engine: answers, metrics, and the end of the engine or the server."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import psutil
import pytest
from server_harness import CONTEXT, NAME, PATIENCE, Server, make_model, running, until

FORM = {
    "type": "json_schema",
    "json_schema": {"name": "days", "schema": {"type": "array", "items": {"enum": ["a", 5]}}},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_model(directory)
    return directory


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    with running(model) as served:
        yield served


def idle(server: Server) -> bool:
    figures = server.figures()
    held = figures['headrace_kv_blocks{state="held"}']
    return (held, figures["headrace_requests_running"], figures["headrace_requests_waiting"]) == (0, 0, 0)


class Reader(threading.Thread):
    def __init__(self, lines: Iterator[str]) -> None:
        super().__init__(daemon=True)
        self._source = lines
        self.lines: list[str] = []
        self.begun = threading.Event()
        self.error: Exception | None = None
        self.start()
        assert self.begun.wait(PATIENCE)

    def run(self) -> None:
        try:
            for line in self._source:
                self.lines.append(line)
                self.begun.set()
        except httpx.HTTPError as error:
            self.error = error

    def last(self) -> dict:
        self.join(PATIENCE)
        assert self.error is None
        assert self.lines[-1] == "data: [DONE]"
        return json.loads(self.lines[-2][6:])


def test_a_stream_equals_the_complete_answer(server):
    body = {
        "prompt": ["Hello", "Good bye"],
        "max_tokens": 24,
        "logprobs": 2,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    whole = server.complete(**body).json()["choices"]
    chunks = [json.loads(line[6:]) for line in server.lines(**body) if line != "data: [DONE]"]
    for choice in whole:
        pieces = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert [t for piece in pieces for t in piece["token_ids"]] == choice["token_ids"]
        for key, values in choice["logprobs"].items():
            assert [v for piece in pieces for v in piece["logprobs"][key]] == values
        assert len(choice["token_ids"]) == len(choice["logprobs"]["tokens"]) == 24
        assert choice["finish_reason"] == pieces[-1]["finish_reason"] == "length"


def test_the_official_client_thirty_two_at_a_time(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    def ask(number: int) -> str:
        messages = [{"role": "user", "content": f"Number {number}?"}]
        stream = client.chat.completions.create(
            model=NAME, messages=messages, max_tokens=12, temperature=0, stream=True, extra_body={"ignore_eos": True}
        )
        chunks = [chunk.choices[0] for chunk in stream]
        assert chunks[-1].finish_reason == "length"
        return "".join(chunk.delta.content or "" for chunk in chunks)

    with ThreadPoolExecutor(32) as pool:
        crowd = list(pool.map(ask, range(64)))
    assert crowd[:4] == [ask(number) for number in range(4)]
    until(lambda: idle(server))


def test_echo_and_prompt_logprobs(server):
    body = {"prompt": "Hello", "logprobs": 2, "echo": True}
    alone = server.complete(**body, max_tokens=0).json()
    assert alone["choices"][0]["text"] == "Hello"
    assert alone["usage"]["completion_tokens"] == 0
    more = server.complete(**body, max_tokens=3, ignore_eos=True).json()["choices"][0]
    prompt = alone["choices"][0]["logprobs"]
    assert prompt["token_logprobs"][0] is None
    assert more["logprobs"]["token_logprobs"][: len(prompt["tokens"])] == prompt["token_logprobs"]
    assert len(more["logprobs"]["tokens"]) == len(prompt["tokens"]) + 3


def test_an_echoed_prompt_is_scored_once(server):
    """Each ending of a text is computed from where it has not been scored yet, and has the logprobs of a cold cache."""
    text = [40 + at * 11 % 50 for at in range(60)]
    for ending, cached in (([65, 66], 0), ([65, 67], 60), ([68], 59), ([68], 60)):
        body = {"prompt": [*text, *ending], "logprobs": 2, "echo": True, "max_tokens": 0}
        cold, warm = (server.complete(**body, **more).json() for more in ({"cache_salt": f"{ending}{cached}"}, {}))
        assert cold["choices"] == warm["choices"]
        counted = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (cold, warm)]
        assert counted == [0, cached]


def test_numbers_are_finite_at_the_extremes(server):
    body = {"logprobs": 5, "echo": True, "max_tokens": 4, "ignore_eos": True}
    for extreme in (
        {"top_k": 1, "temperature": 1},
        {"temperature": 1e-8},
        {"logit_bias": {"70": -100}, "temperature": 1},
    ):
        response = server.complete(**body, **extreme)
        assert response.status_code == 200
        assert "NaN" not in response.text
        assert "Infinity" not in response.text
    greedy = server.complete(max_tokens=8, ignore_eos=True).json()["choices"][0]["text"]
    assert server.complete(max_tokens=8, ignore_eos=True, temperature=1e-8).json()["choices"][0]["text"] == greedy


def test_context_to_the_token(server):
    assert server.complete(prompt=[70] * (CONTEXT - 1), max_tokens=1).status_code == 200
    for length in (CONTEXT, CONTEXT + 1):
        error = server.complete(prompt=[70] * length, max_tokens=1).json()["error"]
        assert error["code"] == "context_length_exceeded"
    assert server.complete(prompt=[70] * CONTEXT, max_tokens=0, echo=True, logprobs=1).status_code == 200


def test_predictions_of_the_official_client(model):
    """Whether drafts pay is measured, so their number is not known; all else is."""
    with running(model, {"cache": {"num_blocks": 200}, "device": {"platform": "cpu", "threads": 1}}) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        question = [{"role": "user", "content": "Hello?"}]
        options = {"model": NAME, "max_tokens": 100, "temperature": 0, "extra_body": {"ignore_eos": True}}
        plain = client.chat.completions.create(messages=question, **options).choices[0].message.content
        counts = [0, 0]
        for text in (plain, f"{plain[:40]}, or else: {plain[40:]}"):
            prediction = {"type": "content", "content": text}
            stream = client.chat.completions.create(
                messages=question, prediction=prediction, stream=True, stream_options={"include_usage": True}, **options
            )
            *chunks, last = list(stream)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == plain
            details = last.usage.completion_tokens_details
            counts[0] += details.accepted_prediction_tokens
            counts[1] += details.rejected_prediction_tokens
            assert last.usage.completion_tokens == 100
        until(lambda: idle(server))
        figures = server.figures()
        for name, count in zip(("accepted", "rejected"), counts, strict=True):
            label = f"headrace_speculation_{name}_tokens_total"
            assert sum(value for key, value in figures.items() if key.startswith(label)) == count
        assert figures["headrace_speculation_drafting_seconds_total"] > 0
        off = {**options, "extra_body": {"ignore_eos": True, "speculation": False}}
        none = client.chat.completions.create(messages=question, prediction=prediction, **off)
        assert none.choices[0].message.content == plain
        assert none.usage.completion_tokens_details.accepted_prediction_tokens == 0
        held = {"model": NAME, "max_tokens": 60, "temperature": 0, "messages": question, "response_format": FORM}
        own = client.chat.completions.create(**held).choices[0].message.content
        for text in (own, f"{{{own}"):
            found = client.chat.completions.create(prediction={"type": "content", "content": text}, **held)
            assert found.choices[0].message.content == own
        with pytest.raises(openai.BadRequestError) as wrong:
            client.chat.completions.create(
                messages=question, model=NAME, extra_body={"speculation": {"method": "ngram"}}
            )
        assert wrong.value.param == "speculation.method"


def test_cached_tokens_are_reported(server):
    prompt = [5 + i % 200 for i in range(100)]
    server.complete(prompt=prompt, max_tokens=1)
    usage = server.complete(prompt=prompt, max_tokens=1).json()["usage"]
    assert 90 < usage["prompt_tokens_details"]["cached_tokens"] <= 99


def test_a_disconnected_client_frees_its_blocks(server):
    until(lambda: idle(server))
    with server.slow():
        for _ in range(5):
            with httpx.stream(
                "POST",
                f"{server.url}/v1/completions",
                json={
                    "model": NAME,
                    "prompt": "x",
                    "max_tokens": 400,
                    "temperature": 0,
                    "ignore_eos": True,
                    "stream": True,
                    "n": 2,
                },
                timeout=PATIENCE,
            ) as response:
                next(response.iter_lines())
        until(lambda: idle(server))


@pytest.mark.slow
def test_a_stopped_engine_fails_the_health_check(model):
    with running(model, limits={"silence": 2.0}) as server:
        server.engine.send_signal(signal.SIGSTOP)
        until(lambda: server.http.get("/health").status_code == 503)
        assert server.complete().status_code == 503
        server.engine.send_signal(signal.SIGCONT)
        until(lambda: server.http.get("/health").status_code == 200)
        until(lambda: server.complete().status_code == 200)


@pytest.mark.slow
def test_a_killed_engine_is_reported_and_replaced(server):
    with server.slow():
        reader = Reader(server.lines(max_tokens=450, n=8))
        killed = server.engine
        killed.kill()
        error = reader.last()["error"]
    assert error["type"] == "server_error"
    refused = server.complete()
    assert refused.status_code in (200, 503)
    if refused.status_code == 503:
        assert int(refused.headers["retry-after"]) > 0
    until(lambda: server.complete(max_tokens=2).status_code == 200)
    assert server.engine.pid != killed.pid
    assert server.figures()["headrace_engine_restarts_total"] == 1


@pytest.mark.slow
def test_sigterm_drains_and_leaves_no_orphan(model):
    with running(model, drain_timeout=600) as served:
        with served.slow():
            engine = served.engine
            reader = Reader(served.lines(max_tokens=400))
            served.process.send_signal(signal.SIGTERM)
            until(lambda: served.complete().status_code == 503)
            assert served.http.get("/health").status_code == 503
        last = reader.last()
        assert last["choices"][0]["finish_reason"] == "length"
        assert served.process.wait(PATIENCE) == 0
        assert not psutil.pid_exists(engine.pid)


@pytest.mark.slow
def test_a_second_signal_ends_the_server_at_once(model):
    with running(model, limits={"at_once": 600.0}, drain_timeout=600) as served, served.slow():
        engine = served.engine
        reader = Reader(served.lines(max_tokens=500, n=8))
        served.process.send_signal(signal.SIGTERM)
        until(lambda: served.http.get("/health").status_code == 503)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(PATIENCE) == 0
        assert reader.last()["error"]["code"] == "shutting_down"
        assert not psutil.pid_exists(engine.pid)
