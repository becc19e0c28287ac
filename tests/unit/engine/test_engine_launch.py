"""An engine's process that is started before its configuration is known: taken over, or ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from engine_fakes import ByteTokenizer, expected, make_request

from headrace.cli import serve_command as serve_verb
from headrace.cli.main import main
from headrace.client.process_client import ProcessClient
from headrace.config import Config, ModelConfig
from headrace.engine.launch import EngineProcessHandle, launch
from headrace.errors import EngineDead, Overloaded

COMMAND = (sys.executable, str(Path(__file__).with_name("engine_fake_process.py")))


async def answered(client: ProcessClient) -> bool:
    found = [i async for output in client.generate(make_request("hey", max_tokens=5, seed=0)) for i in output.token_ids]
    return found == expected(tuple(b"hey"), 5)


async def answered_again(client: ProcessClient) -> bool:
    for _ in range(3000):
        with contextlib.suppress(EngineDead, Overloaded):
            return await answered(client)
        await asyncio.sleep(0.02)
    return False


def test_a_client_takes_it_over_and_starts_the_next_itself() -> None:
    async def run() -> None:
        with launch(COMMAND) as launched:
            config = Config(model=ModelConfig(model="fake"))
            client = ProcessClient(config, ByteTokenizer(), command=COMMAND, launched=launched)
            await client.start()
        try:
            first = launched.process.pid
            assert client.pid == first
            assert await answered(client)
            os.kill(first, signal.SIGKILL)
            assert await answered_again(client)
            assert client.pid not in (None, first)
        finally:
            await client.close()

    asyncio.run(run())


def gone(launched: EngineProcessHandle) -> bool:
    return not psutil.pid_exists(launched.process.pid) and launched.link.fileno() < 0


def test_a_process_that_is_not_taken_over_is_ended() -> None:
    with launch(COMMAND) as launched:
        assert psutil.pid_exists(launched.process.pid)
    assert gone(launched)
    with pytest.raises(KeyError), launch(COMMAND) as launched:
        raise KeyError
    assert gone(launched)


def test_it_ends_without_a_configuration() -> None:
    with launch(COMMAND) as launched:
        launched.configure("")
        launched.taken = False  # Where it does not end, the context ends it.
        assert launched.process.wait(600) == 0
    assert gone(launched)


def test_one_that_has_died_can_still_be_configured() -> None:
    with launch((sys.executable, "-c", "raise SystemExit(3)")) as launched:
        assert launched.process.wait(600) == 3
        launched.configure("{}" * 100_000)
        launched.taken = False
    assert gone(launched)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        launch((str(tmp_path / "nothing"),))


@pytest.mark.parametrize(
    "arguments", [["--dtype", "float8"], ["--port", "1", "--host", "256.1.1.1"], ["--max-num-seqs", "0"]], ids=str
)
def test_serve_ends_it_where_it_cannot_serve(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[EngineProcessHandle] = []

    def fake_launch() -> EngineProcessHandle:
        seen.append(launch(COMMAND))
        return seen[0]

    monkeypatch.setattr(serve_verb, "launch", fake_launch)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    assert main(["serve", str(model), *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert gone(seen[0])


def test_a_wrong_variable_is_reported_once(tmp_path: Path) -> None:
    environment = {**os.environ, "HEADRACE_LOG": "loud"}
    command = [sys.executable, "-m", "headrace", "serve", str(tmp_path)]
    found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, env=environment)
    assert found.returncode == 2
    assert found.stderr == "error: HEADRACE_LOG='loud': choose debug, info, warning or error\n"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("headrace.cli.main, headrace.cli.serve_command", {"pydantic", "numpy", "msgspec", "fastapi", "torch"}),
        (
            "headrace.server, headrace.client.process_client, headrace.tokenization.tokenizer",
            {"torch", "safetensors", "sympy"},
        ),
        ("headrace.route.router_run, headrace.route.prompt_process", {"fastapi", "torch"}),
        ("headrace.engine.startup", {"fastapi", "sympy", "torch._dynamo", "torch._inductor", "transformers"}),
    ],
)
def test_what_each_process_imports(modules: str, absent: set[str]) -> None:
    code = f"import sys, {modules}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert not absent & set(loaded)
