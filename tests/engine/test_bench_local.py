"""`headrace bench` on a tiny model: in this process, through a server, and compared with transformers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_harness import NAME, Server, running

from headrace.bench.dispatch import main
from headrace.bench.local_engine import open_engine
from headrace.bench.offline_load import check_prompts, run_in_process
from headrace.bench.workloads import WORKLOADS, Prompt, Workload
from headrace.errors import ConfigError, HeadraceError

SMALL = Workload("small", 5, 2, (8, 24), (2, 6))
KEY = "secret"


def figures(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[Server]:
    with running(tiny_llama, api_key=KEY) as served:
        yield served


def test_a_workload_in_process(tiny_llama: Path) -> None:
    engine, encode = open_engine(str(tiny_llama), {"threads": 1, "max_num_seqs": 4})
    try:
        one, same, other = (run_in_process(engine, SMALL, encode, seed=seed) for seed in (0, 0, 1))
        with pytest.raises(HeadraceError, match="512"):
            check_prompts([Prompt((5,) * 600, 2)], engine.info)
        assert not engine.core.has_work()
    finally:
        engine.close()
    assert (one.summary.requests, one.summary.errors, one.summary.short) == (5, 0, 0)
    assert one.summary.output_tokens == other.summary.output_tokens
    assert same.summary.cached_tokens > one.summary.cached_tokens, "the same prompts again"
    assert all(row.ttft and len(row.gaps) == row.output_tokens - 1 for row in one.rows)
    assert all(row.start + (row.ttft or 0.0) <= (row.last or 0.0) for row in one.rows)
    assert 0 < one.wastes["device_busy"] <= 1
    assert 0.25 <= one.wastes["slot_occupancy"] <= 0.5, "one or two of four"
    assert 0 < one.wastes["kv_utilization"] <= 1
    assert one.usage["peak_rss_bytes"] > 1e7
    assert one.usage["engine_host_s"] > 0
    assert min(one.usage["cpu_s"], one.usage["others_cpu_s"]) >= 0


def test_offline_reports_are_compared(tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page = tmp_path / "out", tmp_path / "page"
    shared = ["--workload", "W1", "W2", "--requests", "2", "--repeat", "2", "--threads", "1", "--quantize", "int8"]
    assert main(["offline", str(tiny_llama), *shared, "--json", str(out), "--html", str(page)]) == 0
    assert "W2 (1)" in capsys.readouterr().out
    report = figures(out)
    runs = [(run["workload"]["name"], run["seed"]) for run in report["runs"]]
    assert runs == [("W1", 0), ("W1", 1), ("W2", 0), ("W2", 1)]
    assert report["facts"]["quantize"] == "int8"
    assert page.read_text().count("<svg") == 8
    assert main(["compare", str(out), str(out), "--json", str(tmp_path / "ratios")]) == 0
    ratios = figures(tmp_path / "ratios")["ratios"]
    assert [(one["workload"], one["metric"], one["median"], one["pairs"]) for one in ratios] == [
        (workload, metric, 1.0, 2)
        for workload in ("W1", "W2")
        for metric in ("out tok/s", "TTFT p50 ms", "TPOT p50 ms", "peak MB")
    ]


def test_a_local_server_is_found_and_only_its_run_counts(
    server: Server, tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    options = ["--url", server.url, "--model", NAME, "--tokenizer", str(tiny_llama), "--api-key", KEY]
    load = ["--workload", "W1", "--requests", "2", "--json", str(out)]
    assert main(["serve", *options, *load]) == 0
    assert "peak MB" in capsys.readouterr().out
    report = figures(out)
    (run,) = report["runs"]
    assert report["facts"]["process"] == server.process.pid
    (words,) = report["notes"]  # and no warning
    assert words.startswith("W1: 2 requests, 1 at a time")
    assert run["wastes_from"] == "counters"
    assert run["wastes"]["slot_occupancy"] == pytest.approx(1 / 8), "one request at a time, and eight slots"
    assert run["usage"].keys() == {
        "client_cpu_s",
        "engine_host_s",
        "server_host_s",
        "peak_rss_bytes",
        "cpu_s",
        "others_cpu_s",
    }
    assert 0 < run["usage"]["engine_host_s"] <= run["usage"]["cpu_s"] + 0.1
    assert run["usage"]["server_host_s"] > 0
    with pytest.raises(ConfigError, match="--server-pid"):
        main(["serve", *options, *load, "--server-pid", str(2**22 + os.getpid())])


def test_a_server_gives_the_perplexity_of_the_engine_in_this_process(
    server: Server, tiny_llama: Path, tmp_path: Path
) -> None:
    text, here, there = (tmp_path / name for name in ("text", "here", "there"))
    text.write_text("The headrace of a mill brings water to the wheel, whichever wheel hangs there. " * 3)
    shared = ["perplexity", str(tiny_llama), str(text), "--window", "64"]
    assert main([*shared, "--threads", "1", "--json", str(here)]) == 0
    remote = ["--url", server.url, "--served-model", NAME, "--api-key", KEY]
    assert main([*shared, *remote, "--json", str(there)]) == 0
    local, other = figures(here), figures(there)
    assert len(local["running"]) == 3
    assert local["tokens_scored"] == 3 * 31
    assert other["running"] == local["running"], "the same engine, to the bit"
    with pytest.raises(ConfigError, match="HTTP 401"):
        main([*shared, *remote[:4]])
    rough = tmp_path / "rough"
    assert main([*shared, "--threads", "1", "--quantize", "int8", "--json", str(rough)]) == 0
    assert figures(rough)["perplexity"] != local["perplexity"]
    assert figures(rough)["perplexity"] == pytest.approx(local["perplexity"], rel=0.2)


def test_static_batches_are_compared_with_our_engine(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(WORKLOADS, SMALL.name, SMALL)
    out, page = tmp_path / "out", tmp_path / "page"
    options = ["--workload", SMALL.name, "--requests", "3", "--batch", "2", "--threads", "1"]
    assert main(["naive", str(tiny_llama), *options, "--json", str(out), "--html", str(page)]) == 0
    assert "above 1 ours is better" in capsys.readouterr().out
    report = figures(out)
    naive, ours = report["ways"]
    assert naive["output_tokens"] == ours["output_tokens"] > 0
    assert naive["slot_occupancy"] < 1, "the shorter of two waits for the longer"
    assert min(naive["peak_bytes"], ours["peak_bytes"]) > 1e7
    rates = [way["output_tokens"] / way["wall_s"] for way in (naive, ours)]
    assert report["ratios"]["output_tok_s"] == pytest.approx(rates[1] / rates[0])
    assert report["ratios"]["peak_bytes"] == pytest.approx(naive["peak_bytes"] / ours["peak_bytes"])
    assert page.read_text().count("<svg") == 2
