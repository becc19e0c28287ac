"""Readings of a running server: its metrics and its engine's state, and what two of them say about the time between."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from headrace.server_address import server_address, transport_fault

__all__ = ["Reader", "Reading", "Window", "quantile"]

_TIMEOUT = 3.0
"""Seconds for one answer."""
_WINDOW = 10.0
"""Seconds over which rates and quantiles are taken."""
_Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Reading:
    at: float
    """Monotonic seconds."""
    samples: Mapping[str, Mapping[_Labels, float]] = field(default_factory=dict)
    """Name → labels → value, as `/metrics` has them."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """What `/v1/engine/state` answers."""
    fault: str = ""
    """Why there is no answer; empty if there is one."""
    heard: bool = True
    """The server gave an answer, if perhaps one of no use."""

    def value(self, name: str, **labels: str) -> float:
        """The sum over all series with these labels; 0 without any."""
        wanted = set(labels.items())
        return sum(value for found, value in self.samples.get(name, {}).items() if wanted <= set(found))


class Reader:
    """Asks one server. Any thread, one at a time."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        transport: httpx.BaseTransport | None = None,
        model: str | None = None,
        option: str = "--url ",
    ) -> None:
        """`model`: the one of several that is read; None: the figures of all, and the state of the last that was
        used. `option`: as of `server_address`. Raises ConfigError for an address that is none."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        address = server_address(url, option)
        options = address.options if transport is None else {"transport": transport}
        self._model = model
        self._http = httpx.Client(base_url=address.url, headers=headers, timeout=_TIMEOUT, **options)

    def read(self) -> Reading:
        """Never raises for a server that does not answer, or answers with an error."""
        try:
            text = self._get("/metrics").text
            named = {} if self._model is None else {"model": self._model}
            state = self._get("/v1/engine/state", named).json()
            return Reading(time.monotonic(), self._own(parse_metrics(text)), state)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return Reading(time.monotonic(), fault=_described(error), heard=not isinstance(error, httpx.TransportError))

    def _own(self, samples: dict[str, dict[_Labels, float]]) -> dict[str, dict[_Labels, float]]:
        """Without those of other models."""
        if self._model is None:
            return samples
        keeps = {None, self._model}
        return {
            name: {labels: value for labels, value in series.items() if dict(labels).get("model") in keeps}
            for name, series in samples.items()
        }

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> httpx.Response:
        answer = self._http.get(path, params=params)
        answer.raise_for_status()
        return answer

    def close(self) -> None:
        self._http.close()


def parse_metrics(text: str) -> dict[str, dict[_Labels, float]]:
    """Raises ValueError for what is not Prometheus's text format."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[str, dict[_Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def _described(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        status = error.response.status_code
        if status == 401:
            return "it needs a key: --api-key, or HEADRACE_API_KEY"
        if status == 501:
            return "it is a router, which has no engine of its own: give the address of one of its engines"
        return f"it answers {status}, and not as a Headrace server does"
    return transport_fault(error)


class Window:
    """The readings of the last seconds."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque()

    def add(self, reading: Reading) -> None:
        """Counters that fall belong to a server that has started anew: what was before it is dropped."""
        steps = "headrace_prompt_tokens_total"
        if self._readings and reading.value(steps) < self._readings[-1].value(steps):
            self._readings.clear()
        self._readings.append(reading)
        while len(self._readings) > 2 and self._readings[1].at <= reading.at - _WINDOW:
            self._readings.popleft()

    @property
    def last(self) -> Reading | None:
        return self._readings[-1] if self._readings else None

    @property
    def seconds(self) -> float:
        return self._readings[-1].at - self._readings[0].at if self._readings else 0.0

    def growth(self, name: str, **labels: str) -> float:
        """How much a counter has grown over the window."""
        if not self._readings:
            return 0.0
        return self._readings[-1].value(name, **labels) - self._readings[0].value(name, **labels)

    def rate(self, name: str, **labels: str) -> float | None:
        """The same a second; None until there are two readings."""
        return self.growth(name, **labels) / self.seconds if self.seconds > 0 else None

    def quantile(self, name: str, share: float) -> float | None:
        """Of a histogram over the window, or since the server's start if nothing came in the window."""
        if not self._readings:
            return None
        first, last = self._readings[0], self._readings[-1]
        bounds, before = _buckets(last, name), _buckets(first, name)
        grown = {bound: value - before.get(bound, 0.0) for bound, value in bounds.items()}
        return quantile(grown if grown.get(math.inf) else bounds, share)


def _buckets(reading: Reading, name: str) -> dict[float, float]:
    """Counts by upper bound, of all models together."""
    found: dict[float, float] = {}
    for labels, value in reading.samples.get(f"{name}_bucket", {}).items():
        bound = float(dict(labels)["le"])
        found[bound] = found.get(bound, 0.0) + value
    return found


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Of cumulative counts by upper bound, as Prometheus's `histogram_quantile` estimates it; None if nothing was
    counted."""
    total = buckets.get(math.inf, 0.0)
    if not total:
        return None
    wanted, below, counted = share * total, 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= wanted:
            if math.isinf(bound):
                return below
            return below + (bound - below) * (wanted - counted) / max(count - counted, 1e-12)
        below, counted = bound, count
    return below
