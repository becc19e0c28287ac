"""Metrics of speculative decoding, for Prometheus.

`headrace_speculation_mean_accepted_length` counts the token that the model samples after the accepted drafts, as vLLM
and SGLang do.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from headrace.engine.stats import SpeculationTotals

__all__ = ["speculation_metrics"]


def speculation_metrics(totals: SpeculationTotals) -> Iterator[Metric]:
    """Counters by method, and by position in the draft, where 0 is its first token. A method appears with its first
    draft."""
    places = ["method", "position"]
    drafted = CounterMetricFamily(
        "headrace_speculation_drafted_tokens", "Drafts, of which some became output.", labels=places
    )
    accepted = CounterMetricFamily(
        "headrace_speculation_accepted_tokens", "Drafts that became tokens of the output.", labels=places
    )
    rejected = CounterMetricFamily(
        "headrace_speculation_rejected_tokens", "Drafts that became no tokens of the output.", labels=places
    )
    rounds = CounterMetricFamily(
        "headrace_speculation_rounds", "Verifications of at least one draft of a sequence.", labels=["method"]
    )
    length = GaugeMetricFamily(
        "headrace_speculation_mean_accepted_length",
        "Tokens of a round since the start: accepted drafts, and the one that the model samples after them.",
        labels=["method"],
    )
    for method in totals.methods:
        for position, (all_of_them, right) in enumerate(zip(method.drafted, method.accepted, strict=True)):
            labels = [method.method, str(position)]
            drafted.add_metric(labels, all_of_them)
            accepted.add_metric(labels, right)
            rejected.add_metric(labels, all_of_them - right)
        rounds.add_metric([method.method], method.rounds)
        length.add_metric([method.method], method.mean_length)
    yield from (drafted, accepted, rejected, rounds, length)
    about = "Seconds that the engine's loop spent in drafters, a draft model's included, and in the choice of drafts."
    yield CounterMetricFamily("headrace_speculation_drafting_seconds", about, totals.seconds)
