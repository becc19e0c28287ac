"""Ratios between reports: pairs by workload and seed, and which way is better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.bench.dispatch import main
from headrace.bench.report_reader import RunMetrics, read_report
from headrace.bench.verb_compare import Ratio
from headrace.bench.verb_compare import compare as compare_measured
from headrace.errors import ConfigError


def report(label: str, *runs: tuple[str, int, float, float], errors: int = 0) -> dict[str, Any]:
    return {
        "label": label,
        "facts": {},
        "runs": [
            {
                "workload": {"name": name},
                "seed": seed,
                "summary": {
                    "output_tok_s": rate, "ttft_ms": {"p50": ttft}, "tpot_ms": {"p50": 1e3 / rate}, "errors": errors,
                    "first_error": "refused",
                },
            }
            for name, seed, rate, ttft in runs
        ],
    }  # fmt: skip


def compare(tmp_path: Path, *reports: dict[str, Any]) -> list[Ratio]:
    """Compare two reports through files."""
    for name, data in zip(("ours", "theirs"), reports, strict=True):
        (tmp_path / name).write_text(json.dumps(data))
    return compare_measured(read_report(tmp_path / "ours"), read_report(tmp_path / "theirs"))


def test_above_one_is_better_for_rates_and_for_times(tmp_path: Path) -> None:
    ours = report("ours", ("mixed", 0, 200.0, 50.0), ("mixed", 1, 300.0, 40.0), ("single", 0, 9.0, 9.0))
    theirs = report("theirs", ("mixed", 0, 100.0, 100.0), ("mixed", 1, 100.0, 200.0), ("mixed", 2, 1.0, 1.0))
    rate, first, between = compare(tmp_path, ours, theirs)
    assert (rate.workload, rate.metric, rate.pairs) == ("W2", "out tok/s", 2)
    assert (rate.ours, rate.theirs, rate.median, rate.lowest, rate.highest) == (250.0, 100.0, 2.5, 2.0, 3.0)
    assert (first.median, first.lowest, first.highest) == (3.5, 2.0, 5.0)
    assert between.median == pytest.approx(2.5)


def test_reports_without_common_runs_are_refused(tmp_path: Path) -> None:
    ours = report("ours", ("mixed", 0, 200.0, 50.0))
    with pytest.raises(ConfigError, match="no run in common"):
        compare(tmp_path, ours, report("theirs", ("mixed", 1, 100.0, 100.0)))
    with pytest.raises(ConfigError, match="3 requests of W2 failed"):
        compare(tmp_path, ours, report("theirs", ("mixed", 0, 100.0, 100.0), errors=3))


def test_reports_are_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rate in (("ours", 300.0), ("theirs", 100.0)):
        (tmp_path / name).write_text(json.dumps(report(name, ("mixed", 0, rate, 10.0))))
    out = tmp_path / "ratios"
    assert main(["compare", str(tmp_path / "ours"), str(tmp_path / "theirs"), "--json", str(out)]) == 0
    assert "3.00" in capsys.readouterr().out
    assert [one["median"] for one in json.loads(out.read_text())["ratios"]] == pytest.approx([3.0, 1.0, 3.0])
    (tmp_path / "broken").write_text("[]")
    with pytest.raises(ConfigError, match="bench serve --json"):
        main(["compare", str(tmp_path / "broken"), str(tmp_path / "ours")])
    with pytest.raises(ConfigError, match="nowhere"):
        main(["compare", str(tmp_path / "nowhere"), str(tmp_path / "ours")])


def with_memory(data: dict[str, Any], peak: int) -> dict[str, Any]:
    for run in data["runs"]:
        run["usage"] = {"peak_rss_bytes": peak}
    return data


def test_memory_is_compared_if_both_report_it(tmp_path: Path) -> None:
    ours = with_memory(report("ours", ("mixed", 0, 200.0, 50.0)), 2_000_000)
    theirs = report("theirs", ("mixed", 0, 100.0, 50.0))
    assert [one.metric for one in compare(tmp_path, ours, theirs)] == ["out tok/s", "TTFT p50 ms", "TPOT p50 ms"]
    peak = compare(tmp_path, ours, with_memory(theirs, 6_000_000))[3]
    assert (peak.metric, peak.ours, peak.theirs, peak.median) == ("peak MB", 2.0, 6.0, 3.0)


LINE = {
    "engine": "other", "workload": "mixed", "concurrency": 16, "seed": 0, "n": 64, "errors": 0, "out_tok_s": 100.0,
    "ttft_ms": {"p50": 60.0, "p99": 90.0, "mean": 61.0}, "tpot_ms": {"p50": 4.0, "p99": 5.0, "mean": 4.1},
    "rss": {"cur_mib": 1, "peak_mib": 3}, "props": {},
}  # fmt: skip


def lines(tmp_path: Path, *entries: dict[str, Any]) -> Path:
    path = tmp_path / "lines"
    path.write_text("".join(json.dumps(LINE | entry) + "\n" for entry in entries))
    return path


def test_lines_of_a_harness_are_a_report(tmp_path: Path) -> None:
    found = read_report(lines(tmp_path, {}, {"seed": 1, "tpot_ms": {"p50": None}, "rss": None}, {"out_tok_s": 90.0}))
    assert found.label == "other"
    assert found.runs == {
        ("W2", 0): RunMetrics(90.0, 60.0, 4.0, 3 << 20),
        ("W2", 1): RunMetrics(100.0, 60.0, None, None),
    }
    alone = read_report(lines(tmp_path, {}))
    assert list(alone.runs) == [("W2", 0)]
    (tmp_path / "ours").write_text(json.dumps(report("ours", ("mixed", 0, 200.0, 30.0))))
    page = tmp_path / "page"
    assert main(["compare", str(tmp_path / "ours"), str(tmp_path / "lines"), "--html", str(page)]) == 0
    assert "other" in page.read_text()
    assert page.read_text().count("<svg") == 3, "a plot a metric that both have"


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([{"errors": 2, "first_error": "late"}], "2 requests of W2 failed .late."),
        ([{}, {"engine": "third"}], "lines of other and of third"),
        ([{"seed": "first"}], "no report of runs"),
        ([], "no report of runs"),
    ],
)
def test_invalid_lines_are_refused(tmp_path: Path, entries: list[dict[str, Any]], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read_report(lines(tmp_path, *entries))
