"""The report of a run: a table, JSON, and a badge text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from headrace.conformance.tier_plugin import OperatorError, Outcome
from headrace.conformance.tiers import TIERS
from headrace.types import API_VERSION

__all__ = ["KitReport"]


@dataclass(frozen=True, slots=True)
class KitReport:
    """All outcomes of one backend."""

    backend: str
    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """At least one test ran and none failed."""
        results = [o.result for o in self.outcomes]
        return "passed" in results and "failed" not in results

    @property
    def badge(self) -> str:
        """`contract 1.0: 212 of 212`: passed tests, of all that were not skipped for an undeclared capability."""
        counts = Counter(o.result for o in self.outcomes)
        blocked = sum(o.result == "skipped" and o.detail.startswith("tier ") for o in self.outcomes)
        total = counts["passed"] + counts["failed"] + blocked
        return f"contract {API_VERSION[0]}.{API_VERSION[1]}: {counts['passed']} of {total}"

    @property
    def measured(self) -> tuple[OperatorError, ...]:
        """The largest error of every operator and dtype that was compared with its reference."""
        return tuple(o.measured for o in self.outcomes if o.measured is not None)

    def json(self) -> str:
        body = {
            "backend": self.backend,
            "badge": self.badge,
            "ok": self.ok,
            "tests": [asdict(o) for o in self.outcomes],
        }
        return json.dumps(body, indent=1)

    def table(self) -> str:
        """One line per tier, one per operator and dtype, then every failure and each distinct reason of a skip."""
        lines = [f"{self.backend}: {self.badge}", f"{'tier':<14}{'passed':>8}{'failed':>8}{'skipped':>9}"]
        for tier in TIERS:
            counts = Counter(o.result for o in self.outcomes if o.tier == tier)
            lines.append(f"{tier:<14}{counts['passed']:>8}{counts['failed']:>8}{counts['skipped']:>9}")
        if self.measured:
            lines.append(f"{'operator':<20}{'dtype':<10}{'worst NMSE':>12}{'allowed':>9}")
        lines += [f"{m.operator:<20}{m.dtype:<10}{m.nmse:>12.1e}{m.allowed:>9.0e}" for m in self.measured]
        lines += [
            f"FAILED {o.tier}: {o.name}: {o.detail}" + (f" ({o.where})" if o.where else "")
            for o in self._with("failed")
        ]
        reasons = Counter((o.tier, o.detail) for o in self._with("skipped"))
        lines += [f"skipped {tier}: {detail} ({count})" for (tier, detail), count in sorted(reasons.items())]
        return "\n".join(lines)

    def _with(self, result: str) -> Sequence[Outcome]:
        return [o for o in self.outcomes if o.result == result]
