"""Ratios between reports of `bench serve --json` (or `bench offline --json`): the first against every other one, run by run.

A ratio above 1 says that the first is better: more tokens a second, or less time to the first token. Runs are paired by
workload and seed; where there are several seeds the median of their ratios is shown with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.errors import ConfigError

__all__ = ["Ratio", "compare", "configure", "run"]

_METRICS: dict[str, tuple[Callable[[Any], float], bool]] = {
    "out tok/s": (lambda summary: summary["output_tok_s"], True),
    "TTFT p50": (lambda summary: summary["ttft_ms"]["p50"], False),
    "TPOT p50": (lambda summary: summary["tpot_ms"]["p50"], False),
}
"""By name: how to read it, and whether more is better."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """`ours` and `theirs` are medians over the seeds; the ratios are of pairs."""

    peer: str
    workload: str
    metric: str
    ours: float
    theirs: float
    median: float
    lowest: float
    highest: float
    pairs: int


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("report", type=Path, help="JSON of the engine that is judged")
    parser.add_argument("peer", type=Path, nargs="+", help="JSON of those it is held against")
    parser.add_argument("--json", type=Path, help="write the ratios here")


def run(args: argparse.Namespace) -> int:
    ours = _load(args.report)
    found = [ratio for path in args.peer for ratio in compare(ours, _load(path))]
    _print(str(ours["label"]), found)
    if args.json:
        data = {"label": ours["label"], "ratios": [asdict(ratio) for ratio in found]}
        args.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


def compare(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Ratio]:
    """Of the workloads that both reports hold. Raises ConfigError where they have no run in common, or one has errors."""
    mine, other = _runs(ours), _runs(theirs)
    common = sorted(mine.keys() & other.keys())
    if not common:
        raise ConfigError(
            f"{ours['label']} and {theirs['label']} have no run in common: give both the same --workload and --seed"
        )
    return [
        _ratio(str(theirs["label"]), workload, name, [(mine[key], other[key]) for key in common if key[0] == workload])
        for workload in sorted({key[0] for key in common})
        for name in _METRICS
    ]


def _ratio(peer: str, workload: str, metric: str, pairs: Sequence[tuple[Any, Any]]) -> Ratio:
    read, more = _METRICS[metric]
    values = [(read(a), read(b)) for a, b in pairs]
    ratios = [(a / b if more else b / a) if a and b else float("nan") for a, b in values]
    ours, theirs = (median(column) for column in zip(*values, strict=True))
    return Ratio(peer, workload, metric, ours, theirs, median(ratios), min(ratios), max(ratios), len(pairs))


def _runs(report: Mapping[str, Any]) -> dict[tuple[str, int], Any]:
    found = {}
    for one in report["runs"]:
        name, summary = str(one["workload"]["name"]), one["summary"]
        if summary["errors"]:
            raise ConfigError(
                f"{report['label']}: {summary['errors']} requests of {name} failed ({summary['first_error']}): measure again"
            )
        found[name, int(one["seed"])] = summary
    return found


def _load(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}: give a file that `headrace bench serve --json` wrote") from error
    if not isinstance(found, dict) or not {"label", "runs"} <= found.keys():
        raise ConfigError(f"{path}: no label or no runs: give a file that `headrace bench serve --json` wrote")
    return found


def _print(label: str, ratios: Sequence[Ratio]) -> None:
    table = Table(title=f"{label} against its peers; above 1 it is better")
    for column in ("workload", "metric", "peer", "ours", "theirs", "ratio", "range", "pairs"):
        table.add_column(
            column, justify="left" if column in ("workload", "metric", "peer") else "right", overflow="fold"
        )
    for one in ratios:
        span = f"{one.lowest:.2f}–{one.highest:.2f}" if one.pairs > 1 else "–"
        table.add_row(
            one.workload, one.metric, one.peer, f"{one.ours:.1f}", f"{one.theirs:.1f}", f"{one.median:.2f}", span,
            str(one.pairs),
        )  # fmt: skip
    Console().print(table)
