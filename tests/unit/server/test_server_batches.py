"""Files and batches over a fake engine: with the official client, through kill -9, and against their limits."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from fork_server import ForkedProcess
from server_fakes import MODEL, Served, fault, sdk_http, serve_fake, with_key
from test_server_process import SCRIPT, forks

from headrace.config import Config
from headrace.errors import ConfigError
from headrace.server import files
from headrace.server.batch_output import write_results
from headrace.server.batch_schemas import BatchObject, FileObject
from headrace.server.batch_store import BatchStore, Line
from headrace.server.http_errors import HttpError
from headrace.server.state_base import owned

PATIENCE = 300.0
CHAT = "/v1/chat/completions"


def configured(folder: Path, key: str | None = None) -> Config:
    base = with_key(key)
    return base.model_copy(update={"server": base.server.model_copy(update={"state_dir": str(folder)})})


def client(served: Served, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://server/v1", api_key=key, http_client=sdk_http(openai, served), max_retries=0
    )


def line(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hi"}]
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": url,
        "body": {"model": MODEL, "messages": messages, **body},
    }


def jsonl(*lines: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


async def begun(api: openai.AsyncOpenAI, content: bytes, endpoint: str = CHAT) -> Any:
    file = await api.files.create(file=("in.jsonl", content), purpose="batch")
    return await api.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")  # type: ignore[arg-type]


async def until(reached: Callable[[], Awaitable[Any]]) -> Any:
    started = time.monotonic()
    while not (found := await reached()):
        assert time.monotonic() < started + PATIENCE
        await asyncio.sleep(0.005)
    return found


async def ended(api: openai.AsyncOpenAI, batch_id: str) -> Any:
    async def look() -> Any:
        batch = await api.batches.retrieve(batch_id)
        return batch if batch.status in ("completed", "failed", "expired", "cancelled") else None

    return await until(look)


async def lines_of(api: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    """The lines of a result's file, by their ids, each of which stands there once."""
    assert file_id is not None
    text = (await api.files.content(file_id)).text
    found = [json.loads(one) for one in text.splitlines()]
    assert len({one["custom_id"] for one in found}) == len(found)
    return {one["custom_id"]: one for one in found}


def run(served: Served, work: Callable[[openai.AsyncOpenAI], Awaitable[None]], key: str = "none") -> None:
    async def main() -> None:
        await work(client(served, key))
        runner = served.app.state.context.runner
        assert runner is not None
        await runner.stop()

    asyncio.run(main())


def test_files(tmp_path: Path) -> None:
    async def work(api: openai.AsyncOpenAI) -> None:
        content = b'{"a": "\r\n--b"}\r\n' * 3
        first = await api.files.create(file=("../../in.jsonl", content), purpose="batch")
        assert (first.bytes, first.filename, first.status, first.object) == (
            len(content),
            "../../in.jsonl",
            "processed",
            "file",
        )
        expires = {"anchor": "created_at", "seconds": 3600}
        second = await api.files.create(file=("b", b""), purpose="batch", expires_after=expires)  # type: ignore[arg-type]
        assert second.expires_at == second.created_at + 3600
        assert [file.id async for file in api.files.list()] == [second.id, first.id]
        assert [file.id async for file in api.files.list(order="asc", limit=1)] == [first.id, second.id]
        assert [file.id async for file in api.files.list(purpose="batch_output")] == []
        assert (await api.files.retrieve(first.id)) == first
        assert (await api.files.content(first.id)).content == content
        assert (await api.files.delete(first.id)).deleted
        for call in (api.files.retrieve, api.files.content, api.files.delete):
            with pytest.raises(openai.NotFoundError):
                await call(first.id)
        for seconds in ("3599", "9" * 5000):
            expires = {"anchor": "created_at", "seconds": seconds}
            with pytest.raises(openai.BadRequestError, match="from 3600 to 2592000"):
                await api.files.create(file=("b", b""), purpose="batch", expires_after=expires)  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError, match="purpose"):
            await api.files.create(file=("b", b"x"), purpose="vision")

    run(serve_fake(configured(tmp_path)), work)
    assert [path.name for path in (tmp_path / "files").iterdir()] != []
    assert len(list((tmp_path / "files").iterdir())) == 1


@pytest.mark.parametrize("metadata", [{"k" * 65: ""}, {"k": "v" * 513}, {str(key): "" for key in range(17)}])
def test_metadata_of_a_batch_is_bounded(tmp_path: Path, metadata: dict[str, str]) -> None:
    async def work(api: openai.AsyncOpenAI) -> None:
        file = await api.files.create(file=("in.jsonl", jsonl(line("a"))), purpose="batch")
        for given, accepted in ((metadata, False), ({"k" * 64: "v" * 512}, True)):
            create = api.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata=given)  # type: ignore[call-overload]
            if accepted:
                assert (await create).metadata == given
                continue
            with pytest.raises(openai.BadRequestError, match="metadata"):
                await create

    run(serve_fake(configured(tmp_path)), work)


def test_limits_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 100)
    monkeypatch.setattr(files, "_FORM_BYTES", 10**6)

    async def work(api: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.APIStatusError) as told:
            await api.files.create(file=("a", b"x" * 101), purpose="batch")
        assert (told.value.status_code, told.value.code) == (413, "file_too_large")

    run(serve_fake(configured(tmp_path)), work)
    assert not list((tmp_path / "files").iterdir())
    store = BatchStore(tmp_path, most_bytes=10, most_files=2)
    store.add_file(FileObject("a", 6, 0, "a", "batch"))
    with pytest.raises(HttpError, match="6 bytes are kept"):
        store.add_file(FileObject("b", 5, 0, "b", "batch"))
    store.add_file(FileObject("c", 1, 0, "c", "batch", expires_at=1))
    assert [file.id for file in store.files()] == ["a"]
    (tmp_path / "files" / "a").write_bytes(b"x")
    (tmp_path / "files" / "left").write_bytes(b"x")
    (tmp_path / "files" / "folder").mkdir()
    store.sweep()
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == ["a", "folder"]
    store.close()


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with owned(str(folder)), pytest.raises(ConfigError, match="another server"), owned(str(folder)):
        pass
    with owned(str(folder)), owned(None):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"), owned(str(tmp_path / "file")):
        pass


def test_a_server_without_a_folder_says_so() -> None:
    served = serve_fake()
    for path in ("/v1/files", "/v1/files/x", "/v1/batches", "/v1/batches/x"):
        assert "--state-dir" in fault(asyncio.run(served.http.get(path)), 404)["message"]


def test_a_batch_from_end_to_end(tmp_path: Path) -> None:
    served = serve_fake(configured(tmp_path, "k"), reply="Hello")

    async def work(api: openai.AsyncOpenAI) -> None:
        content = jsonl(line("a"), line("b", n=0), line("c", max_tokens=2, priority=5), line("d", model="other"))
        made = await begun(api, content)
        assert (made.status, made.object, made.completion_window) == ("validating", "batch", "24h")
        batch = await ended(api, made.id)
        assert batch.status == "completed"
        counts = batch.request_counts
        assert (counts.total, counts.completed, counts.failed) == (4, 2, 2)
        good, bad = await lines_of(api, batch.output_file_id), await lines_of(api, batch.error_file_id)
        assert sorted(good) == ["a", "c"]
        assert good["a"]["response"]["status_code"] == 200
        assert good["a"]["response"]["body"]["choices"][0]["message"]["content"] == "Hello"
        assert good["c"]["response"]["body"]["choices"][0]["finish_reason"] == "length"
        assert good["a"]["error"] is None
        assert {key: one["response"]["status_code"] for key, one in bad.items()} == {"b": 400, "d": 404}
        assert batch.usage.total_tokens == 2 * 3 + 5 + 2
        assert batch.in_progress_at
        assert batch.completed_at
        described = await api.files.retrieve(batch.output_file_id)
        assert described.purpose == "batch_output"
        assert [one.id async for one in api.batches.list()] == [batch.id]
        with pytest.raises(openai.ConflictError):
            await api.batches.cancel(batch.id)
        with pytest.raises(openai.NotFoundError):
            await api.batches.retrieve("other")

    run(served, work, "k")
    assert {request.priority for request in served.engine.requests} == {2**20, 2**20 + 5}


def test_responses_and_completions(tmp_path: Path) -> None:
    served = serve_fake(configured(tmp_path))

    async def work(api: openai.AsyncOpenAI) -> None:
        asked = line("a", "/v1/responses")
        asked["body"] = {"model": MODEL, "input": "Hi", "headrace": {"seed": 1}}
        batch = await ended(api, (await begun(api, jsonl(asked), "/v1/responses")).id)
        output = await lines_of(api, batch.output_file_id)
        assert output["a"]["response"]["body"]["output"][0]["content"][0]["text"] == "Hello"
        assert batch.usage.output_tokens == 5
        told = line("a", "/v1/completions")
        told["body"] = {"model": MODEL, "prompt": "Hi"}
        batch = await ended(api, (await begun(api, jsonl(told), "/v1/completions")).id)
        assert (await lines_of(api, batch.output_file_id))["a"]["response"]["body"]["choices"][0]["text"] == "Hello"

    run(served, work)
    assert [request.priority for request in served.engine.requests] == [2**20] * 2


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (b"{", "invalid_json_line"),
        (b'{"custom_id": 1}', "invalid_json_line"),
        (jsonl(line("a"), line("a")), "duplicate_custom_id"),
        (jsonl(line("a", url="/v1/completions")), "invalid_url"),
        (jsonl({**line("a"), "method": "GET"}), "invalid_method"),
        (jsonl(line("a", stream=True)), "invalid_body"),
    ],
)
def test_an_input_that_is_refused(tmp_path: Path, content: bytes, code: str) -> None:
    async def work(api: openai.AsyncOpenAI) -> None:
        batch = await ended(api, (await begun(api, content)).id)
        assert batch.status == "failed"
        assert batch.failed_at
        assert [error.code for error in batch.errors.data] == [code]

    run(serve_fake(configured(tmp_path)), work)


def test_what_a_batch_needs(tmp_path: Path) -> None:
    served = serve_fake(configured(tmp_path))
    asked = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h"}
    fault(asyncio.run(served.post("/v1/batches", **asked)), 400, "input_file_id")
    fault(asyncio.run(served.post("/v1/batches", **{**asked, "endpoint": "/v1/moderations"})), 400, "endpoint")
    fault(asyncio.run(served.post("/v1/batches", **{**asked, "completion_window": "1h"})), 400, "completion_window")


def test_a_cancelled_batch_delivers_what_is_finished(tmp_path: Path) -> None:
    served = serve_fake(configured(tmp_path), hold=3)

    async def work(api: openai.AsyncOpenAI) -> None:
        short = [line(f"s{at}", max_tokens=2) for at in range(5)]
        made = await begun(api, jsonl(*short, line("long")))

        async def finished() -> bool:
            return bool((await api.batches.retrieve(made.id)).request_counts.completed == 5)

        await until(finished)
        with pytest.raises(openai.ConflictError, match="reads this file"):
            await api.files.delete(made.input_file_id)
        assert (await api.batches.cancel(made.id)).status in ("cancelling", "cancelled")
        batch = await ended(api, made.id)
        assert batch.status == "cancelled"
        assert len(await lines_of(api, batch.output_file_id)) == 5
        errors = await lines_of(api, batch.error_file_id)
        assert errors["long"]["error"]["code"] == "batch_cancelled"
        assert errors["long"]["response"] is None
        await api.batches.cancel(made.id)
        assert (await api.files.delete(made.input_file_id)).deleted

    run(served, work)
    assert len(served.engine.closed) == 6


def test_a_batch_whose_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.server.batches._WINDOW", 0)

    async def work(api: openai.AsyncOpenAI) -> None:
        batch = await ended(api, (await begun(api, jsonl(line("a")))).id)
        assert batch.status == "expired"
        assert batch.expired_at
        assert (await lines_of(api, batch.error_file_id))["a"]["error"]["code"] == "batch_expired"
        assert batch.output_file_id is None

    run(serve_fake(configured(tmp_path)), work)


def test_a_crash_while_the_results_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BatchStore(tmp_path)
    store.add(BatchObject("b", CHAT, "in", "validating", 0, 0, MODEL))
    store.begin("b", [Line(0, "x", 0, 1), Line(1, "y", 1, 1)])
    store.answer("b", 0, 200, b'{"status_code": 200, "request_id": "r", "body": {"usage": null}}')
    store.answer("b", 0, 200, b"another")
    store.close_lines("b", "batch_expired")
    batch = store.move("b", ("in_progress",), "finalizing")
    assert batch is not None

    def crash(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(BatchStore, "end", crash)
        with pytest.raises(KeyboardInterrupt):
            write_results(store, batch, 1)
    assert len(list((tmp_path / "files").iterdir())) == 2
    again = BatchStore(tmp_path)
    again.sweep()
    write_results(again, batch, 2)
    final = again.get("b")
    assert final is not None
    assert (final.status, final.request_counts.completed, final.request_counts.failed) == ("completed", 1, 1)
    assert final.output_file_id is not None
    (written,) = again.path(final.output_file_id).read_text().splitlines()
    assert json.loads(written)["custom_id"] == "x"
    assert len(list((tmp_path / "files").iterdir())) == 2
    for one in (store, again):
        one.close()


def process(folder: Path, **engine: Any) -> tuple[ForkedProcess, str]:
    """A server process, which `kill` ends like kill -9, and its URL."""
    options = json.dumps({"server": {"state_dir": str(folder)}, "engine": engine})
    started = forks().Popen([sys.executable, str(SCRIPT), options], stdin=-1, stdout=-1, text=True)
    assert started.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+", started.stdout.readline())
    assert found
    return started, found[0]


def test_a_batch_outlasts_kill_minus_9(tmp_path: Path) -> None:
    """Lines of one token end; the others hang in the fake engine until the last start."""

    async def begin(url: str) -> str:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as api:
            lines = [line(f"l{at}", max_tokens=1 + 4 * (at % 2)) for at in range(80)]
            batch_id = str((await begun(api, jsonl(*lines))).id)

            async def done() -> bool:
                return bool((await api.batches.retrieve(batch_id)).request_counts.completed >= 5)

            await until(done)
            return batch_id

    started, url = process(tmp_path, hold=1)
    try:
        batch_id = asyncio.run(begin(url))
    finally:
        started.kill()
        started.communicate()
    started, url = process(tmp_path)

    async def finish() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as api:
            batch = await ended(api, batch_id)
            assert batch.status == "completed"
            assert batch.request_counts.completed == 80
            assert sorted(await lines_of(api, batch.output_file_id)) == sorted(f"l{at}" for at in range(80))

    try:
        asyncio.run(finish())
        started.terminate()
        assert started.wait(PATIENCE) == 0
    finally:
        started.kill()
        started.communicate()
