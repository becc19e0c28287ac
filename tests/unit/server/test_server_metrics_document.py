"""Every metric of /metrics is described in the documents, and every name in the tables exists."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from pool_fakes import plan, pool_server
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from server_fakes import STATS

from headrace.core.block_source import TierStats
from headrace.route.fleet import Fleet
from headrace.route.router_metrics import RouterMetrics
from headrace.server.metrics import ServerMetrics

DOCS = Path(__file__).parents[3] / "docs"


def shown(families: Iterable[Metric]) -> set[str]:
    """The families by the names that the text format gives them; of a sum with a count the name of the sum."""
    ends = {"counter": "_total", "summary": "_sum"}
    return {family.name + ends.get(family.type, "") for family in families}


def test_the_table_of_the_server_is_complete() -> None:
    metrics = ServerMetrics()
    metrics.stats = replace(STATS, tiers=(TierStats("host", 2, 20, 1),))
    section = (DOCS / "server.md").read_text().split("\n## Metrics\n")[1].split("\n## ")[0]
    described = set(re.findall(r"^\| (.*?) \|", section, re.M))
    names = {name for cell in described for name in re.findall(r"headrace_\w+", cell)}
    assert names == shown(metrics.collect())


def test_the_metrics_of_several_models_are_described() -> None:
    async def text() -> str:
        async with pool_server(plan("a"), plan("b"), models_memory=1 << 40) as server:
            return (await server.http.get("/metrics")).text

    names = {name for name in shown(text_string_to_metric_families(asyncio.run(text()))) if "_model" in name}
    line = next(part for part in (DOCS / "models.md").read_text().split("\n- ") if part.startswith("`/metrics`"))
    assert names == abbreviated(line, "headrace_model_")


def test_the_metrics_of_the_router_are_described() -> None:
    names = shown(text_string_to_metric_families(RouterMetrics().render(Fleet([])).decode()))
    text = (DOCS / "routing.md").read_text()
    found = text[text.index("`headrace_router_expected") :].split("\n## ")[0]
    assert {name for name in names if not name.endswith("_created")} == abbreviated(found, "headrace_router_")


def abbreviated(text: str, start: str) -> set[str]:
    """The names in code, of which `..._x` begins as `start` does."""
    return set(re.findall(r"`(headrace_\w+)`", text)) | {start + end for end in re.findall(r"`\.\.\._(\w+)`", text)}
