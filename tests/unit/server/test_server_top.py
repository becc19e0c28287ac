"""`headrace top`: what it makes of readings, one snapshot of a real server, and its screen in a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from pool_fakes import plan, pool_server
from server_fakes import MODEL, serve_fake
from test_server_process import PATIENCE, server, until

from headrace.cli.main import main
from headrace.cli.top_reading import Reader, Reading, Window, parse_metrics, quantile
from headrace.cli.top_view import top_lines

URL = "http://127.0.0.1:8000"


def reading(at: float = 1.0) -> Reading:
    """What the fake server shows after one answer."""

    async def main() -> tuple[str, Any]:
        served = serve_fake()
        await served.complete()
        return (await served.http.get("/metrics")).text, (await served.http.get("/v1/engine/state")).json()

    text, state = asyncio.run(main())
    return Reading(at, parse_metrics(text), state)


def later(first: Reading, seconds: float, **grown: float) -> Reading:
    samples = {name: dict(series) for name, series in first.samples.items()}
    for name, more in grown.items():
        for labels in samples[f"headrace_{name}"]:
            samples[f"headrace_{name}"][labels] += more
    return Reading(first.at + seconds, samples, first.state)


def test_every_line_fits_80_columns() -> None:
    window = Window()
    window.add(first := reading())
    window.add(later(first, 2.0, generation_tokens_total=50, prompt_tokens_total=100, cached_tokens_total=25))
    lines = top_lines(URL, window, "", 80, 40)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert lines[0] == f"Headrace at {URL}  {MODEL} fake float32"
    assert "2 of 8 running, 3 waiting (0 prompt tokens without an answer)" in text
    assert "25.0 generated  50.0 prompt  12.5 of it cached" in text
    assert "held 50%, cached 33% of 60" in text
    assert "25% of the prompt tokens" in text
    assert re.search(r"drafts +ngram 57% accepted, 2\.0 tokens a round; predicted 0% accepted", text), text
    assert re.search(r"TTFT +p50 \d+ ms", text)
    assert "busy 50%" in text
    assert re.search(r"one#0 +decode +2\.5s +300 +256 +40 +22", text)
    assert re.search(r"three#0 +waiting", text)


def test_several_models_and_one_of_them() -> None:
    async def texts() -> tuple[str, Any]:
        async with pool_server(plan("a"), plan("b"), plan("c")) as pool:
            for name in ("a", "b", "b"):
                await pool.text(name)
            return (await pool.http.get("/metrics")).text, (await pool.http.get("/v1/engine/state?model=b")).json()

    text, state = asyncio.run(texts())
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        return httpx.Response(200, text=text) if request.url.path == "/metrics" else httpx.Response(200, json=state)

    window = Window()
    window.add(Reader(URL, transport=httpx.MockTransport(answer)).read())
    assert window.last is not None
    assert window.last.value("headrace_requests_finished_total") == 3
    (line,) = [one for one in top_lines(URL, window, "", 120, 40) if one.startswith("models ")]
    assert line.split("  ")[-1].strip() == "a (loaded), b (loaded), c; --model shows one"
    one = Reader(URL, transport=httpx.MockTransport(answer), model="b").read()
    assert asked[-1].endswith("/v1/engine/state?model=b")
    assert one.value("headrace_requests_finished_total") == 2
    window.add(one)
    assert not [one for one in top_lines(URL, window, "", 120, 40) if one.startswith("models ")]


def test_a_small_screen_shows_what_fits() -> None:
    window = Window()
    window.add(reading())
    for height in (3, 10, 15, 16):
        lines = top_lines(URL, window, "", 40, height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= 40
    assert any("and 1 more" in line for line in top_lines(URL, window, "", 80, 16))


def test_a_server_that_does_not_answer_leaves_its_last_reading() -> None:
    window = Window()
    assert top_lines(URL, window, "refused", 80, 40) == [f"Headrace at {URL}", "no answer: refused", ""]
    window.add(reading())
    lines = top_lines(URL, window, "refused", 80, 40)
    assert lines[1] == "no answer: refused; below is what it said last"
    assert any("2 of 8 running" in line for line in lines)


def test_rates_forget_a_server_that_started_anew() -> None:
    window = Window()
    first = reading()
    for second in range(20):
        window.add(later(first, float(second), prompt_tokens_total=10.0 * second))
    assert window.seconds == pytest.approx(10.0)
    assert window.rate("headrace_prompt_tokens_total") == pytest.approx(10.0)
    window.add(later(first, 21.0))
    assert window.rate("headrace_prompt_tokens_total") is None


def test_quantiles() -> None:
    inf = float("inf")
    assert quantile({1.0: 0, 2.0: 10, inf: 10}, 0.5) == pytest.approx(1.5)
    assert quantile({1.0: 0, 2.0: 5, inf: 10}, 0.99) == 2.0
    assert quantile({1.0: 0, inf: 0}, 0.5) is None
    assert quantile({}, 0.5) is None


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (httpx.Response(401), "it needs a key"),
        (httpx.Response(404), "it answers 404, and not as a Headrace server does"),
        (httpx.Response(200, text="<html>{ not metrics"), ""),
    ],
)
def test_other_servers(answer: httpx.Response, fault: str) -> None:
    reader = Reader(URL, "k", httpx.MockTransport(lambda request: answer))
    found = reader.read().fault
    assert found
    assert fault in found


def test_one_snapshot_where_the_output_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.top_reading._TIMEOUT", PATIENCE)
    with server(server={"api_key": "k"}) as running:
        assert main(["top", "--url", running.url, "--interval", "0.1", "--api-key", "k"]) == 0
        text = capsys.readouterr().out
        assert f"Headrace at {running.url}  {MODEL}" in text
        assert "\x1b" not in text
        assert main(["top", "--url", f"{running.url}/v1", "--interval", "0.1"]) == 2
        assert "needs a key" in capsys.readouterr().err
        url = running.url
    assert main(["top", "--url", url]) == 2
    assert f"no answer from {url}" in capsys.readouterr().err
    assert main(["top", "--interval", "0"]) == 2


class Terminal:
    """The command in a terminal of 80 columns."""

    def __init__(self, *arguments: str) -> None:
        self._mine, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(theirs)
        code = "from headrace.cli.main import main; import sys; sys.exit(main())"
        command = [sys.executable, "-c", code, "top", "--interval", "0.1", *arguments]
        environment = {**os.environ, "TERM": "xterm"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        self._theirs = theirs
        self.text = ""

    def shows(self, wanted: str) -> None:
        until(lambda: self._read() or wanted in self.text)

    def _read(self) -> None:
        ready, _, _ = select.select([self._mine], [], [], 0.05)
        if ready:
            self.text += os.read(self._mine, 65536).decode(errors="replace")

    def press(self, key: str) -> None:
        os.write(self._mine, key.encode())

    def ended(self) -> int:
        """The exit code; the terminal is as it was before."""
        until(lambda: self._read() or self.process.poll() is not None)
        while select.select([self._mine], [], [], 0)[0]:
            self._read()
        assert termios.tcgetattr(self._theirs)[3] == self.before[3]
        assert self.text.rstrip().endswith(("\x1b[?25h", "\x1b[?1049l")), self.text[-40:]
        return self.process.returncode

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._mine)
        os.close(self._theirs)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    made = Terminal(*arguments)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("way", ["q", "interrupt", "terminate"])
def test_it_leaves_the_terminal_as_it_was(way: str) -> None:
    with server() as running, terminal("--url", running.url) as seen:
        seen.shows("of 8 running")
        if way == "q":
            seen.press("q")
        else:
            seen.process.send_signal(signal.SIGINT if way == "interrupt" else signal.SIGTERM)
        assert seen.ended() == 0


def test_it_survives_a_server_that_goes_and_comes_back() -> None:
    with server() as first:
        port = int(first.url.rpartition(":")[2])
        with terminal("--url", first.url) as seen:
            seen.shows("of 8 running")
            first.process.kill()
            first.process.wait(PATIENCE)
            seen.shows("below is what it said last")
            seen.text = ""
            with server(server={"port": port}):
                seen.shows("of 8 running")
            seen.press("q")
            assert seen.ended() == 0
