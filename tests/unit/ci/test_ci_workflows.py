"""The workflows match the repository: existing scripts, supported versions, every extra, chip and platform."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from compile_report.chips import CHIPS

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCRIPTS = sorted((ROOT / "ci").glob("*.sh"))
PROJECT = (ROOT / "pyproject.toml").read_text()


def load(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def jobs() -> dict[str, dict[str, Any]]:
    return {f"{path.stem}/{name}": job for path in WORKFLOWS for name, job in load(path)["jobs"].items()}


def values(job: dict[str, Any], key: str) -> list[str]:
    """Of a matrix: its list, and what its `include` adds."""
    matrix = job.get("strategy", {}).get("matrix", {})
    return [*matrix.get(key, []), *(row[key] for row in matrix.get("include", []) if key in row)]


def commands(job: dict[str, Any]) -> list[str]:
    """Every command line, with each value of the matrix in its place."""
    lines = [step["run"] for step in job["steps"] if "run" in step]
    for key in set(re.findall(r"\$\{\{ *matrix\.(\w+)", " ".join(lines))):
        spelled = re.compile(r"\$\{\{ *matrix\." + key + r" *\}\}")
        lines = [spelled.sub(value, line) for line in lines for value in (values(job, key) or [""])]
    return lines


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_there_are_workflows() -> None:
    assert {path.stem for path in WORKFLOWS} == {"platforms", "test"}


@pytest.mark.parametrize("name", jobs())
def test_a_job_has_a_time_limit_and_checks_the_code_out_first(name: str) -> None:
    job = jobs()[name]
    assert job["timeout-minutes"] <= 60
    assert job["steps"][0]["uses"].startswith("actions/checkout@")
    if "strategy" in job:
        assert job["strategy"]["fail-fast"] is False


@pytest.mark.parametrize("name", jobs())
def test_every_named_script_exists_and_is_executable(name: str) -> None:
    job = jobs()[name]
    for line in commands(job):
        for script in re.findall(r"\bci/[\w.-]+", line):
            assert os.access(ROOT / script, os.X_OK), f"{name}: {script}"
        target = re.match(r"make (\w+)", line)
        if target:
            assert f"\n{target[1]}: " in (ROOT / "Makefile").read_text(), f"{name}: make {target[1]}"


@pytest.mark.parametrize("name", jobs())
def test_nothing_is_in_a_matrix_twice(name: str) -> None:
    matrix = jobs()[name].get("strategy", {}).get("matrix", {})
    for rows in matrix.values():
        assert len({json.dumps(row, sort_keys=True) for row in rows}) == len(rows), rows


@pytest.mark.parametrize("name", jobs())
def test_a_job_that_may_fail_names_the_row_that_may(name: str) -> None:
    job = jobs()[name]
    if values(job, "may_fail"):
        assert job["continue-on-error"] == "${{ matrix.may_fail || false }}"
        assert all(flag is True for flag in values(job, "may_fail"))


def test_every_supported_python_and_torch_is_in_a_matrix() -> None:
    least = re.search(r'requires-python = ">=(\d+\.\d+)"', PROJECT)
    limits = re.search(r'"torch>=([\d.]+),<([\d.]+)"', PROJECT)
    assert least
    assert limits
    assert values(jobs()["test/suite"], "python")[0] == least[1]
    minors = [numbers(version)[:2] for version in values(jobs()["test/torch"], "torch")]
    first, after = numbers(limits[1]), numbers(limits[2])
    assert sorted(set(minors)) == [(first[0], minor) for minor in range(first[1], after[1])]


def test_every_declared_python_runs_the_suite() -> None:
    said = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert said == values(jobs()["test/suite"], "python")
    assert {"3.10", said[-1]} == set(values(jobs()["test/torch"], "python"))


def test_every_extra_is_installed_by_a_job() -> None:
    extras = PROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    names = set(re.findall(r"^([\w-]+) = \[", extras, re.MULTILINE)) - {"dev"}
    assert set(values(jobs()["test/extras"], "extra")) == names


def test_the_coverage_of_the_platforms_is_measured() -> None:
    assert "make coverage" in commands(jobs()["test/coverage"])
    assert "least=90" in (ROOT / "ci" / "coverage.sh").read_text()


def test_every_chip_is_a_compile_target() -> None:
    assert set(values(jobs()["platforms/compile"], "chip")) == set(CHIPS)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_valid_and_describes_its_use(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    text = script.read_text()
    assert text.startswith("#!/usr/bin/env bash\n# ")
    assert f"Usage: ci/{script.name}" in text
    assert os.access(script, os.X_OK)


@pytest.mark.parametrize("path", [*WORKFLOWS, *SCRIPTS], ids=lambda path: path.name)
def test_no_host_is_named(path: Path) -> None:
    """The source of packages is the machine's setting."""
    assert "://" not in path.read_text()
