"""Ratios between reports of `bench serve --json` or `bench offline --json`: the first against every other, by run.

A ratio above 1 means that the first is better: more tokens per second, a shorter time to the first token, less memory.
Runs are paired by workload and seed. With several seeds, the median of their ratios is shown with the lowest and the
highest. Lines of a harness that drives another engine are read too (`headrace.bench.report_reader` has their fields).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from headrace.bench.bench_report import BenchReport, ReportTable, add_outputs, facts, publish
from headrace.bench.plots import Bar, bars
from headrace.bench.report_reader import MeasuredRuns, RunMetrics, read_report
from headrace.errors import ConfigError

__all__ = ["Ratio", "compare", "configure", "run"]

_METRICS: dict[str, tuple[Callable[[RunMetrics], float | None], bool]] = {
    "out tok/s": (lambda metrics: metrics.output_tok_s, True),
    "TTFT p50 ms": (lambda metrics: metrics.ttft_ms, False),
    "TPOT p50 ms": (lambda metrics: metrics.tpot_ms, False),
    "peak MB": (lambda metrics: None if metrics.peak_bytes is None else metrics.peak_bytes / 1e6, False),
}
"""By name: a function that reads the metric, and whether more is better."""
_COLUMNS = ("workload", "metric", "peer", "ours", "theirs", "ratio", "range", "pairs")


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratios of one metric. `ours` and `theirs` are medians over the seeds; the ratios are of pairs."""

    peer: str
    workload: str
    metric: str
    ours: float
    theirs: float
    median: float
    lowest: float
    highest: float
    pairs: int

    def cells(self) -> tuple[str, ...]:
        span = f"{self.lowest:.2f}–{self.highest:.2f}" if self.pairs > 1 else "–"
        return (
            self.workload, self.metric, self.peer, f"{self.ours:.1f}", f"{self.theirs:.1f}", f"{self.median:.2f}", span,
            str(self.pairs),
        )  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", type=Path, metavar="OURS", help="report of the engine to judge")
    parser.add_argument("peer", type=Path, metavar="PEER", nargs="+", help="reports to compare it with")
    add_outputs(parser, "")


def run(args: argparse.Namespace) -> int:
    ours = read_report(args.report)
    found = [ratio for path in args.peer for ratio in compare(ours, read_report(path))]
    title = f"{ours.label} against its peers; above 1 it is better"
    by_metric = {name: [one for one in found if one.metric == name] for name in _METRICS}
    plots = [bars([_bar(one) for one in some], f"ratios: {name}", mark=1.0) for name, some in by_metric.items() if some]
    data = {"ratios": [asdict(one) for one in found]}
    table = ReportTable(title, _COLUMNS, [one.cells() for one in found], words=3)
    publish(args, BenchReport(args.label or ours.label, data, [table], plots, facts()))
    return 0


def compare(ours: MeasuredRuns, theirs: MeasuredRuns) -> list[Ratio]:
    """The ratios of the runs that are in both reports. Raises ConfigError if there is none."""
    common = sorted(ours.runs.keys() & theirs.runs.keys())
    if not common:
        raise ConfigError(
            f"{ours.label} and {theirs.label} have no run in common: give both the same --workload and --seed"
        )
    ratios = []
    for workload in sorted({name for name, _ in common}):
        pairs = [(ours.runs[key], theirs.runs[key]) for key in common if key[0] == workload]
        for metric in _METRICS:
            ratios += _ratio(theirs.label, workload, metric, pairs)
    return ratios


def _ratio(peer: str, workload: str, metric: str, pairs: Sequence[tuple[RunMetrics, RunMetrics]]) -> list[Ratio]:
    """The ratio of a metric; none if no pair has a value on both sides."""
    read, more = _METRICS[metric]
    read_pairs = [(read(a), read(b)) for a, b in pairs]
    values = [(a, b) for a, b in read_pairs if a and b]
    if not values:
        return []
    ratios = [a / b if more else b / a for a, b in values]
    ours, theirs = (median(column) for column in zip(*values, strict=True))
    return [Ratio(peer, workload, metric, ours, theirs, median(ratios), min(ratios), max(ratios), len(values))]


def _bar(one: Ratio) -> Bar:
    span = (one.lowest, one.highest) if one.pairs > 1 else None
    return Bar(f"{one.workload}, {one.peer}", one.median, span)
