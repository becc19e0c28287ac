"""`headrace plugin new`: what it writes installs, is found, passes the kit and serves; what it refuses. And the verb
for the kit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from example_harness import Run, install, interpreter

from headrace.cli import conformance_command, plugin_command
from headrace.cli.main import main
from headrace.errors import ConfigError


@pytest.fixture(scope="module")
def mill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The skeleton of a platform `water_mill2`, and the folder `site` beside it, in which it is installed."""
    base = tmp_path_factory.mktemp("mill")
    made = plugin_command.write("water_mill2", base)
    install(made, base / "site")
    # As where Headrace itself is installed: pytest loads the kit's entry point in every run.
    entry = base / "site" / "with_kit-0.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: with-kit\nVersion: 0\n")
    (entry / "entry_points.txt").write_text("[pytest11]\nheadrace-conformance = headrace.conformance.pytest_entry\n")
    return made


@pytest.fixture(scope="module")
def with_mill(mill: Path) -> Run:
    return interpreter(mill.with_name("site"))


def test_what_is_written_is_found_and_passes_the_kit(with_mill: Run, tmp_path: Path) -> None:
    options = ["--option", "threads=1", "--json", str(tmp_path / "report.json")]
    done = with_mill("-m", "headrace", "conformance", "water_mill2", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    passed, total = report["badge"].removeprefix("contract 1.0: ").split(" of ")
    assert int(passed) == int(total) > 100


def test_its_own_tests_are_the_kit(with_mill: Run, mill: Path) -> None:
    done = with_mill("-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "device or memory or copies", cwd=mill)
    assert done.returncode == 0, done.stdout
    assert "TestWaterMill2" in with_mill("-m", "pytest", "--collect-only", "-q", cwd=mill).stdout


def test_it_is_clean_code(mill: Path) -> None:
    rules = ["--isolated", "--line-length", "120", "--no-cache"]
    lint = ["check", "--select", "E,F,W,I,B,UP,SIM,RUF,PL,PT,TID", "--ignore", "PLC0415"]
    for command in (lint, ["format", "--check"]):
        whole = [sys.executable, "-m", "ruff", *command, *rules, "."]
        done = subprocess.run(whole, cwd=mill, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    # Other tests have run its modules.
    written = [path for path in mill.rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    assert "$" not in "".join(path.read_text() for path in written)


SERVE = """
import json, sys
from headrace import LLM, SamplingParams
params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
answers = []
for platform in ("water_mill2", "cpu"):
    with LLM(sys.argv[1], platform=platform, dtype="float32", num_blocks=40, max_num_seqs=4, threads=1) as llm:
        answers.append(llm.generate(["Hello"], params)[0].outputs[0].token_ids)
print(json.dumps(answers))
"""


@pytest.mark.slow
def test_it_serves(with_mill: Run, tiny: Path) -> None:
    done = with_mill("-c", SERVE, str(tiny))
    assert done.returncode == 0, done.stderr
    own, cpu = json.loads(done.stdout.splitlines()[-1])
    assert own == cpu
    assert len(own) == 8


def test_a_wrong_operator_makes_the_verb_fail(mill: Path, tmp_path: Path) -> None:
    package = tmp_path / "headrace_water_mill2"
    package.mkdir()
    for source in (mill / "src" / "headrace_water_mill2").glob("*.py"):
        text = source.read_text()
        (package / source.name).write_text(
            text.replace("weight.to(x.dtype), eps)", "weight.to(x.dtype), 2 * eps + 1.0)")
        )
    python = interpreter(tmp_path, mill.with_name("site"))
    done = python("-m", "headrace", "conformance", "water_mill2", "--option", "threads=1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED operators: test_against_reference[rms_norm-" in done.stdout
    assert "skipped kv: tier operators failed before" in done.stdout


def test_every_template_is_used() -> None:
    folder = Path(plugin_command.__file__).with_name("skeleton")
    assert {path.name for path in folder.iterdir() if path.is_file()} == set(plugin_command._FILES.values())


def test_it_tells_what_it_wrote_and_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugin", "new", "wheel", "--dir", str(tmp_path / "new" / "folder")]) == 0
    said = capsys.readouterr().out
    made = tmp_path / "new" / "folder" / "headrace-wheel"
    assert f"wrote {made}" in said
    assert "headrace conformance wheel" in said
    assert (made / "src" / "headrace_wheel" / "__init__.py").is_file()


@pytest.mark.parametrize("name", ["a", "x9", "water_mill", "a_1_b", "m" * 32])
def test_names_that_will_do(tmp_path: Path, name: str) -> None:
    made = plugin_command.write(name, tmp_path)
    assert made.name == f"headrace-{name}"
    for path in made.rglob("*.py"):
        compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize(
    "name",
    ["", "Mill", "2mill", "_mill", "mill_", "water__mill", "water-mill", "../mill", "mühle", "m" * 33, "a b", "a\n"],
)
def test_names_that_will_not_do(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a platform"):
        plugin_command.write(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_an_installed_platform_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'cpu' is taken by a plugin of headrace"):
        plugin_command.write("cpu", tmp_path)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "headrace-mill"
    mine.mkdir()
    (mine / "pyproject.toml").write_text("mine")
    with pytest.raises(ConfigError, match="headrace-mill exists already"):
        plugin_command.write("mill", tmp_path)
    assert [path.read_text() for path in mine.iterdir()] == ["mine"]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose another"):
        plugin_command.write("mill", tmp_path / "file" / "folder")


def test_the_kit_without_pytest_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conformance_command, "find_spec", lambda name: None)
    assert main(["conformance", "cpu"]) == 2
    assert capsys.readouterr().err == (
        "error: the conformance kit needs pytest and hypothesis, not installed here: pip install pytest hypothesis\n"
    )


def test_an_unknown_platform_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "no_such_platform"]) == 2
    assert capsys.readouterr().err.startswith("error: platform 'no_such_platform' is not installed; there are ")


@pytest.mark.parametrize("option", ["colour", ""])
def test_an_option_without_a_value_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["conformance", "cpu", "--option", option])
    assert left.value.code == 2
    assert "write NAME=VALUE" in capsys.readouterr().err


HEAVY = """
import sys
from headrace.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print("LOADED", [name for name in ("torch", "numpy", "pytest", "pluggy") if name in sys.modules])
"""


@pytest.mark.parametrize("verb", ["conformance", "plugin"])
def test_help_imports_nothing_heavy(verb: str) -> None:
    done = subprocess.run([sys.executable, "-c", HEAVY, verb, "--help"], capture_output=True, text=True, check=True)
    assert "LOADED []" in done.stdout
