"""The command line: fast help, one-line errors, exit codes."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable

import pytest

from headrace import __version__
from headrace.cli import main as main_module
from headrace.cli.main import VERBS, main
from headrace.errors import CheckpointError, ConfigError, EngineDead, HeadraceError, InvalidRequest

HEAVY = (
    "torch",
    "pydantic",
    "numpy",
    "fastapi",
    "tokenizers",
    "jinja2",
    "msgspec",
    "aiohttp",
    "rich",
    "asyncio",
)
PROBE = f"""
import sys
from headrace.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print("LOADED", [name for name in {HEAVY} if name in sys.modules])
"""


@pytest.mark.parametrize("arguments", [[], ["models"], ["pull"], ["doctor"], ["serve"], ["generate"], ["chat"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    """The options of verbs that load a model are the fields of pydantic's models."""
    loaded = ["pydantic"] if arguments in (["serve"], ["generate"], ["chat"]) else []
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments, "--help"], capture_output=True, text=True, check=True
    )
    assert f"LOADED {loaded}" in done.stdout
    assert "usage: headrace" in done.stdout


def test_the_listing_names_every_verb() -> None:
    done = subprocess.run([sys.executable, "-m", "headrace", "--help"], capture_output=True, text=True, check=True)
    for verb, (_, text) in VERBS.items():
        assert verb in done.stdout
        assert text in done.stdout


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], int]], None]:
    """Replaces `headrace models` by a function."""

    def put(work: Callable[[], int]) -> None:
        module = types.ModuleType("fake_verb", "A verb.")
        module.configure = lambda parser: parser.add_argument("--n", type=int)  # type: ignore[attr-defined]
        module.run = lambda args: work()  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "fake_verb", module)
        monkeypatch.setitem(main_module.VERBS, "models", ("fake_verb", ""))

    return put


def fail(error: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_verb_decides_the_exit_code(verb: Callable[..., None], code: int) -> None:
    verb(lambda: code)
    assert main(["models"]) == code


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("two\nlines"),
        InvalidRequest("x", "y"),
        CheckpointError("torn", "a.gguf"),
        EngineDead("gone"),
        HeadraceError(),
    ],
)
def test_our_errors_are_one_line_and_exit_with_2(
    verb: Callable[..., None], error: HeadraceError, capsys: pytest.CaptureFixture[str]
) -> None:
    verb(fail(error))
    assert main(["models"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"error: {' '.join(str(error).split()) or 'HeadraceError'}\n"


def test_ctrl_c_is_quiet(verb: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    verb(fail(KeyboardInterrupt()))
    assert main(["models"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_bug_is_not_hidden(verb: Callable[..., None]) -> None:
    verb(fail(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["models"])


def test_a_closed_pipe_is_no_error() -> None:
    program = "import sys; from headrace.cli.main import main; sys.exit(main(['models', '--json']))"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as pipe:
        assert pipe.stdout is not None
        assert pipe.stderr is not None
        pipe.stdout.close()
        assert "Traceback" not in pipe.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: VERB"),
        (["sing"], "invalid choice: 'sing'"),
        (["models", "--n", "x"], "argument --n: 'x' is not a whole number"),
        (["models", "--what"], "unrecognized arguments: --what"),
        (["serve", "--port", "x"], "argument --port: 'x' is not a whole number"),
        (["generate", "--top-p", "x"], "argument --top-p: 'x' is not a number"),
        (["serve", "--kv-memory", "much"], "'much' is no size"),
    ],
)
def test_wrong_options_are_one_line(
    verb: Callable[..., None], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verb(lambda: 0)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    said = capsys.readouterr().err
    assert caught.value.code == 2
    assert said.startswith("error: ")
    assert message in said
    assert "--help)" in said
    assert said.count("\n") == 1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"headrace {__version__}\n"


def test_bench_gets_its_arguments_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.bench import dispatch

    seen: list[list[str]] = []
    monkeypatch.setattr(dispatch, "main", lambda argv: seen.append(list(argv)) or 5)
    assert main(["bench", "serve", "--help", "-x"]) == 5
    assert seen == [["serve", "--help", "-x"]]
