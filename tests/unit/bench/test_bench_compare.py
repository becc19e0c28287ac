"""Ratios between reports: pairs by workload and seed, and which way is better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.bench.cli import main
from headrace.bench.verb_compare import compare
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


def test_above_one_is_better_for_rates_and_for_times() -> None:
    ours = report("ours", ("mixed", 0, 200.0, 50.0), ("mixed", 1, 300.0, 40.0), ("single", 0, 9.0, 9.0))
    theirs = report("theirs", ("mixed", 0, 100.0, 100.0), ("mixed", 1, 100.0, 200.0), ("mixed", 2, 1.0, 1.0))
    rate, first, between = compare(ours, theirs)
    assert (rate.workload, rate.metric, rate.pairs) == ("mixed", "out tok/s", 2)
    assert (rate.ours, rate.theirs, rate.median, rate.lowest, rate.highest) == (250.0, 100.0, 2.5, 2.0, 3.0)
    assert (first.median, first.lowest, first.highest) == (3.5, 2.0, 5.0)
    assert between.median == pytest.approx(2.5)


def test_what_cannot_be_compared_is_refused() -> None:
    ours = report("ours", ("mixed", 0, 200.0, 50.0))
    with pytest.raises(ConfigError, match="no run in common"):
        compare(ours, report("theirs", ("mixed", 1, 100.0, 100.0)))
    with pytest.raises(ConfigError, match="3 requests of mixed failed"):
        compare(ours, report("theirs", ("mixed", 0, 100.0, 100.0), errors=3))


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
