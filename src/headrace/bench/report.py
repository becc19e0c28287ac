"""A report three ways: a table in the terminal, JSON, and one self-contained HTML page with plots."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.bench.measure import percentile
from headrace.bench.serve import Run

__all__ = ["as_json", "print_table", "write_html"]

_COLUMNS = (
    "workload",
    "requests",
    "errors",
    "out tok/s",
    "TTFT p50/p99 ms",
    "TPOT p50/p99 ms",
    "ITL p99 ms",
    "cached",
    "busy",
    "slots",
    "KV",
)


def as_json(label: str, runs: Sequence[Run], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Everything but the single gaps."""
    return {
        "label": label,
        "facts": dict(facts),
        "runs": [
            {"workload": asdict(run.workload), "seed": run.seed, "summary": asdict(run.summary), "wastes": run.wastes}
            for run in runs
        ],
    }


def print_table(label: str, runs: Sequence[Run], console: Console | None = None) -> None:
    table = Table(title=label)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "workload" else "right", overflow="fold")
    for run in runs:
        table.add_row(*_cells(run))
    (console or Console()).print(table)


def _cells(run: Run) -> list[str]:
    s = run.summary
    wastes = [
        f"{run.wastes[n]:.0%}" if n in run.wastes else "–" for n in ("device_busy", "slot_occupancy", "kv_utilization")
    ]
    return [
        f"{run.workload.name} ({run.seed})",
        str(s.requests),
        str(s.errors),
        f"{s.output_tok_s:.1f}",
        f"{s.ttft_ms['p50']:.1f} / {s.ttft_ms['p99']:.1f}",
        f"{s.tpot_ms['p50']:.2f} / {s.tpot_ms['p99']:.2f}",
        f"{s.itl_ms['p99']:.2f}",
        str(s.cached_tokens),
        *wastes,
    ]


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}}
table{{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}}td,th{{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:right}}
td:first-child,th:first-child{{text-align:left}}svg{{width:100%;height:auto}}figure{{margin:2rem 0}}figcaption{{color:#555}}
@media (prefers-color-scheme:dark){{body{{background:#181818;color:#ddd}}td,th{{border-color:#444}}figcaption{{color:#aaa}}}}</style>
<h1>{title}</h1><p>{facts}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{plots}</html>
"""


def write_html(path: Path, label: str, runs: Sequence[Run], facts: Mapping[str, Any]) -> None:
    """One page that loads nothing from elsewhere."""
    head = "".join(f"<th>{html.escape(c)}</th>" for c in _COLUMNS)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in _cells(run)) + "</tr>" for run in runs)
    plots = "".join(_plots(run) for run in runs)
    text = " · ".join(f"{html.escape(str(k))}: {html.escape(str(v))}" for k, v in facts.items())
    path.write_text(
        _PAGE.format(title=html.escape(label), facts=text, head=head, body=body, plots=plots), encoding="utf-8"
    )


def _plots(run: Run) -> str:
    good = [row for row in run.rows if row.error is None]
    series = {
        "time to first token": [row.ttft * 1e3 for row in good if row.ttft is not None],
        "time between tokens": [gap * 1e3 for row in good for gap in row.gaps],
    }
    return "".join(
        f"<figure>{_distribution(values)}<figcaption>{run.workload.name}: {name}, ms by percentile (n = {len(values)})</figcaption></figure>"
        for name, values in series.items()
        if len(values) > 1
    )


def _distribution(values: Sequence[float]) -> str:
    """Percentiles 0 to 100 as a line, with labelled quarters."""
    width, height, left, bottom = 720, 220, 60, 24
    points = [percentile(values, p) for p in range(101)]
    top = max(points) or 1.0
    plot = [(left + (width - left - 8) * p / 100, (height - bottom) * (1 - v / top) + 4) for p, v in enumerate(points)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in plot)
    grid = "".join(
        f'<line x1="{left}" x2="{width - 8}" y1="{(height - bottom) * (1 - q) + 4:.1f}" y2="{(height - bottom) * (1 - q) + 4:.1f}" stroke="#8884"/>'
        f'<text x="{left - 6}" y="{(height - bottom) * (1 - q) + 8:.1f}" text-anchor="end" font-size="11" fill="currentColor">{top * q:.4g}</text>'
        for q in (0, 0.25, 0.5, 0.75, 1)
    )
    ticks = "".join(
        f'<text x="{left + (width - left - 8) * p / 100:.1f}" y="{height - 6}" text-anchor="middle" font-size="11" fill="currentColor">p{p}</text>'
        for p in (0, 25, 50, 75, 90, 99)
    )
    return f'<svg viewBox="0 0 {width} {height}" role="img">{grid}{ticks}<polyline points="{line}" fill="none" stroke="#2a7ae2" stroke-width="2"/></svg>'


def dump(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
