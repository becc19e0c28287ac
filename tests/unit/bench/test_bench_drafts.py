"""What a run drafted: from the server's counters, else from the usage of its requests; and the table of it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from test_bench_wastes import SCHEDULER, page

from headrace.bench.bench_report import as_json, print_report
from headrace.bench.draft_counts import DraftCounts, drafts_of_page, drafts_of_run, drafts_of_stats
from headrace.bench.load_runs import LoadRun, load_report
from headrace.bench.request_timing import RequestTiming, summarize
from headrace.bench.wastes import parse
from headrace.bench.workloads import WORKLOADS
from headrace.engine.stats import EngineStats, MethodTotals, SpeculationTotals

BEFORE = SpeculationTotals(0.25, (MethodTotals("ngram", 10, (10, 5), (6, 2)),))
AFTER = SpeculationTotals(0.75, (MethodTotals("ngram", 14, (14, 7), (9, 3)), MethodTotals("predicted", 4, (4,), (4,))))
GROWN = {
    "drafted": 10.0,
    "accepted": 8.0,
    "rounds": 8.0,
    "mean_accepted_length": 2.0,
    "drafting_s": 0.5,
}
SILENT = summarize([RequestTiming(4, 0.0, output_tokens=5, e2e=1.0)], 1.0)
TOLD = summarize([RequestTiming(4, 0.0, output_tokens=5, e2e=1.0, accepted_drafts=3, rejected_drafts=1)] * 2, 1.0)


def stats(totals: SpeculationTotals) -> EngineStats:
    return EngineStats(SCHEDULER, 16, 100, 0.1, 0.2, 0.3, speculation=totals)


def test_counters_cover_the_run_alone() -> None:
    direct = drafts_of_stats(BEFORE), drafts_of_stats(AFTER)
    assert drafts_of_run(*direct, TOLD) == GROWN
    assert tuple(drafts_of_page(parse(page(stats(one)))) for one in (BEFORE, AFTER)) == direct


def test_without_drafts_there_is_nothing_to_report() -> None:
    same = drafts_of_stats(BEFORE)
    assert drafts_of_run(same, same, SILENT) == {}
    assert drafts_of_run(None, None, SILENT) == {}
    assert drafts_of_page(parse(page(stats(SpeculationTotals())))) == DraftCounts()
    assert drafts_of_page({"headrace_engine_steps_total": 5.0}) is None


def test_usage_counts_where_there_are_no_counters() -> None:
    assert drafts_of_run(None, None, TOLD) == {"drafted": 8, "accepted": 6}
    restarted = drafts_of_stats(AFTER), DraftCounts()
    assert drafts_of_run(*restarted, TOLD) == {"drafted": 8, "accepted": 6}


def test_counters_of_another_engine() -> None:
    text = "\n".join(
        f'vllm:spec_decode_num_{name}_total{{engine="{engine}",model_name="m"}} {value}'
        for engine in (0, 1)
        for name, value in (("drafts", 5), ("draft_tokens", 15), ("accepted_tokens", 10))
    )
    found = drafts_of_page(parse(f"{text}\n"))
    assert found == DraftCounts(10, 30, 20)
    assert drafts_of_run(DraftCounts(), found, SILENT) == {
        "drafted": 30,
        "accepted": 20,
        "rounds": 10,
        "mean_accepted_length": 3.0,
    }


@pytest.mark.parametrize("speculation", [{}, {"drafted": 8.0, "accepted": 6.0}, GROWN])
def test_the_report_shows_drafts_beside_the_speed(speculation: dict[str, float]) -> None:
    run = LoadRun(WORKLOADS["edit"], 0, [], SILENT, speculation=speculation)
    report, said = load_report("label", [run], {}), io.StringIO()
    print_report(report, Console(file=said, width=200))
    assert as_json(report)["runs"][0]["speculation"] == speculation
    assert ("mean accepted length" in said.getvalue()) == bool(speculation)
    if speculation:
        table = said.getvalue().partition("speculative decoding")[2]
        share = f"{speculation['accepted'] / speculation['drafted']:.0%}"
        assert share in table
        assert ("2.00" in table and "500" in table) == ("rounds" in speculation)
