"""The report of the compiler's run over the Pallas kernels: what counts as wrong, and what is read of a child's
answer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from compile_report import pallas_report as report

GOOD = {"code_bytes": 1000, "temporary_bytes": 5, "reused_bytes": 64, "donated_bytes": 64}
BASELINE = Path(__file__).parents[3] / "docs" / "results" / "tpu-compile.json"


def test_what_counts_as_wrong() -> None:
    before = {"v5e": {"write": GOOD, "attention": GOOD}}
    assert report.compare(before, before) == []
    assert report.compare({"v5e": {"write": GOOD}}, before) == ["v5e: attention is gone"]
    changed = {"v5e": {"write": {**GOOD, "reused_bytes": 0}, "attention": {**GOOD, "code_bytes": 1251}}}
    assert report.compare(changed, before) == [
        "v5e: write copies what it writes to",
        "v5e: attention: 1251 bytes of code, 1000 before",
    ]
    assert report.compare({"v6e": {"write": {"error": "INTERNAL: no"}}}, {}) == ["v6e: write: INTERNAL: no"]


def test_a_run_over_two_chips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def child(command: list[str], **how: Any) -> Any:
        chip = command[-1]
        assert how["env"]["JAX_PLATFORMS"] == "cpu"
        if chip == "v5p":
            return subprocess.CompletedProcess(command, 1, "", "much\nImportError: no libtpu")
        if chip == "7x":
            raise subprocess.TimeoutExpired(command, how["timeout"])
        return subprocess.CompletedProcess(command, 0, f"noise\n{json.dumps({'write': GOOD})}", "")

    monkeypatch.setattr(report.subprocess, "run", child)
    target = tmp_path / "out.json"
    for chip in ("v5e", "v6e"):
        assert report.main(["--chips", chip, "--write", str(target)]) == 0
    assert json.loads(target.read_text()) == {"v5e": {"write": GOOD}, "v6e": {"write": GOOD}}
    assert capsys.readouterr().out.count("1 passed, 0 failed") == 2
    assert report.main(["--chips", "v5e,v5p,7x", "--baseline", str(target)]) == 1
    said = capsys.readouterr().out
    assert "v5p: every kernel: ImportError: no libtpu" in said
    assert "7x: every kernel: the compiler had not finished after" in said
    assert "1 passed, 2 failed" in said


def test_the_checked_in_baseline_is_good() -> None:
    baseline = json.loads(BASELINE.read_text())
    assert set(baseline) == set(report.CHIPS)
    assert report.compare(baseline, baseline) == []
    assert len({tuple(sorted(kernels)) for kernels in baseline.values()}) == 1
