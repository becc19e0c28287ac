"""A report in three forms, the same for every verb: tables in the terminal, JSON, and one HTML page with plots."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich import table as terminal
from rich.console import Console
from rich.text import Text

from headrace import __version__
from headrace.bench.plots import Plot
from headrace.progress import Activity

__all__ = [
    "BenchReport",
    "ReportTable",
    "add_outputs",
    "as_json",
    "facts",
    "print_report",
    "processor_name",
    "publish",
    "write_html",
]

_FILE_WIDTH = 200


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table; cells are text. The first `words` columns hold words, the others numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The results of a verb. `data` is the content of the JSON form besides the label, the facts and the notes."""

    label: str
    data: Mapping[str, Any]
    tables: Sequence[ReportTable]
    plots: Sequence[Plot] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Circumstances that the results depend on, by name."""
    notes: Sequence[str] = ()
    """Remarks on how something was measured, or why it was not."""


def add_outputs(parser: argparse.ArgumentParser, label: str = "headrace") -> None:
    """The options that `publish` reads, the same for every verb."""
    parser.set_defaults(progress=Activity(None, label))  # `dispatch` sets the one that is shown.
    parser.add_argument("--label", default=label, help="the report's title (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots here")


def publish(args: argparse.Namespace, report: BenchReport) -> None:
    """End the line of progress, print the tables, and write the forms that the options ask for."""
    args.progress.close()
    print_report(report)
    if args.json:
        args.json.write_text(json.dumps(as_json(report), indent=1) + "\n", encoding="utf-8")
    if args.html:
        write_html(args.html, report)


def facts() -> dict[str, Any]:
    """Facts about this machine that belong to every report."""
    return {
        "headrace": __version__,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": processor_name(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def processor_name() -> str:
    """As the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Hardware")))
    return next(names, platform.processor() or "unknown")


def as_json(report: BenchReport) -> dict[str, Any]:
    return {"label": report.label, "facts": dict(report.facts), **report.data, "notes": list(report.notes)}


def print_report(report: BenchReport, console: Console | None = None) -> None:
    console = console or _console()
    for one in report.tables:
        # Printed above the table: a title of the table itself is wrapped to the table's width.
        console.print(Text(one.title, style="italic"))
        shown = terminal.Table()
        for at, column in enumerate(one.columns):
            shown.add_column(Text(column), justify="left" if at < one.words else "right", overflow="fold")
        for row in one.rows:
            shown.add_row(*map(Text, row))
        console.print(shown)
    for note in report.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _console() -> Console:
    """A console for stdout; a file gets long lines, since the width of its reader's screen is unknown."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)


def write_html(path: Path, report: BenchReport) -> None:
    """Write one page that loads nothing from elsewhere."""
    # Late: most runs write no page.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("headrace.bench", "templates"), autoescape=True, trim_blocks=True
    )
    path.write_text(environment.get_template("report.html").render(report=report), encoding="utf-8")
