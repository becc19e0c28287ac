"""Wrong inputs on the command line: one line on stderr and exit code 2, for every verb."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.checkpoints.packed.content import Contents
from headrace.cli.main import main

LONG = "x" * 5000
DEEP = "[" * 100_000
URL = "http://127.0.0.1:1"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of every wrong kind, which commands name without its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_CACHE", raising=False)
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").write_bytes(bytes(range(256)))
    (tmp_path / "deep.json").write_text(DEEP)
    (tmp_path / "list.json").write_text("[[1], 2]")
    (tmp_path / "text").write_text("hello " * 100)
    (tmp_path / "empty.gguf").touch()
    return tmp_path


WRONG: dict[str, tuple[list[str], str]] = {
    "a model that is absent": (["generate", "absent", "hi"], "model 'absent' is no such path"),
    "a model's name that no file can have": (["generate", LONG, "hi"], "is no such path"),
    "a model without a name": (["generate", "", "hi"], "the model's name is empty"),
    "an answer without tokens": (["generate", "m", "hi", "--max-tokens", "0"], "--max-tokens: 0 is not at least 1"),
    "a home that does not exist": (["generate", "~nobody-of-that-name/m", "hi"], "is no such path"),
    "an empty file": (["generate", "empty.gguf", "hi"], "empty.gguf: the file is empty"),
    "an empty directory": (["generate", "folder", "hi"], "folder: the directory is empty"),
    "an empty directory to talk to": (["chat", "folder"], "folder: the directory is empty"),
    "an address that is none": (["generate", "--url", "http://[::1", "hi"], "--url http://[::1"),
    "a text that is absent": (["bench", "perplexity", "m", "absent"], "absent: No such file or directory"),
    "a folder as text": (["bench", "perplexity", "m", "folder"], "folder: Is a directory"),
    "bytes as text": (["bench", "perplexity", "m", "bytes"], "bytes is not UTF-8 text: byte 128"),
    "a text's name that no file can have": (["bench", "perplexity", "m", LONG], "File name too long"),
    "reports that are absent": (
        ["bench", "compare", "absent", "absent"],
        "absent cannot be read (No such file or directory): give a file that `headrace bench serve --json`",
    ),
    "a report of bytes": (["bench", "compare", "bytes", "bytes"], "bytes is no report of runs"),
    "a word where options alone are taken": (["ps", "x"], "unrecognized arguments: x; headrace ps takes options alone"),
    "an address with a wrong port": (
        ["top", "http://x:y"],
        "http://x:y: Invalid port: 'y': give it as http://HOST:PORT",
    ),
    "an address to score with that is none": (
        ["bench", "perplexity", "m", "text", "--url", "ftp://x"],
        "--url ftp://x: give it as http://HOST:PORT",
    ),
    "no reports": (["bench", "compare"], "the following arguments are required: OURS, PEER"),
    "a server to measure that is absent": (
        ["top", URL],
        f"no answer from {URL} (Connection refused); is the server running? `headrace serve` starts one",
    ),
    "an address to watch that is none": (["top", "ftp://x"], "error: ftp://x: give it as http://HOST:PORT"),
    "two addresses to watch": (["top", URL, "--url", URL], "give the address once"),
    "a server to ask that is absent": (
        ["generate", "--url", URL, "hi"],
        f"no answer from {URL} (Connection refused); is the server running? `headrace serve` starts one",
    ),
    "an address to measure that is none": (["bench", "serve", "--url", "ftp://x"], "--url ftp://x: give it as http://"),
    "a recorded trace without its option": (["simulate", "text"], "did you mean --trace text?"),
    "an address without its option": (["chat", "m", "http://x"], "did you mean --url http://x?"),
    "an option without its value": (["simulate", "--trace"], "it needs a value: --trace FILE, or --trace=FILE if"),
    "a report that nests": (["bench", "compare", "deep.json", "deep.json"], "deep.json is no report of runs"),
    "a report of lists": (["bench", "compare", "list.json", "list.json"], "list.json is no report of runs"),
    "a body that nests": (
        ["bench", "serve", "--url", URL, "--model", "m", "--tokenizer", "m", "--extra", DEEP],
        "is not a JSON object",
    ),
    "a place that cannot be written": (["plugin", "new", "mill", "--dir", "text"], "choose another --dir"),
    "a verb that is none": ([LONG], "invalid choice"),
    "an option that is none": (["generate", f"--{LONG}"], "unrecognized arguments"),
    "the beginning of an option": (["cache", "--clea"], "unrecognized arguments: --clea; did you mean --clear?"),
    "the beginning of an option of bench": (["bench", "serve", "--concurrenc", "3"], "did you mean --concurrency?"),
    "the beginning of an option of the kit": (["conformance", "sim", "--exam", "3"], "unrecognized arguments: --exam"),
    "a verb of bench that is none": (["bench", LONG], "invalid choice"),
    "a tape of nothing": (["doctor", "--tape", LONG], "is no such path"),
    "a model that is not pulled": (["pull", LONG], "is neither in the catalogue"),
}


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """stderr of a command that must fail as users' errors do."""
    try:
        code: object = main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("what", WRONG)
def test_errors_are_one_short_line(what: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, why = WRONG[what]
    error = said(arguments, capsys)
    assert why in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    for long in (LONG, DEEP):
        assert long[:201] not in error


@pytest.mark.parametrize("cache", ["text", "text/below", "/dev/null"])
def test_a_cache_path_that_is_not_a_folder(
    cache: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", cache)
    assert main(["models"]) == 0
    assert main(["cache"]) == 0
    assert "Not a directory" in said(["cache", "--clear"], capsys)


@pytest.mark.parametrize("index", [DEEP, "{" * 5000, "[1]", "", '{"a": 3}', json.dumps({"a": [1, 2, 3, 4, 5, [[]]]})])
def test_a_damaged_cache_index_is_rebuilt(index: str, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"weights")
    (tmp_path / "contents.json").write_text(index)
    contents = Contents(tmp_path / "contents.json")
    assert contents.known([file]) is None
    assert contents.digest([file])


def test_cache_entries_may_be_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    (tmp_path / "packed" / "folder.packed").mkdir(parents=True)
    (tmp_path / "packed" / "junk.packed").write_bytes(b"HRPACK\0\1" + b"\xff" * 100)
    (tmp_path / "packed" / "link.packed").symlink_to("absent")
    assert main(["cache"]) == 0
    assert "which cannot be read" in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0
    assert [left.name for left in (tmp_path / "packed").glob("*.packed") if not left.is_symlink()] == ["folder.packed"]
