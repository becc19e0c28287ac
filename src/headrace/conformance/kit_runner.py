"""Run the kit on a platform by name: `headrace conformance NAME`."""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headrace.conformance.explore import EXAMPLES
from headrace.conformance.kit_options import configure
from headrace.conformance.kit_report import KitReport
from headrace.conformance.tier_plugin import TierPlugin
from headrace.errors import PlatformError
from headrace.platforms.interface import Platform
from headrace.plugins import discover
from headrace.progress import activity

__all__ = ["KitTarget", "main", "report_on", "run"]


def _silent(what: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True, eq=False)
class KitTarget:
    """The platform under test: a pytest plugin that passes it to the fixtures. Compared by identity, because pytest
    hashes plugins."""

    platform: Platform
    index: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    examples: int = EXAMPLES
    """Calls of each operator and type."""
    KEY: ClassVar[pytest.StashKey[KitTarget]] = pytest.StashKey()

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[self.KEY] = self


def run(
    target: KitTarget,
    junit: Path | None = None,
    show: bool = False,
    progress: Callable[[str, int, int], None] = _silent,
) -> KitReport:
    """Run every tier on a device of the target. `show`: print pytest's own output. `progress`: see `TierPlugin`."""
    tiers = TierPlugin(progress=progress)
    arguments = [
        str(Path(__file__).with_name("target.py")),
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(Path(__file__).parent),
    ]
    arguments += ["-c", "/dev/null", "-o", "python_files=target.py", "--import-mode=importlib"]
    if junit is not None:
        arguments += [f"--junitxml={junit}"]
    hidden = io.StringIO()
    with contextlib.nullcontext() if show else contextlib.redirect_stdout(hidden):
        code = pytest.main(arguments, plugins=[tiers, target])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise PlatformError(f"{target.platform.name}: the kit did not finish: {hidden.getvalue()[-2000:]}")
    return KitReport(target.platform.name, tuple(tiers.outcomes))


def main(argv: Sequence[str]) -> int:
    """Run the kit. Returns 0 if every declared capability holds, 1 if one fails. Raises PlatformError for a platform
    that cannot be used here."""
    parser = argparse.ArgumentParser(prog="headrace conformance", description=__doc__, allow_abbrev=False)
    configure(parser)
    return report_on(parser.parse_args(argv))


def report_on(args: argparse.Namespace) -> int:
    """As `main`, from what `options.configure` parsed."""
    platform, _ = discover().select_platform(args.platform)
    target = KitTarget(platform, args.index, dict(args.option), args.examples)
    if args.verbose:  # pytest shows its own progress.
        report = run(target, args.junit, show=True)
    else:
        with activity(f"conformance of {platform.name}") as progress:
            report = run(target, args.junit, progress=progress)
    print(report.table())
    if args.json:
        args.json.write_text(report.json() + "\n", encoding="utf-8")
    if args.badge:
        args.badge.write_text(report.badge + "\n", encoding="utf-8")
    return 0 if report.ok else 1
