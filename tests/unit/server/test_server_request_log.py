"""The log's line for each request: what it has, what it leaves out, and its two forms."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
from pathlib import Path

import pytest
from server_fakes import MODEL, serve_fake, with_key

from headrace.config import Config
from headrace.log_format import JsonFormatter, name_lines
from headrace.server.page_files import PAGE_PATHS

SECRET = "the prompt of a client"


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headrace.requests")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "headrace.requests"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_generates(caplog, stream):
    answer = asyncio.run(serve_fake().complete(prompt=SECRET, stream=stream, n=2))
    (line,) = lines(caplog)
    name = answer.headers["x-request-id"]
    assert re.fullmatch(
        rf"POST /v1/completions 200 id={name} model={MODEL} prompt_tokens={len(SECRET) + 1} cached_tokens=3 "
        r"output_tokens=10 finish=stop,stop queue=0\.010 ttft=\d\.\d{3} total=\d\.\d{3}",
        line,
    ), line
    assert SECRET not in caplog.text
    assert "Hello" not in caplog.text


def test_other_apis_and_other_routes(caplog):
    async def main() -> None:
        served = serve_fake()
        message = {"role": "user", "content": SECRET}
        await served.post("/v1/messages", model=MODEL, max_tokens=3, messages=[message])
        await served.post("/api/chat", model=MODEL, messages=[message])
        await served.post("/tokenize", prompt=SECRET)
        await served.http.get("/v1/models?secret=1")

    asyncio.run(main())
    found = lines(caplog)
    assert [line.split()[:3] for line in found] == [
        ["POST", "/v1/messages", "200"],
        ["POST", "/api/chat", "200"],
        ["POST", "/tokenize", "200"],
        ["GET", "/v1/models", "200"],
    ]
    assert "finish=length" in found[0]
    assert found[2].split()[3].startswith("total=")
    assert SECRET not in caplog.text
    assert "secret=1" not in caplog.text


def test_refused_requests(caplog):
    async def main() -> None:
        served = serve_fake(with_key("k"))
        await served.http.get("/v1/models")
        await served.http.get("/no/%0aINFO headrace: forged%1b[31m", headers={"x-api-key": "k"})
        await served.http.post("/v1/completions", json={"prompt": ""}, headers={"x-api-key": "k"})

    asyncio.run(main())
    unauthorized, missing, wrong = lines(caplog)
    assert unauthorized.startswith("GET /v1/models 401 total=")
    assert missing.startswith(r"GET /no/\nINFO headrace: forged\x1b[31m 404 total=")
    assert wrong.startswith("POST /v1/completions 400 total=")


def test_a_failure_midway_and_a_client_that_leaves(caplog):
    async def main() -> None:
        await serve_fake(fail_after=2).complete(stream=True)
        served = serve_fake(hold=2)
        task = asyncio.create_task(served.complete(stream=True))
        while not served.engine.held:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    failed, left = lines(caplog)
    assert "200 id=" in failed
    assert "output_tokens=2 finish=error" in failed
    assert "output_tokens=2" in left


def test_what_programs_ask_again_and_again_is_left_out(caplog):
    async def main() -> None:
        served = serve_fake()
        for path in ("/health", "/metrics", "/v1/engine/state", *PAGE_PATHS):
            await served.http.get(path)

    asyncio.run(main())
    assert lines(caplog) == []


def test_the_name_of_the_key_stands_there_and_not_the_key(caplog, tmp_path: Path):
    file = tmp_path / "keys.yaml"
    file.write_text("keys: [{name: alice, key: sk-private}]")
    file.chmod(0o600)
    served = serve_fake(Config.model_validate({"server": {"api_keys_file": str(file)}}))
    asyncio.run(served.http.get("/version", headers={"x-api-key": "sk-private"}))
    (line,) = lines(caplog)
    assert line.startswith("GET /version 200 key=alice total=")
    assert "sk-private" not in caplog.text


def test_a_request_as_json(caplog):
    asyncio.run(serve_fake().complete(prompt=SECRET))
    (record,) = [record for record in caplog.records if record.name == "headrace.requests"]
    line = json.loads(JsonFormatter().format(record))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert (line["level"], line["logger"]) == ("info", "headrace.requests")
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
    assert (line["prompt_tokens"], line["output_tokens"], line["finish"]) == (len(SECRET) + 1, 5, "stop")
    assert 0 <= line["ttft"] <= line["total"]


def test_other_lines_as_json():
    try:
        raise ValueError("what\nwent wrong")
    except ValueError as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "f", 1, "a %s\nb", ("c",), (ValueError, error, error.__traceback__)
        )
    text = JsonFormatter("engine", "small").format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["message"], line["process"], line["level"]) == ("a c\nb", "engine", "error")
    assert line["model"] == "small"
    assert line["exception"].endswith("ValueError: what\nwent wrong")


@pytest.mark.parametrize(
    ("process", "model", "said"),
    [
        ("engine", "", "WARNING engine: it is late"),
        ("engine", "small", "WARNING engine small: it is late"),
        ("rank 1", "100% mine", "WARNING rank 1 100% mine: it is late"),
    ],
)
def test_lines_say_which_process_and_model(monkeypatch, process, model, said):
    handler = logging.StreamHandler(io.StringIO())
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    record = logging.LogRecord("x", logging.WARNING, "f", 1, "it is late", (), None)
    name_lines(process, model, False)
    assert handler.format(record) == said
    name_lines(process, model, True)
    line = json.loads(handler.format(record))
    assert (line["process"], line.get("model", "")) == (process, model)
