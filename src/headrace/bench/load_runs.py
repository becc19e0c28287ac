"""The results of one measured workload, and the report of several; the engine is a server or in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from headrace.bench.bench_report import BenchReport, ReportTable, facts
from headrace.bench.plots import Plot, distribution
from headrace.bench.request_timing import LoadSummary, RequestTiming
from headrace.bench.workloads import Workload

__all__ = ["LoadRun", "load_report", "record"]

_LOAD = (
    "workload", "requests", "errors", "out tok/s", "TTFT p50/p99 ms", "TPOT p50/p99 ms", "ITL p99 ms", "cached",
)  # fmt: skip
_COST: dict[str, Callable[[LoadRun], str]] = {
    "workload": lambda run: run.name,
    "device busy": lambda run: _share(run.wastes.get("device_busy")),
    "slots": lambda run: _share(run.wastes.get("slot_occupancy")),
    "KV": lambda run: _share(run.wastes.get("kv_utilization")),
    "engine host": lambda run: _of_wall(run, "engine_host_s"),
    "server host": lambda run: _of_wall(run, "server_host_s"),
    "all its processes": lambda run: _of_wall(run, "cpu_s"),
    "load generator": lambda run: _of_wall(run, "client_cpu_s"),
    "others": lambda run: _of_wall(run, "others_cpu_s"),
    "peak MB": lambda run: f"{run.usage['peak_rss_bytes'] / 1e6:.0f}" if "peak_rss_bytes" in run.usage else "–",
}
"""Columns of the usage table: the wastes as shares, processor time in cores."""
_DRAFTS: dict[str, Callable[[LoadRun], str]] = {
    "workload": lambda run: run.name,
    "drafted": lambda run: _count(run, "drafted"),
    "accepted": lambda run: _count(run, "accepted"),
    "share": lambda run: _share(run.speculation["accepted"] / run.speculation["drafted"] if run.speculation else None),
    "rounds": lambda run: _count(run, "rounds"),
    "mean accepted length": lambda run: (
        f"{run.speculation['mean_accepted_length']:.2f}" if "mean_accepted_length" in run.speculation else "–"
    ),
    "drafting ms": lambda run: f"{run.speculation['drafting_s'] * 1e3:.0f}" if "drafting_s" in run.speculation else "–",
}


@dataclass(slots=True)
class LoadRun:
    """One measured workload."""

    workload: Workload
    seed: int
    rows: list[RequestTiming]
    summary: LoadSummary
    wastes: dict[str, float] = field(default_factory=dict)
    """By name, if known."""
    wastes_from: str | None = None
    """`counters`: of the run alone. `gauges`: means of the server's sliding window, which includes time before the
    run."""
    usage: dict[str, float] = field(default_factory=dict)
    """`peak_rss_bytes`, and processor seconds of the run: `cpu_s` of all processes of the server, `engine_host_s` and
    `server_host_s` of its host work alone, `client_cpu_s` of the load generator, `others_cpu_s` of all other processes
    on the machine. Values that are unknown are missing."""
    notes: list[str] = field(default_factory=list)
    speculation: dict[str, float] = field(default_factory=dict)
    """What speculative decoding drafted, as `draft_counts.drafts_of_run` has it; empty if nothing."""

    @property
    def name(self) -> str:
        return f"{self.workload.name} ({self.seed})"


def record(run: LoadRun) -> dict[str, Any]:
    """The run as JSON data, without the single requests."""
    return {
        "workload": asdict(run.workload),
        "seed": run.seed,
        "summary": asdict(run.summary),
        "wastes": run.wastes,
        "wastes_from": run.wastes_from,
        "usage": run.usage,
        "speculation": run.speculation,
    }


def load_report(label: str, runs: Sequence[LoadRun], more: Mapping[str, Any]) -> BenchReport:
    """The report of several runs; `more` are additional facts."""
    tables = [ReportTable(label, _LOAD, [_load_cells(run) for run in runs])]
    if any(run.wastes or run.usage for run in runs):
        rows = [[show(run) for show in _COST.values()] for run in runs]
        tables.append(ReportTable("usage: processor time in cores, memory of all its processes", tuple(_COST), rows))
    if any(run.speculation for run in runs):
        rows = [[show(run) for show in _DRAFTS.values()] for run in runs]
        tables.append(ReportTable("speculative decoding: drafts in tokens", tuple(_DRAFTS), rows))
    failed = [f"{run.workload.name}: {run.summary.first_error}" for run in runs if run.summary.first_error]
    words = [replace(run.workload, requests=run.summary.requests).words for run in runs]
    notes = list(dict.fromkeys([*words, *(note for run in runs for note in run.notes)]))
    plots = [plot for run in runs for plot in _plots(run)]
    return BenchReport(
        label, {"runs": [record(run) for run in runs]}, tables, plots, facts() | dict(more), failed + notes
    )


def _load_cells(run: LoadRun) -> list[str]:
    s = run.summary
    return [
        run.name,
        str(s.requests),
        str(s.errors),
        f"{s.output_tok_s:.1f}",
        f"{s.ttft_ms['p50']:.1f} / {s.ttft_ms['p99']:.1f}",
        f"{s.tpot_ms['p50']:.2f} / {s.tpot_ms['p99']:.2f}",
        f"{s.itl_ms['p99']:.2f}",
        str(s.cached_tokens),
    ]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _count(run: LoadRun, name: str) -> str:
    return f"{run.speculation[name]:.0f}" if name in run.speculation else "–"


def _of_wall(run: LoadRun, name: str) -> str:
    return f"{run.usage[name] / run.summary.wall_s:.2f}" if name in run.usage else "–"


def _plots(run: LoadRun) -> list[Plot]:
    good = [row for row in run.rows if row.error is None]
    series = {
        "time to first token": [row.ttft * 1e3 for row in good if row.ttft is not None],
        "time between tokens": [gap * 1e3 for row in good for gap in row.gaps],
    }
    return [
        distribution(values, f"{run.name}: {what}, ms by percentile (n = {len(values)})")
        for what, values in series.items()
        if len(values) > 1
    ]
