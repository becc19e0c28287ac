"""Reads report files of measured runs: of `bench serve`, of `bench offline`, and lines of another engine's harness.

Such a line is a JSON object with `engine`, `workload` (its name), `seed`, `errors`, `out_tok_s`, `ttft_ms` and
`tpot_ms` (objects with `p50`), and `rss` (with `peak_mib`) if the memory was measured; several lines are one report. A
report of another engine that has the fields `label` and `runs` of our reports is read in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.bench.workloads import EARLIER_NAMES
from headrace.errors import ConfigError

__all__ = ["MeasuredRuns", "RunMetrics", "read_report"]

_REMEDY = (
    "give a file that `headrace bench serve --json` or `headrace bench offline --json` wrote, or lines of a harness"
)


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """Metrics of one run: tokens per second, milliseconds and bytes; None if not measured."""

    output_tok_s: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    peak_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredRuns:
    """A report's runs by (workload, seed); of several runs with the same pair the last counts."""

    label: str
    runs: Mapping[tuple[str, int], RunMetrics]


def read_report(path: Path) -> MeasuredRuns:
    """Read a report file. Raises ConfigError if it is not a report, and if requests failed in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror or error}): {_REMEDY}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is no report of runs ({error}): {_REMEDY}") from error
    try:
        found = _parse(text)
        ours = isinstance(found, dict)
        return _of_report(found) if ours else _of_lines(found)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{path} is no report of runs ({type(error).__name__}: {error}): {_REMEDY}") from error


def _parse(text: str) -> Any:
    """The object of one of our reports, or a list of lines."""
    try:
        content = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    return [content] if isinstance(content, dict) and "runs" not in content else content


def _of_report(report: Mapping[str, Any]) -> MeasuredRuns:
    label, runs = str(report["label"]), {}
    for one in report["runs"]:
        name, summary = _workload(one["workload"]["name"]), one["summary"]
        _check(label, name, summary)
        peak = (one.get("usage") or {}).get("peak_rss_bytes")
        runs[name, int(one["seed"])] = _metrics(summary, summary["output_tok_s"], peak)
    return MeasuredRuns(label, runs)


def _of_lines(lines: Sequence[Mapping[str, Any]]) -> MeasuredRuns:
    label, runs = str(lines[0]["engine"]) if lines else "", {}
    for one in lines:
        if str(one["engine"]) != label:
            raise ValueError(f"lines of {label} and of {one['engine']} in one file")
        name = _workload(one["workload"])
        _check(label, name, one)
        peak = (one.get("rss") or {}).get("peak_mib")
        runs[name, int(one["seed"])] = _metrics(one, one["out_tok_s"], None if peak is None else peak * 2**20)
    if not runs:
        raise ValueError("it is empty")
    return MeasuredRuns(label, runs)


def _workload(name: object) -> str:
    return EARLIER_NAMES.get(str(name), str(name))


def _check(label: str, workload: str, summary: Mapping[str, Any]) -> None:
    if summary["errors"]:
        first = summary.get("first_error")
        raise ConfigError(f"{label}: {summary['errors']} requests of {workload} failed ({first}): measure again")


def _metrics(summary: Mapping[str, Any], rate: float, peak: float | None) -> RunMetrics:
    first, between = summary["ttft_ms"]["p50"], summary["tpot_ms"]["p50"]
    return RunMetrics(rate, first, between, peak)
