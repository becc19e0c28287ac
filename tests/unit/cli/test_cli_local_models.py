"""`list`, `rm` and `ps`: what is on this machine, and what runs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from cli_fakes import Terminal

from headrace.cli import ps_command
from headrace.cli.main import main
from headrace.hub import catalogue, local_models


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with smollm2 in it, and an empty one of the hub."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    entry = catalogue.CATALOGUE["smollm2"]
    file = tmp_path / "models" / "smollm2" / entry.file
    file.parent.mkdir(parents=True)
    with file.open("wb") as out:
        out.truncate(entry.size)
    return tmp_path


def add_repository(cache: Path, name: str = "org/model") -> Path:
    """A repository in the form of the hub's cache."""
    folder = cache / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    (snapshot / "config.json").write_text("{}")
    return folder


def test_list(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = add_repository(cache)
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["org/model", "smollm2"]
    assert "98 MB" in lines[1]
    assert main(["list", "--json"]) == 0
    assert next(row["path"] for row in json.loads(capsys.readouterr().out)) == str(folder)


def test_nothing_to_list(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "smollm2", "smollm2"]) == 0
    said = capsys.readouterr()
    assert said.out == "removed smollm2 (98 MB)\n"
    assert "`headrace cache --clear` removes them" in said.err
    assert catalogue.find_cached("smollm2") is None
    assert main(["list"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "no model is here yet" in said.err


def test_rm_names_what_is_here(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "smolm2"]) == 2
    said = capsys.readouterr().err
    assert "no model 'smolm2' is on this machine: the models here are smollm2; did you mean smollm2?" in said
    assert main(["rm", "smollm2"]) == 0
    assert main(["rm", "smollm2"]) == 2
    assert "there is no model here\n" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "removed"), [("y\n", True), ("\n", False)])
def test_rm_asks_before_it_changes_the_hubs_cache(
    cache: Path, answer: str, removed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = add_repository(cache)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert main(["rm", "org/model"]) == (0 if removed else 2)
    assert folder.exists() != removed


def test_rm_without_a_terminal_needs_a_yes(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = add_repository(cache)
    with open("/dev/null") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert main(["rm", "org/model"]) == 2
        assert "give --yes" in capsys.readouterr().err
        assert main(["rm", "org/model", "--yes"]) == 0
    assert not folder.exists()
    assert [model.name for model in local_models.local_models()] == ["smollm2"]


SERVER = """
import json, socketserver, ssl, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        found = {"data": [{"id": "one"}, {"id": "two"}]}
        if self.path == "/v1/router/replicas" and way == "grouped":
            found = {"replicas": []}
        if self.path == "/v1/router/replicas" and way == "closing":
            return
        body = json.dumps(found).encode()
        self.send_response(401 if self.headers["Authorization"] != "Bearer secret" else 200)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
way, *files = sys.argv[2:]
if way == "unix":
    class Server(socketserver.UnixStreamServer):
        def get_request(self):
            return self.socket.accept()[0], ("client", 0)
    server = Server(files[0], Handler)
    print(files[0], flush=True)
else:
    server = HTTPServer(("127.0.0.1", 0), Handler)
    if way == "tls":
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*files)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_port, flush=True)
server.serve_forever()
"""
DATA = Path(__file__).parents[2] / "data" / "tls"


@pytest.mark.parametrize(
    ("verb", "way", "files", "url"),
    [
        ("serve", "plain", (), "http://127.0.0.1:{said}"),
        ("serve", "tls", (DATA / "cert.pem", DATA / "key.pem"), "https://127.0.0.1:{said}"),
        ("serve", "unix", ("s",), "unix:{folder}/s"),
        ("route", "plain", (), "http://127.0.0.1:{said}"),
        ("serve", "plain", ("--replicas", "2"), "http://127.0.0.1:{said}"),
        ("serve", "grouped", (), "http://127.0.0.1:{said}"),
        ("serve", "closing", (), "http://127.0.0.1:{said}"),
    ],
)
def test_ps(
    verb: str,
    way: str,
    files: tuple[Path | str, ...],
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Named as the command is; its arguments are those of `headrace serve`.
    script = tmp_path / "headrace"
    script.write_text(SERVER)
    command = [sys.executable, script, verb, way, *files]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            found = {server.pid: server for server in ps_command.find_servers()}[process.pid]
            assert found.url == url.format(said=said, folder=tmp_path)
            assert found.kind == ("router" if verb == "route" or "--replicas" in files else "server")
            assert found.memory > 0
            assert "HEADRACE_API_KEY" in found.model
            monkeypatch.setenv("HEADRACE_API_KEY", "secret")
            assert main(["ps", "--json"]) == 0
            row = next(row for row in json.loads(capsys.readouterr().out) if row["pid"] == process.pid)
            assert row["model"] == "one, two"
            is_router = found.kind == "router" or way == "grouped"
            assert row["kind"] == ("router" if is_router else "server")
            assert main(["ps"]) == 0
            (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{process.pid:>8} ")]
            assert line.endswith("(router) one, two" if is_router else "  one, two")
        finally:
            process.kill()


def test_ps_of_a_server_that_loads(tmp_path: Path) -> None:
    script = tmp_path / "headrace"
    script.write_text("input()")
    command = [sys.executable, script, "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        found = {server.pid: server for server in ps_command.find_servers()}[process.pid]
        assert (found.url, found.model) == ("", "")
        process.kill()


def test_no_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ps_command, "find_servers", list)
    assert main(["ps"]) == 0
    assert "headrace serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["/venv/bin/python", "/venv/bin/headrace", "serve"], "server"),
        (["/venv/bin/python3.12", "-X", "dev", "-m", "headrace", "serve", "m"], "server"),
        (["/venv/bin/headrace", "serve"], "server"),
        ([r"C:\venv\Scripts\headrace.exe", "serve"], "server"),
        (["/venv/bin/python", "/venv/bin/headrace", "route", "http://a"], "router"),
        (["/venv/bin/headrace", "serve", "m", "--replicas", "2"], "router"),
        (["/venv/bin/headrace", "serve", "m", "--max-replicas=3"], "router"),
        (["/venv/bin/headrace", "serve", "m", "--ray-address", "auto"], "router"),
        (["/venv/bin/headrace", "serve", "m", "--replicas", "1"], "server"),
        (["timeout", "60", "/venv/bin/headrace", "serve"], None),
        (["uv", "run", "headrace", "serve"], None),
        (["/venv/bin/headrace", "bench", "serve"], None),
        (["vim", "serve"], None),
        (["serve"], None),
        ([], None),
    ],
)
def test_which_processes_are_servers(words: list[str], kind: str | None) -> None:
    assert ps_command.kind_of(words) == kind


def test_a_server_that_does_not_answer() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        answered, why, is_router = ps_command._model(f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert not answered
        assert not is_router
        assert why.startswith("(no answer")
