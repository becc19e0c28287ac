"""The parts between the routes and the engine, on their own."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from server_fakes import ByteTokenizer, FakeClient

from headrace.client.api import GenerateRequest, LogprobEntry, Output, Usage
from headrace.config import Config
from headrace.errors import (
    CheckpointError,
    ConfigError,
    ContextOverflow,
    EngineDead,
    InvalidRequest,
    NeverFits,
    Overloaded,
)
from headrace.progress import loading_bar
from headrace.server.cancel_scope import CancelScope, ClientDisconnected
from headrace.server.context import make_context
from headrace.server.first_prompt import ask
from headrace.server.generation import GeneratedChoice, GenerationRun, usage_reply
from headrace.server.http_errors import HttpError, ShuttingDown, to_http
from headrace.server.lifecycle import _with_path
from headrace.server.logprobs import TextOffsets, chat_logprobs, prompt_logprobs, text_logprobs
from headrace.server.metrics import Histogram, RequestMeter, ServerMetrics
from headrace.server.request_ids import new_request_id
from headrace.types import Constraint, SamplingParams


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InvalidRequest("m", "n", "c"), 400, "c"),
        (ContextOverflow("m"), 400, "context_length_exceeded"),
        (NeverFits("m"), 400, "kv_capacity_exceeded"),
        (ConfigError("m"), 400, None),
        (Overloaded("m", 0.2), 503, "overloaded"),
        (EngineDead("m"), 503, "engine_unavailable"),
        (CheckpointError("m"), 500, "internal_error"),
        (KeyError("m"), 500, "internal_error"),
        (ShuttingDown(), 503, "shutting_down"),
        (HttpError(418, "m"), 418, None),
    ],
)
def test_errors_become_answers(error, status, code):
    told = to_http(error)
    assert (told.status, told.code) == (status, code)
    assert (told.status == 503) == ("retry-after" in told.headers)
    if "retry-after" in told.headers:
        assert int(told.headers["retry-after"]) >= 1
    assert told.kind == ("server_error" if status >= 500 else "invalid_request_error")


def test_request_ids_are_unique():
    made = {new_request_id("x") for _ in range(100)}
    assert len(made) == 100
    assert all(name.startswith("x-") and len(name) > 20 for name in made)


def entry(token: int, text: str, raw: bytes, logprob: float | None = -1.0, top=()) -> LogprobEntry:
    return LogprobEntry(token, text, raw, logprob, 4, top)


def test_offsets_count_whole_characters():
    offsets = TextOffsets()
    pieces = [b"a", "é".encode()[:1], "é".encode()[1:], "😀".encode()[:3], "😀".encode()[3:], b"b"]
    assert [offsets.next(piece) for piece in pieces] == [0, 1, 1, 2, 2, 3]


def test_logprob_forms():
    top = ((7, "a", b"a", -0.1), (8, "b", b"b", float("-inf")), (9, "c", b"c", -5.0))
    mine = entry(5, "z", b"z", -1.0, top)
    (chat,) = chat_logprobs([mine], 2).content
    assert (chat.token, chat.logprob, chat.bytes) == ("z", -1.0, [122])
    assert [(t.token, t.logprob) for t in chat.top_logprobs] == [("a", -0.1), ("b", -9999.0)]
    text = text_logprobs([mine], 2, TextOffsets())
    assert text.top_logprobs == [{"a": -0.1, "z": -1.0, "b": -9999.0}]
    assert text_logprobs([mine], 0, TextOffsets()).top_logprobs == [{"z": -1.0}]
    assert text_logprobs([entry(1, "a", b"a", None)], 2, TextOffsets()).top_logprobs == [None]
    assert prompt_logprobs([entry(1, "a", b"a", None), mine], 1) == [
        None,
        {
            "7": {"logprob": -0.1, "rank": 1, "decoded_token": "a"},
            "5": {"logprob": -1.0, "rank": 4, "decoded_token": "z"},
        },
    ]


def test_histogram_bounds_are_inclusive():
    histogram = Histogram("h", "about", (1, 2))
    for value in (0.5, 1, 1.5, 2, 3):
        histogram.observe(value)
    histogram.observe(2, times=10)
    samples = {(s.name, s.labels.get("le")): s.value for s in histogram.family().samples}
    assert samples["h_bucket", "1.0"] == 2
    assert samples["h_bucket", "2.0"] == 14
    assert samples["h_bucket", "+Inf"] == samples["h_count", None] == 15
    assert samples["h_sum", None] == 28


def test_request_meter_divides_the_time_by_the_tokens_of_a_piece(monkeypatch):
    clock = iter([10.0, 13.0, 14.0])
    metrics = ServerMetrics()
    meter = RequestMeter(metrics, 9.0, choices=3)
    monkeypatch.setattr("headrace.server.metrics.time", SimpleNamespace(monotonic=lambda: next(clock)))
    meter.note(Output(0, token_ids=[1]))
    meter.note(Output(0, token_ids=[2, 3, 4], finish_reason="stop"))
    meter.close(Usage(2, 4, 1), "abort")
    page = metrics.render().decode()
    assert "headrace_time_to_first_token_seconds_sum 1.0" in page
    assert "headrace_inter_token_latency_seconds_count 3.0" in page
    assert "headrace_inter_token_latency_seconds_sum 3.0" in page
    assert "headrace_request_duration_seconds_sum 5.0" in page
    assert 'headrace_requests_finished_total{reason="stop"} 1.0' in page
    assert 'headrace_requests_finished_total{reason="abort"} 2.0' in page


def test_choice_joins_its_pieces():
    choice = GeneratedChoice(3)
    choice.add(Output(3, "a", [1], [entry(1, "a", b"a")]))
    choice.add(Output(3, "b", [2, 3], None, "stop", "x"))
    assert (choice.text, choice.token_ids, len(choice.entries)) == ("ab", [1, 2, 3], 1)
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "x")


def jobs(*prompts: int, n: int = 1) -> list[GenerateRequest]:
    return [GenerateRequest(f"r{i}", (1,) * length, SamplingParams(n=n)) for i, length in enumerate(prompts)]


def collect(run: GenerationRun) -> list[Output]:
    async def main() -> list[Output]:
        return [output async for output in run.outputs()]

    return asyncio.run(main())


def test_run_counts_choices_over_prompts_and_prompts_once():
    engine = FakeClient(reply="ab")
    run = GenerationRun(engine, jobs(3, 5, n=2))
    outputs = collect(run)
    assert sorted(output.index for output in outputs) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert run.usage == Usage(8, 8, 6)
    assert usage_reply(run.usage).total_tokens == 16
    assert sorted(engine.closed) == ["r0", "r1"]


@pytest.mark.parametrize(("reason", "status"), [("error", 500), ("abort", 503)])
def test_run_turns_failed_choices_into_errors(reason, status):
    class Failing(FakeClient):
        async def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
            yield Output(0, finish_reason=reason, error="step 3 failed", usage=Usage(1, 0, 0))

    with pytest.raises(HttpError) as caught:
        collect(GenerationRun(Failing(), jobs(1)))
    assert caught.value.status == status


@pytest.mark.parametrize("field", [None, "structured_outputs.regex"])
def test_run_names_the_constraint_that_cannot_be_followed(field):
    class Failing(FakeClient):
        async def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
            yield Output(0, finish_reason="error", error="too many items", request_fault=True, usage=Usage(1, 0, 0))

    (job,) = jobs(1)
    if field is not None:
        job = replace(job, constraint=Constraint("regex", "a", field=field))
    with pytest.raises(HttpError) as caught:
        collect(GenerationRun(Failing(), [job]))
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, field, "nothing_to_sample")


def test_run_that_is_abandoned_closes_every_prompt():
    async def main() -> None:
        engine = FakeClient(reply="x" * 10, hold=3)
        run = GenerationRun(engine, jobs(1, 2, 3))
        outputs = run.outputs()
        async for _ in outputs:
            break
        await outputs.aclose()
        assert sorted(engine.closed) == ["r0", "r1", "r2"]
        assert not engine.completed

    asyncio.run(main())


def test_cancel_scope_stops_once_and_never_after_release():
    async def never() -> dict[str, str]:
        await asyncio.Event().wait()
        return {}

    async def main() -> None:
        active: set[CancelScope] = set()
        async with CancelScope(active, never) as scope:
            assert active == {scope}
            scope.stop(ClientDisconnected())
            scope.stop(ShuttingDown())
            with pytest.raises(asyncio.CancelledError):
                await asyncio.sleep(300)
            assert isinstance(scope.reason(), ClientDisconnected)
            await asyncio.sleep(0)
        assert not active
        async with CancelScope(active, never) as scope:
            scope.release()
            scope.stop(ShuttingDown())
            await asyncio.sleep(0)
            assert scope.reason() is None

    asyncio.run(main())


def answer_with(status: int, body: bytes, prompt: str = "Hi") -> tuple[str, dict]:
    """(The output of `ask` for such an answer of a server, the request that it sent)."""
    sent: dict = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.update(
                json.loads(self.rfile.read(int(self.headers["content-length"]))), key=self.headers["authorization"]
            )
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.timeout = 300
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        out = io.StringIO()
        ask(f"http://127.0.0.1:{server.server_port}", "m", prompt, "k", out)
        thread.join()
    return out.getvalue(), sent


def test_first_prompt_prints_the_stream():
    chunks = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    chunks += b'data: {"choices":[{"delta":{"content":"Yes."}}]}\n\ndata: [DONE]\n\n'
    text, sent = answer_with(200, chunks)
    assert text == "\n> Hi\nYes.\n"
    assert sent["key"] == "Bearer k"
    assert sent["messages"] == [{"role": "user", "content": "Hi"}]


def test_first_prompt_prints_errors():
    error = b'{"error": {"message": "no template"}}'
    assert "(no answer: no template)" in answer_with(400, error)[0]
    assert "(no answer: died)" in answer_with(200, b'data: {"error": {"message": "died"}}\n\n')[0]
    assert "(no answer:" in answer_with(500, b"oops")[0]
    out = io.StringIO()
    ask("http://127.0.0.1:1", "m", "Hi", None, out)
    assert "(no answer:" in out.getvalue()


def test_the_engine_gets_the_path_and_clients_the_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_API_KEY", "from-env")
    config = _with_path(Config(), tmp_path / "model.gguf")
    assert config.model.model == str(tmp_path / "model.gguf")
    assert config.server.served_model_name == "smollm2"
    assert config.server.api_key == "from-env"
    named = Config.model_validate({"model": {"model": "/a/b"}, "server": {"api_key": "own"}})
    config = _with_path(named, tmp_path)
    assert (config.server.served_model_name, config.server.api_key) == ("b", "own")


@pytest.mark.parametrize("given", [".", "./", "../here", "sub/..", "here", "{here}/.", "{here}/sub/.."])
def test_a_model_given_as_a_folder_has_the_folders_name(given, tmp_path, monkeypatch):
    here = tmp_path / "here"
    (here / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path if given == "here" else here)
    model = given.format(here=here)
    config = _with_path(Config.model_validate({"model": {"model": model}}), Path(model))
    assert config.server.served_model_name == "here"


@pytest.mark.parametrize("key", ["", " ", "\n"])
def test_an_empty_key_is_refused(key, tmp_path):
    with pytest.raises(ConfigError, match="--api-key is empty"):
        _with_path(Config.model_validate({"server": {"api_key": key}}), tmp_path)


def test_white_space_around_a_key_is_removed(tmp_path, monkeypatch):
    for key in ("k y\n", " k y", "\tk y\r\n"):
        config = Config.model_validate({"server": {"api_key": key}})
        assert make_context(FakeClient(), ByteTokenizer(), config).keys.find([b"k y"])
        assert _with_path(config, tmp_path).server.api_key == "k y"
        monkeypatch.setenv("HEADRACE_API_KEY", key)
        assert _with_path(Config(), tmp_path).server.api_key == "k y"


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("\n", "is empty"),
        ("", "is empty"),
        ("ab\ncd", r"character 3 of the API key, '\\n',"),
        ("kéy", r"character 2 .*'\\xe9'"),
    ],
)
def test_a_key_that_no_client_can_send_is_refused(key, message):
    with pytest.raises(ConfigError, match=message):
        make_context(FakeClient(), ByteTokenizer(), Config.model_validate({"server": {"api_key": key}}))


def test_a_server_keeps_running_if_its_ready_line_cannot_be_written():
    code = (
        "import sys; from headrace.server.http_server import print_line; "
        "print_line('ready'); sys.stdout.flush(); sys.exit(5)"
    )
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=writing, stderr=subprocess.PIPE, timeout=300, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (5, b"")


def test_no_bar_without_a_terminal():
    with loading_bar() as progress:
        assert progress is None


def test_bar_at_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with loading_bar() as progress:
        assert progress is not None
        progress("weights", 0.5)
        progress("first step", 0.0)
    assert "first step" in terminal.getvalue()
