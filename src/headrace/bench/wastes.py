"""The three wastes of a run and the processor time of its host work, from an engine's sums before and after the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

from prometheus_client.parser import text_string_to_metric_families

from headrace.engine.stats import EngineStats

__all__ = ["WASTES", "EngineSums", "between", "gauges", "parse", "sums_of_page", "sums_of_stats"]

WASTES = ("device_busy", "slot_occupancy", "kv_utilization")
_PAGE = (
    "device_busy_seconds_total", "slot_share_sum", "slot_share_count", "kv_share_sum", "kv_share_count",
    'host_cpu_seconds_total{part="engine"}', 'host_cpu_seconds_total{part="server"}',
)  # fmt: skip
"""Names of the fields of `EngineSums` on /metrics, without their prefix."""


@dataclass(frozen=True, slots=True)
class EngineSums:
    """Sums since the engine's start: seconds, and shares summed over steps and samples."""

    busy_seconds: float
    slot_shares: float
    steps: float
    kv_shares: float
    kv_samples: float
    engine_seconds: float
    server_seconds: float = 0.0


def parse(page: str) -> dict[str, float]:
    """Samples of a page in Prometheus's text format, by name and labels. Raises ValueError for another format."""
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return {_key(sample.name, sample.labels): sample.value for sample in samples}


def _key(name: str, labels: Mapping[str, str]) -> str:
    shown = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{shown}}}" if labels else name


def sums_of_page(samples: Mapping[str, float]) -> EngineSums | None:
    """The sums of a server's page; None if the page doesn't have all of them."""
    values = [samples.get(f"headrace_{name}") for name in _PAGE]
    known = [value for value in values if value is not None]
    return EngineSums(*known) if len(known) == len(values) else None


def sums_of_stats(stats: EngineStats) -> EngineSums:
    """The sums of an engine in this process."""
    totals = stats.totals
    return EngineSums(
        totals.busy_seconds,
        totals.slot_shares,
        stats.steps,
        totals.kv_shares,
        totals.kv_samples,
        totals.host_seconds,
    )


def gauges(samples: Mapping[str, float]) -> dict[str, float]:
    """The wastes over the server's own sliding window."""
    return {name: samples[f"headrace_{name}"] for name in WASTES if f"headrace_{name}" in samples}


def between(before: EngineSums, after: EngineSums, wall: float) -> tuple[dict[str, float], dict[str, float]]:
    """(wastes, processor seconds of the host work) of the `wall` seconds between two readings; both empty if the engine
    restarted between them."""
    grown = EngineSums(*(b - a for a, b in zip(astuple(before), astuple(after), strict=True)))
    if grown.steps < 0 or grown.busy_seconds < 0:
        return {}, {}
    wastes = {"device_busy": min(1.0, grown.busy_seconds / wall)}
    if grown.steps:
        wastes["slot_occupancy"] = grown.slot_shares / grown.steps
    if grown.kv_samples:
        wastes["kv_utilization"] = grown.kv_shares / grown.kv_samples
    return wastes, {"engine_host_s": grown.engine_seconds, "server_host_s": grown.server_seconds}
