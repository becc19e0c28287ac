"""Every kernel compiled for chips that are not here, held to the baseline; and the report's own judgement.

Compiling starts a process of its own: in this one the kernels are made for the interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from compile_report import triton_report as report
from compile_report.chips import CHIPS
from compile_report.known import sources_of
from compile_report.triton_report import faults_of, gone, render, write

BASELINE = Path(__file__).parents[3] / "docs" / "results" / "triton-compile.json"
KERNELS = (
    "resolve_kernel", "embedding_kernel", "norm_kernel", "gate_kernel", "rotary_kernel", "decode_kernel",
    "combine_kernel", "prefill_kernel", "dense_kernel", "coded_kernel", "quantise_kernel", "clean_kernel",
    "count_kernel", "bias_kernel", "penalise_kernel", "choose_kernel", "score_kernel", "latent_decode_kernel",
    "latent_prefill_kernel", "delta_kernel", "ssd_kernel", "keep_kernel", "conv_kernel", "conv_state_kernel",
    "route_kernel", "pairs_kernel", "blocks_kernel", "expert_dense_kernel", "expert_coded_kernel", "mix_kernel",
    "match_kernel", "draft_kernel", "place_kernel", "accept_kernel", "read_kernel",
    "shift_kernel",
)  # fmt: skip


ENVIRONMENT = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(Path(__file__).parents[3] / "tools")}


def _report(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-W", "ignore", "-m", "compile_report.triton_report", *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=900, check=False)
    return done.returncode, done.stdout + done.stderr


QUICK = ("sm_90", "sm_100", "gfx942", "gfx950", "gfx1100")
"""Chips that the suite compiles for, each kernel once: the generations of matrix units that differ most in what triton
makes of a product: HGMMA, UTCHMMA in tensor memory, v_mfma with the E4M3 of either kind, v_wmma. The other five, and
every case, are for ci/cuda.sh and ci/rocm.sh."""
KNOWN = Path(__file__).parents[2] / "data" / "triton" / "known.json"
"""The compiler's results by the content of each kernel's source. Only changed kernels are compiled, because all kernels
of one chip take 20 to 40 s of a core. To update the file: PYTHONPATH=tools TRITON_INTERPRET=0 python -m
compile_report.triton_report --core --chips sm_90,sm_100,gfx942,gfx950,gfx1100 --known tests/data/triton/known.json"""
AGAIN = ("embedding/embedding_kernel", "linear-bfloat16/dense_kernel")
"""Compiled again for the first and the last of the chips, though they are known: the file must be what this compiler
gives."""


@dataclass(frozen=True)
class Run:
    """A run of the report over the chips."""

    code: int
    told: str
    rows: dict[str, dict[str, Any]]
    known: dict[str, Any]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("report")
    known, result = json.loads(KNOWN.read_text()), folder / "result.json"
    for chip in (QUICK[0], QUICK[-1]):
        for kernel in AGAIN:
            del known["chips"][chip][kernel]
    (folder / "known.json").write_text(json.dumps(known))
    where = ("--baseline", str(BASELINE), "--write", str(result), "--known", str(folder / "known.json"))
    code, told = _report("--chips", ",".join(QUICK), "--core", *where)
    return Run(code, told, json.loads(result.read_text())["chips"], json.loads((folder / "known.json").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("chip", QUICK)
def test_every_kernel_fits_the_chip(chip: str, quick: Run) -> None:
    assert quick.code == 0, quick.told
    assert {name.split("/")[1] for name in quick.rows[chip]} == set(KERNELS)
    assert all(faults_of(CHIPS[chip], row, None) == [] for row in quick.rows[chip].values())
    assert quick.told.splitlines()[-1] == f"{sum(map(len, quick.rows.values()))} passed, 0 failed"


@pytest.mark.slow
def test_known_results_equal_those_of_the_compiler(quick: Run) -> None:
    before = json.loads(KNOWN.read_text())
    if before["triton"] != version("triton"):
        pytest.skip(f"known by triton {before['triton']}: everything was compiled")
    for chip in (QUICK[0], QUICK[-1]):
        for kernel in AGAIN:
            now, then = quick.known["chips"][chip][kernel], before["chips"][chip][kernel]
            assert now == then or now["key"] != then["key"]


SOURCE = """
FACTOR = 2

def helper(x):
    return x * FACTOR

class Jitted:
    fn = helper

def kernel(x):
    return Jitted(x) + 1
"""


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("FACTOR = 2", "FACTOR = 3", False),
        ("x * FACTOR", "FACTOR * x", False),
        ("Jitted(x) + 1", "Jitted(x) + 2", False),
        ("def kernel(x):", 'def kernel(x):\n    """What it does."""', True),
        ("return x * FACTOR", "return x * FACTOR  # twice", True),
        ("FACTOR = 2", "OTHER = 5\n\nFACTOR = 2", True),
    ],
)
def test_what_the_key_of_a_kernel_depends_on(before: str, after: str, same: bool, tmp_path: Path) -> None:
    def sources(name: str, text: str) -> dict[str, str]:
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        module = ModuleType("kernels")
        exec(compile(text, str(path), "exec"), module.__dict__)
        return sources_of(module.kernel)

    one = sources("one", SOURCE)
    assert set(one) == {"kernels.kernel", "kernels.helper", "kernels.FACTOR"}
    assert (sources("other", SOURCE.replace(before, after)) == one) == same


def test_the_baseline_has_every_chip_and_no_fault() -> None:
    chips = json.loads(BASELINE.read_text())["chips"]
    assert set(chips) == set(CHIPS)
    for name, rows in chips.items():
        assert {kernel.split("/")[1] for kernel in rows} == set(KERNELS)
        for kernel, row in rows.items():
            assert faults_of(CHIPS[name], row, row) == [], (name, kernel)


def _row(**given: Any) -> dict[str, Any]:
    row = {"registers": 100, "spills": 0, "shared": 1000, "occupancy": 16, "matrix": "HGMMA", "wants": "float16"}
    return {**row, **given}


@pytest.mark.parametrize(
    ("given", "before", "fault"),
    [
        ({}, None, None),
        ({"registers": 108}, _row(), None),
        ({"spills": 3}, None, "3 spills"),
        ({"shared": 300_000}, None, "300000 bytes of shared memory, the chip has 232448"),
        ({"matrix": "HMMA"}, None, "no HGMMA, only HMMA"),
        ({"matrix": ""}, None, "no HGMMA, only no matrix instruction"),
        ({"registers": 109}, _row(), "109 registers, 100 before"),
        ({"occupancy": 12}, _row(), "12 warps at once, 16 before"),
        ({"occupancy": 12}, None, None),
        ({"occupancy": 20}, _row(), None),
        ({"matrix": "", "wants": ""}, _row(), "no matrix instruction, HGMMA before"),
    ],
)
def test_what_counts_as_a_regression(given: dict[str, Any], before: dict[str, Any] | None, fault: str | None) -> None:
    row = _row(**given)
    found = faults_of(CHIPS["sm_90"], row, before)
    assert found == ([] if fault is None else [fault])
    assert ("FAILED" in render(CHIPS["sm_90"], "case/kernel", row, found)) == (fault is not None)


def test_a_kernel_that_does_not_compile_is_a_fault() -> None:
    row = {"error": "CompilationError: fp8e4nv not supported"}
    assert faults_of(CHIPS["sm_80"], row, _row()) == [row["error"]]
    assert "FAILED: CompilationError" in render(CHIPS["sm_80"], "case/kernel", row, [row["error"]])


def test_a_missing_kernel_is_a_fault_unless_the_report_is_quick() -> None:
    before = {"a/k": _row(), "b/k": _row()}
    assert gone(before, {"a/k": _row(), "c/k": _row()}, core_only=False) == ["b/k"]
    assert gone(before, {"a/k": _row()}, core_only=True) == []


@pytest.mark.parametrize(("arguments", "last"), [((), "1 passed, 1 failed"), (("--core",), "1 passed, 0 failed")])
def test_the_report_counts_missing_kernels(
    arguments: tuple[str, ...],
    last: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("triton")

    def measure(chip: Any, core_only: bool, told: Any, known: Any) -> dict[str, Any]:
        told("a/k", _row())
        return {"a/k": _row()}

    path = tmp_path / "before.json"
    write(path, {"sm_90": {"a/k": _row(), "b/k": _row()}})
    monkeypatch.setattr(report, "measure", measure)
    code = report.main(["--chips", "sm_90", "--baseline", str(path), *arguments])
    told = capsys.readouterr().out.splitlines()
    assert (code, told[-1]) == (int(not arguments), last)
    assert "16 of 64 warps HGMMA" in told[0]
    assert [line.split()[1:] for line in told[1:-1]] == ([] if arguments else [["b/k", "FAILED:", "is", "gone"]])


def test_the_result_is_read_back(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    path = tmp_path / "rows.json"
    write(path, {"sm_90": {"a/k": _row()}, "gfx942": {"b/k": _row(), "c/k": _row()}})
    assert json.loads(path.read_text())["chips"] == {"sm_90": {"a/k": _row()}, "gfx942": {"b/k": _row(), "c/k": _row()}}


def test_a_type_that_the_chip_lacks_fails() -> None:
    """E4M3 of OCP on a chip before it: the compiler must be the one that says so."""
    program = (
        "from dataclasses import replace; from compile_report.chips import CHIPS;"
        "from compile_report.code import compile_for; from compile_report.shipped import recorded;"
        "chip = replace(CHIPS['sm_80'], fp8='ocp');"
        "[compile_for(l, chip) for l in recorded(chip, True) if l.name == 'linear-fp8-token/coded_kernel']"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode != 0
    assert "fp8e4nv" in done.stderr
