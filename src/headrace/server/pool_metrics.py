"""The metrics of several models in one text: each model's own, with the label `model`, and what the pool adds."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headrace.server.metrics import ServerMetrics
from headrace.server.model_pool import ModelPool

__all__ = ["pool_metrics"]

_OF_SERVER = {("part", "server")}
"""Labels of samples about the server's own process, which all models share."""


def pool_metrics(pool: ModelPool, front: ServerMetrics) -> bytes:
    """In Prometheus's text format. `front`: the answers that belong to no model."""
    registry = CollectorRegistry()
    registry.register(_PoolCollector(pool, front))
    return generate_latest(registry)


class _PoolCollector(Collector):
    def __init__(self, pool: ModelPool, front: ServerMetrics) -> None:
        self._pool, self._front = pool, front

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, model in self._pool.models.items():
            for family in model.metrics.collect():
                _add(families, family, name)
        for family in self._front.collect():
            if family.name == "headrace_http_errors":
                _add(families, family, "")
        yield from families.values()
        yield from self._own()

    def _own(self) -> Iterator[Metric]:
        loaded = GaugeMetricFamily("headrace_model_loaded", "1 while the model is loaded.", labels=["model"])
        memory = GaugeMetricFamily(
            "headrace_model_memory_bytes", "Memory of a loaded model, with its KV cache.", labels=["model"]
        )
        loads = CounterMetricFamily("headrace_model_loads", "Times that the model was loaded.", labels=["model"])
        waiting = GaugeMetricFamily(
            "headrace_model_requests_waiting", "Requests that wait for the model to be loaded.", labels=["model"]
        )
        for name, model in self._pool.models.items():
            there = model.context is not None
            loaded.add_metric([name], int(there))
            memory.add_metric([name], model.cost if there else 0)
            loads.add_metric([name], model.loads)
            waiting.add_metric([name], len(model.waiters))
        yield from (loaded, memory, loads, waiting)
        limit = self._pool.limits.memory
        if limit is not None:
            yield GaugeMetricFamily("headrace_models_memory_limit_bytes", "Of all loaded models together.", limit)


def _add(families: dict[str, Metric], family: Metric, model: str) -> None:
    """Add a model's samples to the family of the same name. Those of the server's process are there once."""
    own = [sample for sample in family.samples if not _OF_SERVER & set(sample.labels.items())]
    shared = [sample for sample in family.samples if _OF_SERVER & set(sample.labels.items())]
    known = families.get(family.name)
    if known is None:
        known = families[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
        known.samples += shared
    known.samples += [sample._replace(labels={"model": model, **sample.labels}) for sample in own]
