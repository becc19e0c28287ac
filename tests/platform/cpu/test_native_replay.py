"""The replay that proves the kernels on processors without Python: here it runs the generic variant, and notices what
is wrong."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import native_cases
import pytest

import headrace
from headrace.platforms.cpu import native

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    native.missing() is not None or shutil.which("c++") is None, reason="needs the native library and a C++ compiler"
)


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("replay") / "replay"
    include = Path(headrace.__file__).parent / "kernels/native"
    flags = ["-std=gnu++17", "-O0", "-w", f"-I{include}", "-pthread"]
    subprocess.run(["c++", *flags, str(HERE / "replay.cpp"), "-o", str(program), "-ldl"], check=True)
    return program


def run(replay: Path, isa: str, *files: Path) -> subprocess.CompletedProcess[str]:
    library = native.find()
    assert library is not None
    command = [str(replay), str(library), isa, *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_generic_kernels_and_the_team_pass(replay: Path, tmp_path: Path) -> None:
    count = native_cases.write(tmp_path / "cases", 0.2)
    done = run(replay, "generic", tmp_path / "cases")
    passed, rest = done.stdout.splitlines()[-1].split(" passed, ")
    assert (done.returncode, rest) == (0, "0 failed"), done.stdout[-2000:] + done.stderr
    assert int(passed) > 3 * count > 300


def test_every_operator_is_among_the_cases() -> None:
    names = {"resolve_tokens", "embedding", "rms_norm", "add_rms_norm", "linear", "rotary_cache", "attention"}
    names |= {"gated_activation", "gated_linear", "moe", "logits", "sample", "ngram", "place", "accept"}
    names |= {"read_drafts", "shift"}
    assert {case.kernel for case in native_cases.cases(0.3)} == names


def test_a_wrong_result_is_named(replay: Path, tmp_path: Path) -> None:
    cases = [case for case in native_cases.cases(0.1) if case.checks and case.checks[0][1].numel()]
    chosen = {case.kernel: case for case in cases}
    for case in chosen.values():
        expected = case.checks[0][1]
        # Far more than a product's rounding is allowed to be, which grows with the values.
        expected.view(-1)[0] += 10 * (1 + expected[expected.isfinite()].abs().max())
        with (tmp_path / case.kernel).open("wb") as to:
            to.write(native_cases.MAGIC)
            native_cases.write_case(to, case)
    assert len(chosen) > 6
    done = run(replay, "generic", *(tmp_path / name for name in chosen))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].endswith(f"{len(chosen)} failed"), done.stdout
    assert all(f"FAILED {case.label}, result 0" in done.stdout for case in chosen.values())


def test_what_it_cannot_run_is_refused(replay: Path, tmp_path: Path) -> None:
    (tmp_path / "cut").write_bytes(native_cases.MAGIC + b"\x04")
    for isa, name, message in (
        ("sve9", "cut", "does not run here"),
        ("generic", "cut", "cut off|ends early"),
        ("generic", "none", "no cases"),
    ):
        done = run(replay, isa, tmp_path / name)
        assert done.returncode == 2
        assert any(part in done.stderr for part in message.split("|")), done.stderr
