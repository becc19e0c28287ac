"""The three forms of a report."""

from __future__ import annotations

import argparse
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from headrace.bench.bench_report import BenchReport, ReportTable, add_outputs, as_json, print_report, publish
from headrace.bench.plots import Bar, bars, curve, distribution

REPORT = BenchReport(
    "a <label>",
    {"ratios": [1.5]},
    [ReportTable("first [b]", ("what", "rate"), [("one & two", "3.5")]), ReportTable("second", ("x",), [("y",)])],
    [bars([Bar("b<", 2.0, (1.0, 4.0))], "bars & spans", mark=1.0), distribution([1.0, 3.0], "spread")],
    {"cores": 2},
    ["read [this]"],
)


def published(tmp_path: Path, *options: str) -> None:
    parser = argparse.ArgumentParser()
    add_outputs(parser)
    publish(parser.parse_args(options), REPORT)


def test_the_terminal_shows_tables_and_notes() -> None:
    said = io.StringIO()
    print_report(REPORT, Console(file=said, width=80))
    text = said.getvalue()
    for word in ("first [b]", "one & two", "3.5", "second", "read [this]"):
        assert word in text


def test_lines_in_a_file_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    wide = BenchReport("r", {}, [ReportTable("t", [f"a column {i}" for i in range(10)], [["cell"] * 10])])
    print_report(wide)
    assert "a column 0" in capsys.readouterr().out


def test_json_holds_the_results_and_the_facts(tmp_path: Path) -> None:
    published(tmp_path, "--json", str(tmp_path / "r.json"))
    found = json.loads((tmp_path / "r.json").read_text())
    assert found == as_json(REPORT)
    assert found == {"label": "a <label>", "facts": {"cores": 2}, "ratios": [1.5], "notes": ["read [this]"]}


def test_the_page_is_complete_and_escapes_its_content(tmp_path: Path) -> None:
    published(tmp_path, "--html", str(tmp_path / "r.html"))
    page = (tmp_path / "r.html").read_text()
    assert "a &lt;label&gt;" in page
    assert "one &amp; two" in page
    assert ">b&lt;</text>" in page
    assert "bars &amp; spans" in page
    assert page.count("<svg") == page.count("<figure>") == 2
    assert page.count("<table>") == 2
    assert not re.search(r"src=|href=|url\(|@import|<script", page), "it loads nothing"


def test_bar_lengths_are_proportional_to_values() -> None:
    svg = bars([Bar("a", 1.0), Bar("b", 3.0), Bar("nothing", 0.0)], "c", mark=6.0).svg
    first, second, nothing = (float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', svg))
    assert second == pytest.approx(3 * first, abs=0.2)
    assert nothing == 0
    (mark,) = re.findall(r'<line x1="([\d.]+)"', svg)
    left = float(re.findall(r'<rect x="([\d.]+)"', svg)[0])
    assert float(mark) - left == pytest.approx(6 * first, abs=0.5)


def test_a_curve_goes_from_left_to_right_and_up_to_its_largest() -> None:
    svg = curve([1.0, 4.0, 2.0], [(0, "start"), (2, "end")], "c").svg
    (drawn,) = re.findall(r'points="([^"]+)"', svg)
    (x0, y0), (x1, y1), (x2, y2) = (tuple(map(float, point.split(","))) for point in drawn.split())
    assert x0 < x1 < x2
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y1 < y2 < y0, "downwards is smaller"
    assert "start</text>" in svg
    assert curve([0.0], [], "nothing").svg.count("<polyline") == 1
