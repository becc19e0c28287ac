"""Workloads are reproducible, measurements are right, and a load run reads any OpenAI stream."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import random
import re
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from rich.console import Console

from headrace.bench import texts
from headrace.bench.bench_report import as_json, print_report, write_html
from headrace.bench.load_runs import LoadRun, load_report
from headrace.bench.request_timing import RequestTiming, percentile, summarize
from headrace.bench.server_load import Endpoint, run_load
from headrace.bench.texts import from_a_line, records
from headrace.bench.timed_completion import send
from headrace.bench.workloads import WORKLOADS, Prompt, Workload, build
from headrace.errors import ConfigError

CORPUS = list(texts._MODULES)
SMALL = Workload("small", 6, 2, (4, 16), (2, 5))


@pytest.fixture(autouse=True)
def few_pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two of the corpus's modules have text enough, and take a tenth of the time."""
    monkeypatch.setattr(texts, "_MODULES", ["argparse", "typing"])
    texts.corpus.cache_clear()
    yield
    texts.corpus.cache_clear()


def test_the_corpus_is_of_modules_that_exist() -> None:
    assert all(find_spec(name) for name in CORPUS)
    assert len(texts.corpus().split()) > 4096


def test_the_corpus_is_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_MODULES", ["configparser", "logging", "os"])
    first = texts.corpus()
    texts.corpus.cache_clear()
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    monkeypatch.setattr(logging.Logger, "info_of_another_library", lambda self, text: text, raising=False)
    assert texts.corpus() == first
    assert not re.search(r"0x[0-9a-f]{6}|PYTHONHASHSEED|^/.*\.py$", first, re.MULTILINE)


def encode(text: str) -> list[int]:
    return [len(word) for word in text.split()]


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_lengths_depend_on_the_workload_and_content_on_the_seed(name: str) -> None:
    first, again, other = (build(WORKLOADS[name], encode, seed) for seed in (0, 0, 1))
    assert first == again
    assert [(len(p.token_ids), p.max_tokens) for p in first] == [(len(p.token_ids), p.max_tokens) for p in other]
    assert first != other
    low, high = WORKLOADS[name].prompt
    assert all(low <= len(p.token_ids) - WORKLOADS[name].shared_prefix <= high for p in first)


def test_prompts_share_the_prefix() -> None:
    prompts = build(WORKLOADS["W3"], encode)
    assert len({p.token_ids[:1024] for p in prompts}) == 1
    assert len({p.token_ids for p in prompts}) == len(prompts)


def words(text: str) -> list[str]:
    """A tokenizer whose tokens can be read."""
    return re.findall(r"\w+|\W", text)


def test_an_edit_begins_with_the_text_that_is_to_be_edited() -> None:
    for prompt in build(WORKLOADS["edit"], words):  # type: ignore[arg-type]
        text = "".join(map(str, prompt.token_ids))
        given, _, begun = text.partition("This is the same part again")
        assert begun.partition("```python\n")[2] in given
        assert len(begun.partition("```python\n")[2]) >= 8


def test_json_prompts_are_records_of_the_same_fields() -> None:
    rng = random.Random(1)
    found = json.loads(f"[{records(5000, rng).rstrip().rstrip(',')}]")
    assert len(found) > 20
    assert len({tuple(record) for record in found}) == 1
    (first, *_) = build(WORKLOADS["json"], words)  # type: ignore[arg-type]
    assert '[\n  {"id": 1, "first_name": ' in "".join(map(str, first.token_ids))


def test_a_piece_of_text_begins_with_a_line() -> None:
    text, rng = "".join(f"line {at}\n" for at in range(200)), random.Random(2)
    pieces = [from_a_line(text, 40, rng) for _ in range(50)]
    assert all(re.match(r"line \d+\n", piece) and len(piece) == 40 for piece in pieces)
    assert len(set(pieces)) > 20


def test_percentiles_interpolate() -> None:
    assert percentile([], 50) == 0.0
    assert percentile([3.0], 99) == 3.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([4.0, 1.0, 2.0], 100) == 4.0


def test_a_request_is_timed_from_its_start_to_its_last_piece() -> None:
    row = RequestTiming(10, 100.0, output_tokens=5)
    for now in (100.5, 100.7, 101.1):
        row.piece(now)
    row.close(101.5)
    assert row.ttft == 0.5
    assert row.gaps == pytest.approx([0.2, 0.4])
    assert row.tpot == pytest.approx(0.6 / 4)
    assert row.e2e == 1.5
    nothing = RequestTiming(10, 100.0)
    nothing.close(103.0)
    assert (nothing.ttft, nothing.tpot, nothing.e2e) == (None, None, 3.0)


def test_summary_counts_errors_short_answers_and_goodput() -> None:
    rows = [
        RequestTiming(
            10, 0.0, output_tokens=5, wanted=5, ttft=0.1, tpot=0.01, e2e=0.2, gaps=[0.01] * 4, cached_tokens=8
        ),
        RequestTiming(10, 0.0, output_tokens=3, wanted=5, ttft=0.4, tpot=0.01, e2e=0.5, gaps=[0.02] * 2),
        RequestTiming(10, 0.0, wanted=5, error="HTTP 500"),
    ]
    summary = summarize(rows, 2.0, ttft_target=0.2)
    assert (summary.errors, summary.short, summary.first_error) == (1, 1, "HTTP 500")
    assert (summary.output_tok_s, summary.total_tok_s, summary.cached_tokens) == (4.0, 14.0, 8)
    assert summary.ttft_ms["p50"] == 250.0
    assert summary.goodput == pytest.approx(1 / 3)


async def completions(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for i in range(body["max_tokens"]):
        last = i == body["max_tokens"] - 1
        choice = {"index": 0, "text": "x", "finish_reason": "length" if last else None}
        await response.write(b"data: " + json.dumps({"choices": [choice], "usage": None}).encode() + b"\n\n")
    usage = {
        "prompt_tokens": len(body["prompt"]),
        "completion_tokens": body["max_tokens"],
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 1},
    }
    await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")
    return response


async def in_pieces(request: web.Request) -> web.StreamResponse:
    """Events as a network may deliver them, after a comment; `fail` ends with an error, `broken` with invalid JSON."""
    body = await request.json()
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    events = [b": hello", *[b'data: {"choices":[{"text":"x","more":[1]}]}'] * 3]
    events.append(b'data:{"choices":[{"text":"","finish_reason":"stop"}],"usage":{"completion_tokens":3}}')
    events.append(body.get("last", "data: [DONE]").encode())
    text = b"\r\n\r\n".join(events) + b"\r\n\r\n"
    for start in range(0, len(text), 7):
        await response.write(text[start : start + 7])
    return response


async def row_of(**extra: Any) -> RequestTiming:
    app = web.Application()
    app.router.add_post("/v1/completions", in_pieces)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with aiohttp.ClientSession() as session:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            return await send(session, url, "m", Prompt((1, 2), 3), extra)
    finally:
        await runner.cleanup()


def test_events_in_pieces_are_put_together() -> None:
    row = asyncio.run(row_of())
    assert (row.error, row.output_tokens, row.prompt_tokens, len(row.gaps)) == (None, 3, 2, 2)


@pytest.mark.parametrize(
    ("last", "error"), [('data: {"error":{"message":"no"}}', "{'message': 'no'}"), ("data: {oops", "DecodeError: JSON")]
)
def test_a_failed_request_records_its_error(last: str, error: str) -> None:
    row = asyncio.run(row_of(last=last))
    assert row.error is not None
    assert error in row.error
    assert row.ttft is not None


async def metrics(_: web.Request) -> web.Response:
    return web.Response(text="headrace_device_busy 0.75\nheadrace_kv_utilization 0.5\n")


async def load(path: str) -> LoadRun:
    app = web.Application()
    app.router.add_post(path, completions)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        return await run_load(Endpoint(f"http://127.0.0.1:{port}", "m"), SMALL, encode)
    finally:
        await runner.cleanup()


def test_a_load_run_and_its_three_reports(tmp_path: Path) -> None:
    run = asyncio.run(load("/v1/completions"))
    assert (run.summary.errors, run.summary.short, run.summary.requests) == (0, 0, 6)
    assert run.summary.output_tokens == sum(p.max_tokens for p in build(SMALL, encode))
    assert run.summary.cached_tokens == 6
    assert run.speculation == {"drafted": 18, "accepted": 12}
    assert run.usage["client_cpu_s"] > 0
    report = load_report("label", [run], {"endpoint": "there"})
    said = io.StringIO()
    print_report(report, Console(file=said, width=200))
    assert "small (0)" in said.getvalue()
    assert "75%" in said.getvalue()
    found = as_json(report)
    assert found["runs"][0]["summary"]["requests"] == 6
    assert found["runs"][0]["wastes_from"] == "gauges"
    assert found["notes"][0].startswith("small: 6 requests, 2 at a time")
    assert "sliding window" in found["notes"][1]
    assert found["facts"]["endpoint"] == "there"
    write_html(tmp_path / "report.html", report)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 2
    assert "http" not in page


def test_a_missing_endpoint_is_named() -> None:
    with pytest.raises(ConfigError, match="does not serve 'm': HTTP 404"):
        asyncio.run(load("/elsewhere"))


def test_a_server_that_does_not_run_is_asked_for() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        gone = Endpoint(f"http://127.0.0.1:{bound.getsockname()[1]}", "m")
        with pytest.raises(
            ConfigError,
            match=rf"^no answer from {gone.url} \(no connection: Connection refused\); is the server running\? `",
        ):
            asyncio.run(run_load(gone, SMALL, encode))
