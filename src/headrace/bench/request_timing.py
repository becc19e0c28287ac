"""Timing of one request, and the summary of many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["LoadSummary", "RequestTiming", "percentile", "summarize"]


@dataclass(slots=True)
class RequestTiming:
    """Measurements of one request, in seconds; all points in time are of one clock."""

    prompt_tokens: int
    start: float
    output_tokens: int = 0
    wanted: int = 0
    cached_tokens: int = 0
    accepted_drafts: int = 0
    rejected_drafts: int = 0
    ttft: float | None = None
    tpot: float | None = None
    e2e: float = 0.0
    gaps: list[float] = field(default_factory=list)
    error: str | None = None
    last: float | None = None
    """Time at which the latest piece came."""

    def piece(self, now: float) -> None:
        """Record the arrival of one token, or of several at once."""
        if self.last is None:
            self.ttft = now - self.start
        else:
            self.gaps.append(now - self.last)
        self.last = now

    def close(self, now: float) -> None:
        """Record the end of the request, successful or not."""
        self.e2e = now - self.start
        if self.ttft is not None and self.last is not None and self.output_tokens > 1:
            self.tpot = (self.last - self.start - self.ttft) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """Summary of a run: milliseconds by percentile; tokens per second of wall time."""

    requests: int
    errors: int
    short: int
    """Requests whose output has another length than requested."""
    wall_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    output_tok_s: float
    total_tok_s: float
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    itl_ms: dict[str, float]
    e2e_ms: dict[str, float]
    goodput: float
    """Share of requests without an error that met the targets given (TTFT and TPOT)."""
    first_error: str | None = None
    accepted_drafts: int = 0
    """Drafts of speculative decoding, from the requests' usage."""
    rejected_drafts: int = 0


def percentile(values: Sequence[float], p: float) -> float:
    """The percentile by linear interpolation; 0 without values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * p / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarize(
    rows: Sequence[RequestTiming], wall: float, ttft_target: float | None = None, tpot_target: float | None = None
) -> LoadSummary:
    """The summary of a run of `wall` seconds. Targets are in seconds."""
    good = [row for row in rows if row.error is None]
    prompt, output = sum(r.prompt_tokens for r in good), sum(r.output_tokens for r in good)
    errors = [row.error for row in rows if row.error is not None]
    met = [r for r in good if _met(r.ttft, ttft_target) and _met(r.tpot, tpot_target)]
    return LoadSummary(
        requests=len(rows),
        errors=len(errors),
        short=sum(r.output_tokens != r.wanted for r in good),
        wall_s=round(wall, 4),
        prompt_tokens=prompt,
        output_tokens=output,
        cached_tokens=sum(r.cached_tokens for r in good),
        output_tok_s=round(output / wall, 2),
        total_tok_s=round((prompt + output) / wall, 2),
        ttft_ms=_percentiles([r.ttft for r in good if r.ttft is not None]),
        tpot_ms=_percentiles([r.tpot for r in good if r.tpot is not None]),
        itl_ms=_percentiles([gap for r in good for gap in r.gaps]),
        e2e_ms=_percentiles([r.e2e for r in good]),
        goodput=len(met) / len(rows) if rows else 0.0,
        first_error=errors[0] if errors else None,
        accepted_drafts=sum(r.accepted_drafts for r in good),
        rejected_drafts=sum(r.rejected_drafts for r in good),
    )


def _met(value: float | None, target: float | None) -> bool:
    return target is None or value is None or value <= target


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{p}": round(percentile(values, p) * 1e3, 2) for p in (50, 90, 99)}
