"""The pytest plugin of the kit: sorts tests by tier, skips tiers after a failure, and records every outcome."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from headrace.conformance.tiers import TIERS, tier_of

__all__ = ["OperatorError", "Outcome", "TierPlugin"]


@dataclass
class OperatorError:
    """The largest error of an operator's calls: normalized mean squared error against the reference, and the allowed
    one (0: no call)."""

    operator: str
    dtype: str
    nmse: float = 0.0
    allowed: float = 0.0
    PROPERTY: ClassVar[str] = "conformance"
    """Name of the pytest property with which a test records it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One test. `detail` is the reason of a skip, or the last line of a failure."""

    tier: str
    name: str
    result: str
    """`passed`, `failed` or `skipped`."""
    detail: str = ""
    seconds: float = 0.0
    measured: OperatorError | None = None
    where: str = ""
    """`file:line` of a failure: the last line of the traceback outside libraries and the test runner."""


@dataclass(eq=False, slots=True)
class TierPlugin:
    """Registered by the kit's runner and, through `headrace.conformance.pytest_entry`, in a vendor's own pytest run."""

    outcomes: list[Outcome] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """Class → the first tier that failed."""
    progress: Callable[[str, int, int], None] = lambda what, done, total: None
    """Is told (test, tests that have ended, all tests)."""
    _count: int = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort the tests of each class that uses the kit by tier; all other tests keep their position."""
        kit = [place for place, item in enumerate(items) if tier_of(item)]
        first: dict[str, int] = {}
        for place in kit:
            first.setdefault(_group(items[place]), place)
        ordered = sorted(
            (items[p] for p in kit), key=lambda item: (first[_group(item)], TIERS.index(tier_of(item) or ""))
        )
        for place, item in zip(kit, ordered, strict=True):
            items[place] = item
        self._count = len(kit)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        here, broken = tier_of(item), self.failed.get(_group(item))
        if here is not None:
            self.progress(f"{here}: {item.name}", len(self.outcomes), self._count)
        if here is not None and broken is not None and TIERS.index(broken) < TIERS.index(here):
            pytest.skip(f"tier {broken} failed before")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        here = tier_of(item)
        if here is not None and (report.when == "call" or not report.passed):
            self._note(item, here, report, call.excinfo)
        return report

    def _note(
        self,
        item: pytest.Item,
        here: str,
        report: pytest.TestReport,
        error: pytest.ExceptionInfo[BaseException] | None,
    ) -> None:
        detail = where = ""
        if report.skipped and isinstance(report.longrepr, tuple):
            detail = str(report.longrepr[2]).removeprefix("Skipped: ")
        elif report.failed:
            self.failed.setdefault(_group(item), here)
            lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
            detail = lines[0][1:].strip() if lines else report.longreprtext.strip().splitlines()[-1]
            where = "" if error is None else _where(error.value)
        outcome = Outcome(here, item.name, report.outcome, detail, report.duration, _measured(item), where)
        self.outcomes.append(outcome)


_OTHERS = re.compile(r"[/\\](torch|numpy|hypothesis|_pytest|pluggy|concurrent)[/\\]")


def _where(error: BaseException) -> str:
    """File and line of the first error in the chain, because a device only translates the others."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _OTHERS.search(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _measured(item: pytest.Item) -> OperatorError | None:
    """The error that a test of an operator has recorded. For JUnit's report the property becomes a text."""
    found = next((value for _, value in item.user_properties if isinstance(value, OperatorError)), None)
    if found is None:
        return None
    item.user_properties[:] = [pair for pair in item.user_properties if pair[1] is not found]
    if not found.allowed:
        return None
    text = f"{found.operator} {found.dtype}: NMSE {found.nmse:.1e} of {found.allowed:.0e}"
    item.user_properties.append((OperatorError.PROPERTY, text))
    return found


def _group(item: pytest.Item) -> str:
    return item.nodeid.rsplit("::", 1)[0]
