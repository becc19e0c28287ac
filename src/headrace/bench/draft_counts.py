"""What a run drafted by speculative decoding, from totals before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.bench.request_timing import LoadSummary
from headrace.engine.stats import SpeculationTotals

__all__ = ["DraftCounts", "drafts_of_page", "drafts_of_run", "drafts_of_stats"]

_PAGES = (
    (
        "headrace_speculation_rounds_total",
        "headrace_speculation_drafted_tokens_total",
        "headrace_speculation_accepted_tokens_total",
        "headrace_speculation_drafting_seconds_total",
    ),
    (
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total",
        "",
    ),
)
"""Names of the fields of `DraftCounts` on /metrics, of our server and of another; summed over their labels."""


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Totals since the engine's start."""

    rounds: float = 0.0
    """Verifications of at least one draft of a sequence."""
    drafted: float = 0.0
    accepted: float = 0.0
    seconds: float = 0.0
    """Of the host, for the drafts; 0 if unknown."""

    def since(self, before: DraftCounts) -> DraftCounts:
        return DraftCounts(
            self.rounds - before.rounds,
            self.drafted - before.drafted,
            self.accepted - before.accepted,
            self.seconds - before.seconds,
        )


def drafts_of_page(samples: Mapping[str, float]) -> DraftCounts | None:
    """The totals of a server's page; None if it has none."""
    for names in _PAGES:
        if any(key.partition("{")[0] in names for key in samples):
            return DraftCounts(*(_sum(samples, name) for name in names))
    return None


def _sum(samples: Mapping[str, float], name: str) -> float:
    return sum(value for key, value in samples.items() if key.partition("{")[0] == name)


def drafts_of_stats(totals: SpeculationTotals) -> DraftCounts:
    """The totals of an engine in this process."""
    return DraftCounts(
        sum(method.rounds for method in totals.methods),
        sum(sum(method.drafted) for method in totals.methods),
        sum(sum(method.accepted) for method in totals.methods),
        totals.seconds,
    )


def drafts_of_run(before: DraftCounts | None, after: DraftCounts | None, summary: LoadSummary) -> dict[str, float]:
    """`drafted` and `accepted` tokens, and if they are known `rounds`, `mean_accepted_length` (of a round: the accepted
    drafts and the token after them) and `drafting_s`, in the form of `LoadRun`; empty if nothing was drafted. Without
    totals, or if the engine restarted between them, the requests' usage counts."""
    counts = None if before is None or after is None else after.since(before)
    if counts is None or min(counts.rounds, counts.drafted, counts.accepted) < 0:
        drafted = summary.accepted_drafts + summary.rejected_drafts
        return {"drafted": drafted, "accepted": summary.accepted_drafts} if drafted else {}
    if not counts.drafted:
        return {}
    found = {"drafted": counts.drafted, "accepted": counts.accepted}
    if counts.rounds:
        found |= {"rounds": counts.rounds, "mean_accepted_length": 1 + counts.accepted / counts.rounds}
    return found | ({"drafting_s": counts.seconds} if counts.seconds else {})
