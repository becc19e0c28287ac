"""Keys from a file: limits as clients see them, models, what is stored for each key, and reading the file again."""

from __future__ import annotations

import asyncio
import io
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
import yaml
from server_fakes import MODEL, Served, fault, sdk_http, serve_fake

from headrace.config import Config
from headrace.keys import key_ring
from headrace.keys.key_ring import Caller
from headrace.server import access, caller
from headrace.server.access import OPEN_PATHS
from headrace.server.page_files import DOCS_PATHS, PAGE_PATHS


def served_with(tmp_path: Path, *keys: dict[str, Any], engine: dict[str, Any] | None = None, **server: Any) -> Served:
    """A server whose keys are their names with `-key`."""
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump({"keys": [{"key": f"{key['name']}-key", **key} for key in keys]}))
    file.chmod(0o600)
    config = Config.model_validate({"server": {"api_keys_file": str(file), **server}})
    return serve_fake(config, **(engine or {}))


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock that limits are counted by stands still."""
    now = time.monotonic()
    for module in (access, caller, key_ring):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))


def headers(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-key"}


async def ask(served: Served, name: str, **body: Any) -> httpx.Response:
    fields = {"model": MODEL, "prompt": "Hi", **body}
    return await served.http.post("/v1/completions", json=fields, headers=headers(name))


def sdk(served: Served, name: str, retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url="http://server/v1", api_key=f"{name}-key", http_client=sdk_http(openai, served), max_retries=retries
    )


def test_what_needs_no_key_is_health_and_the_files_of_the_pages():
    assert {"/health", *PAGE_PATHS, *DOCS_PATHS} == OPEN_PATHS
    assert all(path == "/" or path.startswith("/page/") for path in PAGE_PATHS)
    assert {"/docs", "/docs/docs.js", "/docs/docs.css"} == DOCS_PATHS


def test_only_the_keys_of_the_file_open_the_server(tmp_path):
    served = served_with(tmp_path, {"name": "a"}, {"name": "b"})
    for name, status in (("a", 200), ("b", 200), ("c", 401)):
        assert asyncio.run(ask(served, name)).status_code == status
    assert asyncio.run(served.http.get("/health")).status_code == 200


def test_requests_a_minute_are_limited_in_openais_form(tmp_path, still):
    served = served_with(tmp_path, {"name": "a", "requests_per_minute": 2}, {"name": "b"})

    async def main() -> None:
        for left in ("1", "0"):
            answer = await ask(served, "a")
            assert answer.status_code == 200
            assert answer.headers["x-ratelimit-remaining-requests"] == left
            assert answer.headers["x-ratelimit-limit-requests"] == "2"
            assert "x-ratelimit-limit-tokens" not in answer.headers
        answer = await ask(served, "a")
        error = fault(answer, 429)
        assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
        assert answer.headers["retry-after"] == "30"
        assert answer.headers["retry-after-ms"] == "30000"
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        # Other keys, and routes that use no model, are free.
        assert (await ask(served, "b")).status_code == 200
        for path in ("/v1/models", "/metrics", "/version"):
            assert (await served.http.get(path, headers=headers("a"))).status_code == 200
        with pytest.raises(openai.RateLimitError) as caught:
            await sdk(served, "a").completions.create(model=MODEL, prompt="Hi")
        assert caught.value.code == "rate_limit_exceeded"

    asyncio.run(main())


def test_the_official_client_waits_and_tries_again(tmp_path):
    served = served_with(tmp_path, {"name": "a", "requests_per_minute": 600})
    limiter = served.app.state.context.keys.named("a").limiter
    limiter._requests._left = 0.0

    async def main() -> None:
        answer = await sdk(served, "a", retries=1).completions.create(model=MODEL, prompt="Hi")
        assert answer.choices[0].text == "Hello"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "check"),
    [
        ("/v1/messages", lambda body: body["error"]["type"] == "rate_limit_error"),
        ("/api/chat", lambda body: "requests a minute" in body["error"]),
    ],
)
def test_other_apis_have_their_own_form(path, check, tmp_path, still):
    served = served_with(tmp_path, {"name": "a", "requests_per_minute": 1})

    async def main() -> httpx.Response:
        await ask(served, "a")
        body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
        return await served.http.post(path, json=body, headers=headers("a"))

    answer = asyncio.run(main())
    assert answer.status_code == 429
    assert check(answer.json())
    assert "retry-after" in answer.headers


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_of_prompt_and_answer_are_charged(stream, tmp_path, still):
    served = served_with(tmp_path, {"name": "a", "tokens_per_minute": 60})

    async def main() -> None:
        first = await ask(served, "a", prompt="x" * 20, stream=stream)
        assert first.status_code == 200
        # The prompt has 21 tokens; the answer of 5 is charged when it is there.
        assert first.headers["x-ratelimit-remaining-tokens"] == "39"
        second = await ask(served, "a", prompt="x" * 40)
        error = fault(second, 429)
        assert error["type"] == "tokens"
        assert second.headers["retry-after"] == "7"
        never = await ask(served, "a", prompt="x" * 70)
        assert fault(never, 429)["code"] == "rate_limit_exceeded"
        assert never.headers["x-should-retry"] == "false"
        assert "retry-after" not in never.headers
        assert len(served.engine.requests) == 1

    asyncio.run(main())


def test_concurrent_requests_are_limited_until_their_answer_has_ended(tmp_path):
    served = served_with(tmp_path, {"name": "a", "max_concurrency": 1}, engine={"hold": 0})

    async def main() -> None:
        first = asyncio.create_task(ask(served, "a", stream=True))
        while not served.engine.held:
            await asyncio.sleep(0)
        error = fault(await ask(served, "a"), 429)
        assert error["type"] == "concurrency"
        served.engine.go.set()
        assert (await first).status_code == 200
        assert (await ask(served, "a")).status_code == 200
        # A request that is refused later gives its place back, too.
        fault(await ask(served, "a", prompt=""), 400)
        assert served.app.state.context.keys.named("a").limiter.active == 0

    asyncio.run(main())


def test_a_key_uses_its_models_alone(tmp_path):
    served = served_with(tmp_path, {"name": "a", "models": ["other"]}, {"name": "b", "models": [MODEL]})

    async def main() -> None:
        assert (await ask(served, "b")).status_code == 200
        error = fault(await ask(served, "a"), 404, "model")
        assert error["code"] == "model_not_found"
        assert "is not open to this key" in error["message"]
        listed = await served.http.get("/v1/models", headers=headers("a"))
        assert listed.json()["data"] == []
        shown = await served.http.get(f"/v1/models/{MODEL}", headers=headers("a"))
        fault(shown, 404, "model")
        assert len((await served.http.get("/v1/models", headers=headers("b"))).json()["data"]) == 1

    asyncio.run(main())


def test_responses_belong_to_the_key_that_kept_them(tmp_path):
    served = served_with(tmp_path, {"name": "a"}, {"name": "b"}, state_dir=str(tmp_path / "state"))

    async def main() -> None:
        kept = await sdk(served, "a").responses.create(model=MODEL, input="Hi", store=True)
        assert (await sdk(served, "a").responses.retrieve(kept.id)).id == kept.id
        b = sdk(served, "b")
        for reach in (
            lambda: b.responses.retrieve(kept.id),
            lambda: b.responses.delete(kept.id),
            lambda: b.responses.input_items.list(kept.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await reach()
        with pytest.raises(openai.BadRequestError, match="there is no response"):
            await b.responses.create(model=MODEL, input="Hi", previous_response_id=kept.id)
        await sdk(served, "a").responses.create(model=MODEL, input="Hi", previous_response_id=kept.id)

    asyncio.run(main())


def batch_input() -> io.BytesIO:
    body = {"model": MODEL, "prompt": "Hi"}
    line = {"custom_id": "one", "method": "POST", "url": "/v1/completions", "body": body}
    content = io.BytesIO(json.dumps(line).encode())
    content.name = "in.jsonl"
    return content


def test_files_and_batches_belong_to_the_key_that_made_them(tmp_path):
    keys = ({"name": "a", "requests_per_minute": 1}, {"name": "b"}, {"name": "c", "batches": False})
    served = served_with(tmp_path, *keys, state_dir=str(tmp_path / "state"))

    async def main() -> None:
        a, b, c = (sdk(served, name) for name in "abc")
        file = await a.files.create(file=batch_input(), purpose="batch")
        for reach in (
            lambda: b.files.retrieve(file.id),
            lambda: b.files.content(file.id),
            lambda: b.files.delete(file.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await reach()
        assert [one.id for one in (await a.files.list()).data] == [file.id]
        assert (await b.files.list()).data == []
        begin = {"endpoint": "/v1/completions", "completion_window": "24h"}
        with pytest.raises(openai.BadRequestError, match="there is no file"):
            await b.batches.create(input_file_id=file.id, **begin)
        with pytest.raises(openai.PermissionDeniedError, match="may not begin batches"):
            await c.batches.create(input_file_id=file.id, **begin)
        batch = await a.batches.create(input_file_id=file.id, **begin)
        with pytest.raises(openai.NotFoundError):
            await b.batches.retrieve(batch.id)
        with pytest.raises(openai.NotFoundError):
            await b.batches.cancel(batch.id)
        assert (await b.batches.list()).data == []
        while (done := await a.batches.retrieve(batch.id)).status != "completed":
            await asyncio.sleep(0.005)
        assert done.request_counts is not None
        assert done.request_counts.completed == 1
        assert done.output_file_id is not None
        assert "Hello" in (await a.files.content(done.output_file_id)).text
        with pytest.raises(openai.NotFoundError):
            await b.files.content(done.output_file_id)
        # The line counted towards no limit.
        assert (await ask(served, "a")).status_code == 200
        await served.app.state.context.runner.stop()

    asyncio.run(main())


def test_lines_of_a_key_that_is_gone_are_refused(tmp_path):
    served = served_with(tmp_path, {"name": "a"}, {"name": "b"}, state_dir=str(tmp_path / "state"))

    async def main() -> None:
        a, context = sdk(served, "a"), served.app.state.context
        file = await a.files.create(file=batch_input(), purpose="batch")
        begun = context.keys.named
        context.keys.named = lambda name: None
        batch = await a.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        while (done := await a.batches.retrieve(batch.id)).status != "completed":
            await asyncio.sleep(0.005)
        assert done.error_file_id is not None
        assert "a valid API key is needed" in (await a.files.content(done.error_file_id)).text
        context.keys.named = begun
        await context.runner.stop()

    asyncio.run(main())


def test_a_folder_of_an_earlier_version_is_read(tmp_path):
    from headrace.server.batch_schemas import FileObject
    from headrace.server.batch_store import BatchStore
    from headrace.server.response_store import KeptResponse, ResponseStore
    from headrace.server.state_base import open_base

    base = open_base(
        tmp_path,
        "responses.sqlite",
        "CREATE TABLE responses (id TEXT PRIMARY KEY, made REAL NOT NULL, "
        "size INTEGER NOT NULL, response BLOB NOT NULL, items BLOB NOT NULL) WITHOUT ROWID;",
    )
    base.execute("INSERT INTO responses VALUES ('old', 9e9, 2, x'61', x'62')")
    base.close()
    base = open_base(
        tmp_path,
        "batches.sqlite",
        "CREATE TABLE files (id TEXT PRIMARY KEY, made REAL NOT NULL, "
        "size INTEGER NOT NULL, file BLOB NOT NULL);"
        "CREATE TABLE batches (id TEXT PRIMARY KEY, made REAL NOT NULL, status TEXT NOT NULL, batch BLOB NOT NULL);",
    )
    base.close()
    responses = ResponseStore(tmp_path)
    assert responses.get("old") == KeptResponse(b"a", b"b")
    assert responses.get("old", "a") is None
    files = BatchStore(tmp_path)
    files.add_file(FileObject("file-1", 1, 1, "x", "batch"), "a")
    assert [file.id for file in files.files("a")] == ["file-1"]
    assert files.files() == []


def test_limits_of_what_is_kept_are_each_keys_own(tmp_path):
    from headrace.server.batch_schemas import FileObject
    from headrace.server.batch_store import BatchStore
    from headrace.server.http_errors import HttpError
    from headrace.server.response_store import KeptResponse, ResponseStore

    responses = ResponseStore(tmp_path, most=2)
    for number in range(3):
        responses.put(f"a{number}", KeptResponse(b"", b""), "a")
    responses.put("b0", KeptResponse(b"", b""), "b")
    assert [responses.get(f"a{number}", "a") is not None for number in range(3)] == [False, True, True]
    assert responses.get("b0", "b") is not None
    files = BatchStore(tmp_path, most_files=1)
    files.add_file(FileObject("file-1", 1, 1, "x", "batch"), "a")
    files.add_file(FileObject("file-2", 1, 1, "x", "batch"), "b")
    with pytest.raises(HttpError, match="may be"):
        files.add_file(FileObject("file-3", 1, 1, "x", "batch"), "b")


def test_a_program_is_reached_by_its_own_key_alone(tmp_path):
    served = served_with(tmp_path, {"name": "a"}, {"name": "b"})
    context = served.app.state.context

    class Running:
        name, owner = "prog-1", "a"

        class task:
            @staticmethod
            def cancel() -> None: ...

    context.programs["prog-1"] = Running

    async def main() -> None:
        answers = [(await served.http.delete("/v1/programs/prog-1", headers=headers(name))) for name in "ba"]
        assert [answer.status_code for answer in answers] == [404, 200]

    asyncio.run(main())


def test_a_private_cache_is_a_salt_that_no_other_client_can_send(tmp_path):
    keys = ({"name": "a", "private_cache": True}, {"name": "b", "private_cache": True}, {"name": "c"})
    served = served_with(tmp_path, *keys)

    async def salts(name: str, path: str, **body: Any) -> list[str]:
        served.engine.requests.clear()
        answer = await served.http.post(path, json={"model": MODEL, **body}, headers=headers(name))
        assert answer.status_code == 200, answer.text
        return [request.salt for request in served.engine.requests]

    async def main() -> None:
        message = [{"role": "user", "content": "Hi"}]
        (a,) = await salts("a", "/v1/chat/completions", messages=message)
        (b,) = await salts("b", "/v1/messages", messages=message, max_tokens=3)
        assert a != b
        assert len(a) == len(b) == 33
        assert await salts("a", "/v1/completions", prompt=["Hi", "Ho"]) == [a, a]
        assert await salts("a", "/v1/completions", prompt="Hi", cache_salt="mine") == [f"{a}mine"]
        assert await salts("c", "/v1/completions", prompt="Hi") == [""]
        assert await salts("c", "/v1/completions", prompt="Hi", cache_salt="mine") == ["mine"]
        again = served_with(tmp_path, *keys)
        assert again.app.state.context.keys.named("a").salt == a[:-1]

    asyncio.run(main())


def test_a_client_cannot_name_its_caller(tmp_path):
    served = served_with(tmp_path, {"name": "a"})
    answer = asyncio.run(served.http.get("/version", headers={"headrace.caller": "a", "x-headrace-caller": "a"}))
    assert answer.status_code == 401
    assert Caller().admin
