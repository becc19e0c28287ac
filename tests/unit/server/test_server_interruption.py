"""Clients that disconnect, clients that read slowly, and servers that stop: on the ASGI interface itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from server_fakes import MODEL, Served, serve_fake

from headrace.server.http_errors import ShuttingDown


class Connection:
    """One request to the application, with control over what the client does."""

    def __init__(self, served: Served, path: str = "/v1/chat/completions", **body: Any) -> None:
        self._served = served
        prompt = {"prompt": "Hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
        self._body = json.dumps({"model": MODEL, **prompt, **body}).encode()
        self._path = path
        self._sent_body = False
        self.gone = asyncio.Event()
        self.reading = asyncio.Event()
        self.reading.set()
        self.messages: list[dict[str, Any]] = []

    async def run(self) -> None:
        scope = {
            "type": "http",
            "method": "POST",
            "path": self._path,
            "raw_path": self._path.encode(),
            "query_string": b"",
            "headers": [],
            "http_version": "1.1",
            "scheme": "http",
            "server": ("server", 80),
            "client": ("client", 1),
        }
        await self._served.app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._sent_body:
            self._sent_body = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.reading.wait()
        self.messages.append(message)

    @property
    def text(self) -> str:
        return b"".join(m.get("body", b"") for m in self.messages).decode()


async def until(condition) -> None:
    """Wait by counting iterations of the event loop, so that an overloaded machine doesn't fail the test."""
    for _ in range(12_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("did not happen within a minute")


async def ended(work) -> None:
    """A task that would wait for the engine forever if it were not ended."""
    await asyncio.wait_for(work, 300)


def state(served: Served):
    return served.app.state.context


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body", [{}, {"n": 3}, {"path": "/v1/completions", "prompt": ["a", "b", "c"], "max_tokens": 90}]
)
def test_a_disconnected_client_ends_its_request(stream, body):
    async def main() -> None:
        served = serve_fake(reply="x" * 80, hold=3)
        connection = Connection(served, stream=stream, **body)
        task = asyncio.create_task(connection.run())
        await until(lambda: served.engine.held == len(body.get("prompt", "x")))
        connection.gone.set()
        await ended(task)
        assert not task.cancelled()
        assert not served.engine.completed
        assert len(served.engine.closed) == len(served.engine.requests)
        assert (state(served).inflight, len(state(served).active)) == (0, 0)
        finished = state(served).metrics.finished
        assert finished["abort"] == (body.get("n", 1) * len(body.get("prompt", "x")))
        assert finished["error"] == 0

    asyncio.run(main())


def test_a_client_that_disconnects_before_the_first_token():
    async def main() -> None:
        served = serve_fake(hold=0)
        connection = Connection(served, stream=True)
        task = asyncio.create_task(connection.run())
        await until(lambda: served.engine.requests)
        connection.gone.set()
        await ended(task)
        assert served.engine.closed
        assert connection.messages == []

    asyncio.run(main())


def test_a_request_that_ends_by_itself_is_not_interrupted():
    async def main() -> None:
        served = serve_fake()
        for stream in (False, True):
            connection = Connection(served, stream=stream)
            await connection.run()
            connection.gone.set()
            await asyncio.sleep(0)
            assert connection.messages[-1]["more_body"] is False
            assert not state(served).active

    asyncio.run(main())


def test_a_slow_client_delays_only_its_own_stream():
    async def main() -> None:
        served = serve_fake(reply="x" * 80)
        slow, quick = Connection(served, stream=True), Connection(served, stream=True)
        slow.reading.clear()
        task = asyncio.create_task(slow.run())
        await until(lambda: served.engine.requests)
        await quick.run()
        assert quick.text.endswith("data: [DONE]\n\n")
        # Nothing is taken from the engine beyond the piece that could not be sent.
        assert len(served.engine.completed) == 1
        slow.reading.set()
        await ended(task)
        assert slow.text.endswith("data: [DONE]\n\n")

    asyncio.run(main())


def test_the_end_of_the_drain_is_an_event_in_a_stream():
    async def main() -> None:
        served = serve_fake(reply="x" * 80, hold=5)
        connection = Connection(served, stream=True)
        task = asyncio.create_task(connection.run())
        await until(lambda: len(connection.messages) > 3)
        for scope in list(state(served).active):
            scope.stop(ShuttingDown())
        await ended(task)
        *_, error, done, rest = connection.text.split("\n\n")
        assert json.loads(error[6:])["error"]["code"] == "shutting_down"
        assert (done, rest) == ("data: [DONE]", "")
        assert connection.messages[-1]["more_body"] is False
        assert served.engine.closed
        assert not served.engine.completed

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_of_the_drain_before_the_first_token_is_an_http_error(stream):
    async def main() -> None:
        served = serve_fake(hold=0)
        connection = Connection(served, stream=stream)
        task = asyncio.create_task(connection.run())
        await until(lambda: state(served).active)
        for scope in list(state(served).active):
            scope.stop(ShuttingDown())
        await ended(task)
        assert connection.messages[0]["status"] == 503
        assert json.loads(connection.text)["error"]["code"] == "shutting_down"

    asyncio.run(main())


def test_a_cancellation_from_elsewhere_is_raised():
    async def main() -> None:
        served = serve_fake(hold=0)
        task = asyncio.create_task(Connection(served, stream=True).run())
        await until(lambda: served.engine.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert served.engine.closed

    asyncio.run(main())


def test_one_prompts_failure_ends_the_batch():
    async def main() -> None:
        served = serve_fake(reply="x" * 80, fail_after=5)
        connection = Connection(served, "/v1/completions", prompt=["a", "b", "c"], max_tokens=90)
        await ended(connection.run())
        assert connection.messages[0]["status"] == 503
        assert len(served.engine.closed) == 3

    asyncio.run(main())
