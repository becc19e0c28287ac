"""Shares of this machine's limits: of matrix products by format and number of rows, and of each operator of a model's
steps. One row reads every weight once, so memory bandwidth is its limit; the limit of many rows is the arithmetic rate
of their type."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from headrace.bench import matmul_bench
from headrace.bench.bench_report import BenchReport, ReportTable, add_outputs, facts, publish
from headrace.bench.machine_limits import MachineLimits, measure_team
from headrace.bench.roofline_plot import COLUMNS, Point, roofline
from headrace.bench.step_profile import StepProfile, profile_step
from headrace.config import Config, DeviceConfig, ModelConfig
from headrace.errors import ConfigError
from headrace.hub.catalogue import resolve_model
from headrace.platforms.cpu.native import load
from headrace.platforms.cpu.native_team import Team

__all__ = ["configure", "run"]

_STEPS = "1:128,1:4096,256:0"


def configure(parser: argparse.ArgumentParser) -> None:
    matmul_bench.configure(parser)
    parser.add_argument("--model", metavar="MODEL", help="measure the operators of this model's steps too")
    parser.add_argument("--steps", default=_STEPS, help=f"of that model, as tokens:context (default: {_STEPS})")
    add_outputs(parser, "roofline")


def run(args: argparse.Namespace) -> int:
    names, shape = matmul_bench.chosen(args)
    steps = _steps(args.steps) if args.model else []
    team = Team(load(args.isa), args.threads)
    try:
        limits = measure_team(team)
        found = [
            matmul_bench.measure(team, name, int(rows), shape, limits)
            for name in names
            for rows in args.rows.split(",")
        ]
    finally:
        team.close()
    profiles = [profile_step(_config(args), *step) for step in steps]
    publish(args, _report(args, limits, found, profiles))
    return 0


def _config(args: argparse.Namespace) -> Config:
    path = str(resolve_model(args.model))
    return Config(model=ModelConfig(model=path), device=DeviceConfig(platform="cpu", threads=args.threads))


def _steps(text: str) -> list[tuple[int, int]]:
    """Steps as (tokens, context). Raises ConfigError if the text is not a list of steps."""
    try:
        return [(int(tokens), int(context)) for tokens, context in (part.split(":") for part in text.split(","))]
    except ValueError:
        raise ConfigError(f"--steps {text!r}: write tokens:context, as 1:128,256:0") from None


def _report(
    args: argparse.Namespace,
    limits: MachineLimits,
    found: Sequence[matmul_bench.MatmulMeasurement],
    profiles: Sequence[StepProfile],
) -> BenchReport:
    tables = [matmul_bench.table(limits, found)]
    if profiles:
        rows = [point.cells() for point in _points([], profiles)]
        tables.append(ReportTable("operators of the model's steps", COLUMNS, rows, words=2))
    steps = [{key: value for key, value in asdict(one).items() if key != "limits"} for one in profiles]
    data: dict[str, Any] = {"limits": asdict(limits), "kernels": [asdict(one) for one in found], "steps": steps}
    known = facts() | {"model": args.model or "none", "threads": args.threads or "all"}
    return BenchReport(args.label, data, tables, [roofline(limits, _points(found, profiles))], known)


def _points(found: Sequence[matmul_bench.MatmulMeasurement], profiles: Sequence[StepProfile]) -> list[Point]:
    """One point for each matrix product and each operator. Bytes of a product are those of its weight."""
    points = [
        Point(
            f"{one.format} {one.shape[0]}×{one.shape[1]}", f"{one.rows} rows", one.bytes_per_second * one.seconds,
            one.operations_per_second * one.seconds, one.seconds, one.share,
        )
        for one in found
    ]  # fmt: skip
    for profile in profiles:
        step = f"{profile.tokens} after {profile.context}"
        points += [
            Point(
                f"{one.name} {one.weight} {one.shapes}".replace("  ", " "),
                step,
                one.bytes,
                one.operations,
                one.seconds,
                one.share,
            )
            for one in sorted(profile.operators, key=lambda one: -one.seconds)
        ]
        total = profile.bytes, profile.operations, profile.seconds, profile.share
        points.append(Point(f"{profile.model}: complete step", step, *total))
    return points
