#!/usr/bin/env python3
"""Writes ops/grafana/headrace.json, a dashboard of all metrics that an operator watches. Run it after a change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent.parent / "ops" / "grafana" / "headrace.json"
_JOB = '{job="$job", instance=~"$instance"}'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3


def rate(name: str, labels: str = "") -> str:
    return f"rate({name}{_with(labels)}[$__rate_interval])"


def _with(labels: str) -> str:
    return _JOB.replace("}", f", {labels}}}") if labels else _JOB


def quantile(share: float, name: str) -> str:
    return f"histogram_quantile({share}, sum by (le) ({rate(f'{name}_bucket')}))"


def quantiles(name: str) -> list[tuple[str, str]]:
    return [(quantile(share, name), f"p{share * 100:g}") for share in (0.5, 0.9, 0.99)]


# Title, unit, whether the series are stacked, (expression, legend) of each.
PANELS: list[tuple[str, str, bool, list[tuple[str, str]]]] = [
    (
        "Requests",
        "short",
        False,
        [(f"headrace_requests_running{_JOB}", "running"), (f"headrace_requests_waiting{_JOB}", "waiting")],
    ),
    (
        "Tokens a second",
        "short",
        False,
        [
            (f"sum({rate('headrace_generation_tokens_total')})", "generated"),
            (f"sum({rate('headrace_prompt_tokens_total')})", "prompt"),
            (f"sum({rate('headrace_cached_tokens_total')})", "of it cached"),
        ],
    ),
    (
        "Requests ended a second",
        "short",
        True,
        [(f"sum by (reason) ({rate('headrace_requests_finished_total')})", "{{reason}}")],
    ),
    ("Time to first token", "s", False, quantiles("headrace_time_to_first_token_seconds")),
    ("Time per output token", "s", False, quantiles("headrace_inter_token_latency_seconds")),
    ("Duration of requests", "s", False, quantiles("headrace_request_duration_seconds")),
    ("Time in the queue", "s", False, quantiles("headrace_queue_time_seconds")),
    ("Prompt tokens without an answer", "short", False, [(f"headrace_waiting_prompt_tokens{_JOB}", "waiting")]),
    ("Errors a second", "short", True, [(f"sum by (status) ({rate('headrace_http_errors_total')})", "{{status}}")]),
    ("KV blocks", "short", True, [(f"sum by (state) (headrace_kv_blocks{_JOB})", "{{state}}")]),
    (
        "Prompt tokens from the prefix cache",
        "percentunit",
        False,
        [
            (
                f"sum({rate('headrace_cached_tokens_total')}) / sum({rate('headrace_prompt_tokens_total')})",
                "share",
            )
        ],
    ),
    (
        "The three wastes",
        "percentunit",
        False,
        [
            (f"headrace_device_busy{_JOB}", "device busy"),
            (f"headrace_slot_occupancy{_JOB}", "slots in use"),
            (f"headrace_kv_utilization{_JOB}", "KV places in use"),
        ],
    ),
    (
        "Accepted drafts",
        "percentunit",
        False,
        [
            (
                f"sum by (method) ({rate('headrace_speculation_accepted_tokens_total')}) / "
                f"sum by (method) ({rate('headrace_speculation_drafted_tokens_total')})",
                "{{method}}",
            )
        ],
    ),
    (
        "Preemptions and restarts",
        "short",
        False,
        [
            (f"increase(headrace_preemptions_total{_JOB}[$__rate_interval])", "preemptions"),
            (f"increase(headrace_engine_restarts_total{_JOB}[$__rate_interval])", "restarts of the engine"),
        ],
    ),
    ("Peak memory", "bytes", False, [(f"headrace_peak_memory_bytes{_JOB}", "{{part}}")]),
    ("Processor time of the host", "short", False, [(rate("headrace_host_cpu_seconds_total"), "{{part}}")]),
    (
        "Length of prompts and answers",
        "short",
        False,
        [
            (quantile(0.5, "headrace_request_prompt_tokens"), "prompt p50"),
            (quantile(0.99, "headrace_request_prompt_tokens"), "prompt p99"),
            (quantile(0.5, "headrace_request_generation_tokens"), "answer p50"),
            (quantile(0.99, "headrace_request_generation_tokens"), "answer p99"),
        ],
    ),
    (
        "Engine",
        "short",
        False,
        [(f"headrace_engine_up{_JOB}", "up"), (rate("headrace_engine_steps_total"), "steps a second")],
    ),
]


def panel(number: int, title: str, unit: str, stacked: bool, series: list[tuple[str, str]]) -> dict[str, Any]:
    custom = {"drawStyle": "line", "fillOpacity": 30 if stacked else 5, "showPoints": "never"}
    custom["stacking"] = {"mode": "normal" if stacked else "none", "group": "A"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % _COLUMNS * _WIDTH,
            "y": number // _COLUMNS * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for at, (expression, legend) in enumerate(series)
        ],
    }


def variable(name: str, label: str, query: str, **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        **more,
    }


def dashboard() -> str:
    """The complete file."""
    whole = {
        "uid": "headrace",
        "title": "Headrace",
        "tags": ["headrace", "llm"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
                variable("job", "Job", "label_values(headrace_engine_up, job)"),
                variable(
                    "instance",
                    "Server",
                    'label_values(headrace_engine_up{job="$job"}, instance)',
                    includeAll=True,
                    multi=True,
                    allValue=".*",
                ),
            ]
        },
        "panels": [panel(number, *row) for number, row in enumerate(PANELS)],
    }
    return json.dumps(whole, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(dashboard())
