"""Metrics for Prometheus: latencies and counts of requests, the engine's stats, and the three wastes.

Histograms are implemented here because one is updated per streamed token: an increment in a list, on the event loop's
thread alone. The client library's histograms take a lock.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.client.api import Output, Usage
from headrace.engine.stats import EngineStats
from headrace.engine.usage_stats import peak_memory
from headrace.server.speculation_metrics import speculation_metrics
from headrace.server.tier_metrics import tier_metrics
from headrace.server.waiting_tokens import WaitingTokens

__all__ = ["Histogram", "RequestMeter", "ServerMetrics"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_COUNTS = tuple(2**i for i in range(18))


class Histogram:
    """Counts by upper bound (inclusive), as in Prometheus."""

    def __init__(self, name: str, about: str, bounds: Sequence[float]) -> None:
        self._name, self._about, self._bounds = name, about, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def family(self) -> HistogramMetricFamily:
        total, buckets = 0, []
        for bound, count in zip((*map(float, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((str(bound), total))
        return HistogramMetricFamily(self._name, self._about, buckets, self._sum)


class ServerMetrics(Collector):
    """All metrics of one server. `stats` are the engine's latest; None while the engine does not answer."""

    def __init__(self) -> None:
        self.ttft = Histogram("headrace_time_to_first_token_seconds", "From arrival to the first token.", _SECONDS)
        self.itl = Histogram("headrace_inter_token_latency_seconds", "Between two tokens of one choice.", _SHORT)
        self.queue = Histogram("headrace_queue_time_seconds", "From arrival to the first scheduling.", _SECONDS)
        self.e2e = Histogram("headrace_request_duration_seconds", "From arrival to the last token.", _SECONDS)
        self.prompt = Histogram("headrace_request_prompt_tokens", "Prompt tokens of a request.", _COUNTS)
        self.generation = Histogram("headrace_request_generation_tokens", "Tokens generated for a request.", _COUNTS)
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.cached_tokens = 0
        self.finished: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0, "error": 0})
        self.errors: Counter[int] = Counter()
        self.tool_calls: Counter[str] = Counter({"yes": 0, "no": 0})
        """By whether the request has a tool of that name."""
        self.programs: Counter[str] = Counter({"completed": 0, "cancelled": 0, "error": 0})
        self.waiting = WaitingTokens()
        self.stats: EngineStats | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def note_program(self, how: str, usage: ProgramCounts) -> None:
        """Record the end of a program."""
        self.programs[how] += 1
        self.prompt_tokens += usage.prompt_tokens
        self.generation_tokens += usage.completion_tokens
        self.cached_tokens += usage.cached_tokens

    def collect(self) -> Iterator[Metric]:
        for histogram in (self.ttft, self.itl, self.queue, self.e2e, self.prompt, self.generation):
            yield histogram.family()
        yield CounterMetricFamily("headrace_prompt_tokens", "Prompt tokens of all requests.", self.prompt_tokens)
        yield CounterMetricFamily("headrace_generation_tokens", "Tokens generated.", self.generation_tokens)
        yield CounterMetricFamily("headrace_cached_tokens", "Prompt tokens from the prefix cache.", self.cached_tokens)
        yield _labelled("headrace_requests_finished", "Choices by how they ended.", "reason", self.finished)
        yield _labelled("headrace_tool_calls", "Tool calls, by whether the tool exists.", "known", self.tool_calls)
        yield _labelled("headrace_programs", "Programs by how they ended.", "result", self.programs)
        yield _labelled("headrace_http_errors", "Answers other than 200.", "status", self.errors)
        waiting = "Prompt tokens of requests without a first token."
        yield GaugeMetricFamily("headrace_waiting_prompt_tokens", waiting, self.waiting.total)
        yield GaugeMetricFamily("headrace_engine_up", "1 while the engine makes progress.", int(self.stats is not None))
        if self.stats is not None:
            yield from _engine(self.stats)


def _labelled(name: str, about: str, label: str, counts: Counter[str] | Counter[int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, about, labels=[label])
    for key, value in counts.items():
        family.add_metric([str(key)], value)
    return family


def _engine(stats: EngineStats) -> Iterator[Metric]:
    core = stats.scheduler
    yield GaugeMetricFamily("headrace_requests_running", "Sequences in the running batch.", core.running)
    yield GaugeMetricFamily("headrace_requests_waiting", "Sequences that wait for a place.", core.waiting)
    about = "Those among them whose KV blocks are on their way from a tier."
    yield GaugeMetricFamily("headrace_requests_fetching", about, core.fetching)
    blocks = GaugeMetricFamily("headrace_kv_blocks", "KV blocks by state; their sum is constant.", labels=["state"])
    for state, value in (("free", core.blocks_free), ("cached", core.blocks_cached), ("held", core.blocks_held)):
        blocks.add_metric([state], value)
    yield blocks
    yield GaugeMetricFamily(
        "headrace_kv_utilization", "Tokens stored over token places in held blocks.", stats.kv_utilization
    )
    yield GaugeMetricFamily("headrace_slot_occupancy", "Running sequences over the most allowed.", stats.slot_occupancy)
    yield GaugeMetricFamily("headrace_device_busy", "Share of time in which the device had work.", stats.device_busy)
    yield CounterMetricFamily("headrace_engine_steps", "Steps since start.", stats.steps)
    yield from _totals(stats)
    yield from speculation_metrics(stats.speculation)
    yield from tier_metrics(stats.tiers)
    yield CounterMetricFamily("headrace_preemptions", "Sequences set back for want of blocks.", core.preemptions)
    yield CounterMetricFamily("headrace_engine_restarts", "Times the engine was restarted.", stats.restarts)


def _totals(stats: EngineStats) -> Iterator[Metric]:
    """Totals that only grow: the difference of two readings covers the time between them."""
    totals = stats.totals
    busy = "Seconds in which the device worked on steps."
    yield CounterMetricFamily("headrace_device_busy_seconds", busy, totals.busy_seconds)
    slots = "Share of the slots that held a running sequence, a step each."
    yield SummaryMetricFamily("headrace_slot_share", slots, stats.steps, totals.slot_shares)
    places = "Share of the token places in held blocks that held a token, a look each."
    yield SummaryMetricFamily("headrace_kv_share", places, totals.kv_samples, totals.kv_shares)
    host = "Processor seconds: of the engine's loop, and of the server's process."
    family = CounterMetricFamily("headrace_host_cpu_seconds", host, labels=["part"])
    family.add_metric(["engine"], totals.host_seconds)
    family.add_metric(["server"], time.process_time())
    yield family
    held = GaugeMetricFamily("headrace_peak_memory_bytes", "The most that each process has held.", labels=["part"])
    held.add_metric(["engine"], totals.peak_bytes)
    held.add_metric(["server"], peak_memory())
    yield held


class ProgramCounts(Protocol):
    """Tokens of a program's run."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...

    @property
    def cached_tokens(self) -> int: ...


class RequestMeter:
    """Records the metrics of one request. `note` runs for every piece of output."""

    def __init__(self, metrics: ServerMetrics, arrival: float, choices: int) -> None:
        self._metrics, self._arrival = metrics, arrival
        self._open = choices
        self._last: dict[int, float] = {}
        self._noted = False
        self._finished: dict[int, str] = {}
        self.queue_seconds: float | None = None
        """Of the choice that was scheduled first."""
        self.on_first: Callable[[], None] | None = None
        """Called when the first token comes."""
        self.first_token: float | None = None
        """When the first token came, in monotonic seconds."""

    def note(self, output: Output) -> None:
        now = time.monotonic()
        self._noted = True
        if output.token_ids:
            last = self._last.get(output.index)
            if last is not None:
                count = len(output.token_ids)
                self._metrics.itl.observe((now - last) / count, count)
            self._last[output.index] = now
            if last is None:
                self._first(now, output)
        if output.finish_reason is not None:
            self._metrics.finished[output.finish_reason] += 1
            self._finished[output.index] = output.finish_reason
            self._open -= 1

    def finishes(self, how: str) -> list[str]:
        """Why the choices ended, in their order; `how` is the reason of those that had not finished."""
        return [reason for _, reason in sorted(self._finished.items())] + [how] * self._open

    def _first(self, now: float, output: Output) -> None:
        if len(self._last) == 1:
            self.first_token = now
            if self.on_first is not None:
                self.on_first()
            self._metrics.ttft.observe(now - self._arrival)
        if output.queue_time is not None:
            if self.queue_seconds is None:
                self.queue_seconds = output.queue_time
            self._metrics.queue.observe(output.queue_time)

    def close(self, usage: Usage, how: str) -> None:
        """Record the end of the request; `how` is the finish reason of the choices that had not finished. A refused
        request is not recorded. One whose client disconnected while it waited is counted, but has no latencies."""
        metrics = self._metrics
        if self._noted or how == "abort":
            metrics.finished[how] += self._open
        if not self._noted:
            return
        metrics.e2e.observe(time.monotonic() - self._arrival)
        metrics.prompt.observe(usage.prompt_tokens)
        metrics.generation.observe(usage.completion_tokens)
        metrics.prompt_tokens += usage.prompt_tokens
        metrics.generation_tokens += usage.completion_tokens
        metrics.cached_tokens += usage.cached_tokens
