"""`headrace status`: what is behind an address."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from route_harness import PATIENCE, routed, until
from stub_engine import Stub, _Connection
from test_route_relay import run

from headrace.cli.main import main


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.status_command._PATIENCE", PATIENCE)


async def status(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = await asyncio.to_thread(main, ["status", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_a_router_has_a_line_for_each_engine(capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        async with routed([Stub(), Stub()]) as it:
            url = str(it.http.base_url)
            code, out, _ = await status(capsys, f"{url}/v1")
            head, first, second = (line.split() for line in out.splitlines())
            assert code == 0
            assert head == ["REPLICA", "STATE", "MODEL", "WAITING", "RUNNING", "IN-FLIGHT", "URL"]
            assert first == ["0", "ready", "tiny", "0", "0", "0", it.stubs[0].url]
            assert second[0] == "1"
            it.stubs[0].stop()
            await until(lambda: it.fleet.replicas[0].state == "ejected")
            code, out, _ = await status(capsys, url.removeprefix("http://"), "--json")
            states = [row["state"] for row in json.loads(out)["replicas"]]
            assert (code, states) == (0, ["ejected", "ready"])
            it.stubs[1].mode = "draining"
            await until(lambda: it.fleet.replicas[1].state == "busy")
            code, out, _ = await status(capsys, url)
            assert code == 1, "none can take requests"
            assert "replica 1: the server is shutting down" in out

    run(check())


def test_a_server_is_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        stub = Stub()
        stub.role = "decode"
        await stub.start()
        try:
            code, out, _ = await status(capsys, stub.url)
            assert code == 0
            assert await status(capsys, "--url", stub.url) == (0, out, "")
            assert [line.split() for line in out.splitlines()] == [
                ["REPLICA", "STATE", "ROLE", "MODEL", "URL"],
                ["0", "ready", "decode", "tiny", stub.url],
            ]
            stub.mode = "draining"
            code, out, _ = await status(capsys, stub.url)
            assert (code, "replica 0: the server is shutting down" in out) == (1, True)
        finally:
            stub.stop()

    run(check())


def test_no_answer_and_a_wrong_key_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        code, _, err = await status(capsys, "http://127.0.0.1:9")
        assert code == 2
        assert "error: no answer from http://127.0.0.1:9 (Connection refused); is the server running?" in err
        assert "`headrace serve` starts one" in err
        async with routed([Stub()], api_key="right") as it:
            url = str(it.http.base_url)
            code, _, err = await status(capsys, url, "--api-key", "wrong")
            assert (code, "wants an API key" in err) == (2, True)
            assert (await status(capsys, url, "--api-key", "right"))[0] == 0

    run(check())


def test_a_server_may_listen_on_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def check() -> None:
        stub, file = Stub(), tmp_path / "s"
        server = await asyncio.get_running_loop().create_unix_server(lambda: _Connection(stub), str(file))
        try:
            code, out, _ = await status(capsys, f"unix:{file}")
            assert (code, out.splitlines()[1].split()) == (0, ["0", "ready", "tiny", f"unix:{file}"])
        finally:
            server.close()
        code, _, err = await status(capsys, f"unix:{tmp_path}/none")
        assert (code, f"error: no answer from unix:{tmp_path}/none" in err) == (2, True)

    run(check())


@pytest.mark.parametrize(
    ("url", "why"), [("unix:", "unix:: give the file"), ("ftp://x", "ftp://x: give it as http://HOST:PORT")]
)
def test_addresses_that_are_none_are_named(url: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", url]) == 2
    shown = capsys.readouterr().err
    assert why in shown
    assert "--url" not in shown


def test_one_address_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "http://127.0.0.1:9", "--url", "http://127.0.0.1:8"]) == 2
    assert "give the address once: http://127.0.0.1:9 or --url http://127.0.0.1:8" in capsys.readouterr().err
    assert main(["status", "--url", "ftp://x"]) == 2
    assert "--url ftp://x: give it as http://HOST:PORT" in capsys.readouterr().err
