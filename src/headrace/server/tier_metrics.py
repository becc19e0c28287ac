"""Metrics of the tiers that keep KV blocks beside the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from headrace.engine.stats import TierStats

__all__ = ["tier_metrics"]

_GAUGES = (
    ("headrace_tier_blocks", "KV blocks that a tier holds for this model.", "blocks"),
    ("headrace_tier_bytes", "Bytes that a tier holds, of all models.", "bytes"),
)
_COUNTERS = (
    ("headrace_tier_hits", "KV blocks that a tier has delivered.", "hits"),
    ("headrace_tier_misses", "KV blocks that a tier was asked for and did not have.", "misses"),
    ("headrace_tier_stored", "KV blocks that a tier has taken.", "stored"),
    ("headrace_tier_failures", "Reads and writes of a tier that failed.", "failures"),
    ("headrace_tier_read_seconds", "Seconds that a tier has spent in reads.", "read_seconds"),
    ("headrace_tier_write_seconds", "Seconds that a tier has spent in writes.", "write_seconds"),
)


def tier_metrics(tiers: Sequence[TierStats]) -> Iterator[Metric]:
    """One family per figure, with the tier's name as label; none without tiers."""
    for kind, table in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
        for name, about, field in table if tiers else ():
            family = kind(name, about, labels=["tier"])
            for tier in tiers:
                family.add_metric([tier.name], getattr(tier, field))
            yield family
