"""The router's metrics in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from headrace.route.fleet import Fleet, Query
from headrace.route.policy import Placement
from headrace.route.replica import Replica

__all__ = ["RouterMetrics"]

_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0)


class RouterMetrics:
    """Thread: the event loop's."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._gauges: list[Gauge] = []

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"headrace_router_{name}", text, labels, registry=self._registry)

        def gauge(name: str, text: str) -> Gauge:
            self._gauges.append(Gauge(f"headrace_router_{name}", text, ["replica"], registry=self._registry))
            return self._gauges[-1]

        self._requests = counter("requests", "Answers by replica and status", "replica", "status")
        self.refused = counter("refused", "Requests that the router itself refused, by status", "status")
        self._placed = counter("placed", "Requests sent to each replica, tries included", "replica")
        self._unserved = counter("unserved", "Requests that a replica got and did not answer", "replica")
        self.retries = counter("retries", "Requests that were sent to a second replica")
        self.broken = counter("broken", "Streams that ended with an error after they had begun")
        self.continued = counter("continued", "Streams that went on at another replica after they had begun")
        self.splits = counter("splits", "Requests whose prompt another engine computed first")
        self.early = counter("early_tokens", "Streams whose first token the engine that computed the prompt gave")
        self.prompt = counter("prompt_tokens", "Tokens of the prompts that were read")
        self.expected = counter("expected_cached_tokens", "Prompt tokens that the index expected in the cache")
        self.cached = counter("cached_tokens", "Prompt tokens that the engines reported as cached")
        self.seconds = Histogram(
            "headrace_router_placing_seconds",
            "Time from a request's last byte to its sending: reading the prompt, and the choice",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._ready = gauge("ready", "1 if the replica gets requests")
        self._queued = gauge("queued_tokens", "Prompt tokens sent there whose requests have no token yet")
        self._running = gauge("running", "Sequences that produce tokens there")
        self._blocks = gauge("index_blocks", "Cached blocks that the index knows there")
        self._ejections = gauge("ejections", "How often the replica was ejected")
        self._rate = gauge("prefill_ms_per_token", "Measured milliseconds per prompt token")
        self._restarts = gauge("restarts", "How often the replica was started again, by a router that starts it")

    def placed(self, replica: Replica, placement: Placement, query: Query) -> None:
        self._placed.labels(replica.number).inc()
        self.prompt.inc(query.tokens)
        self.expected.inc(placement.cached)

    def unserved(self, replica: Replica) -> None:
        self._unserved.labels(replica.number).inc()

    def answered(self, replica: Replica, status: int) -> None:
        self._requests.labels(replica.number, status).inc()

    def render(self, fleet: Fleet, restarts: Mapping[int, int] = MappingProxyType({})) -> bytes:
        """`restarts`: of each replica that the router starts."""
        # Replicas come and go: one that has gone has no figures.
        for one in self._gauges:
            one.clear()
        for number, times in restarts.items():
            self._restarts.labels(number).set(times)
        for replica in fleet.replicas:
            label, load = replica.number, replica.load
            self._ready.labels(label).set(replica.usable)
            self._queued.labels(label).set(load.queued)
            self._running.labels(label).set(load.running)
            self._blocks.labels(label).set(fleet.index.size(replica.name))
            self._ejections.labels(label).set(replica.ejections)
            self._rate.labels(label).set(load.rates.prefill)
        return generate_latest(self._registry)
