"""Runs a workload on an engine in this process, without HTTP, text or a second thread.

Requests go to the engine's core, and tokens are read after each of its steps. Other engines that can be called in this
way are measured in the same way, so that the results compare.
"""

from __future__ import annotations

import gc
import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from headrace.bench.draft_counts import drafts_of_run, drafts_of_stats
from headrace.bench.load_runs import LoadRun
from headrace.bench.process_cost import cost, machine_seconds
from headrace.bench.request_timing import RequestTiming, summarize
from headrace.bench.wastes import between, sums_of_stats
from headrace.bench.workloads import Prompt, Workload, build
from headrace.client.api import GenerateRequest
from headrace.client.validate import validated
from headrace.engine.core_loop import EngineCore
from headrace.engine.service import BuiltEngine
from headrace.engine.wire import EngineInfo
from headrace.types import Delta, Request, SamplingParams

__all__ = ["check_prompts", "drive", "run_in_process"]

_STUCK = 0.001
"""Seconds to wait if nothing runs and nothing can be scheduled."""


def run_in_process(
    engine: BuiltEngine,
    workload: Workload,
    encode: Callable[[str], Sequence[int]],
    *,
    seed: int = 0,
    requests: int | None = None,
    warmup: int = 2,
    targets: tuple[float | None, float | None] = (None, None),
) -> LoadRun:
    """Measure a workload, as `server_load.run_load` does for a server. Raises InvalidRequest and its subclasses for a
    prompt that doesn't fit the model."""
    prompts, core = build(workload, encode, seed, requests), engine.core
    check_prompts(prompts, engine.info)
    for i in range(warmup):
        drive(core, [Prompt(prompts[0].token_ids[i + 1 : i + 33], 8)], 1)
    gc.collect()
    before, machine = cost(os.getpid()), machine_seconds()
    stats = core.stats()
    sums, drafts, start = sums_of_stats(stats), drafts_of_stats(stats.speculation), time.perf_counter()
    rows = drive(core, prompts, workload.concurrency)
    wall = time.perf_counter() - start
    after, machine = cost(os.getpid()), machine_seconds() - machine
    stats = core.stats()
    wastes, usage = between(sums, sums_of_stats(stats), wall)
    usage.pop("server_host_s", None)
    spent = after.cpu_seconds - before.cpu_seconds
    usage |= {"peak_rss_bytes": after.peak_bytes, "cpu_s": spent, "others_cpu_s": max(0.0, machine - spent)}
    summary = summarize(rows, wall, *targets)
    drafted = drafts_of_run(drafts, drafts_of_stats(stats.speculation), summary)
    return LoadRun(workload, seed, rows, summary, wastes, "counters", usage, speculation=drafted)


def check_prompts(prompts: Sequence[Prompt], info: EngineInfo) -> None:
    """The core trusts its client: raises InvalidRequest and its subclasses for a prompt that doesn't fit the model."""
    for prompt in prompts:
        validated(GenerateRequest("", prompt.token_ids, _params(prompt)), info)


def drive(core: EngineCore, prompts: Sequence[Prompt], concurrency: int) -> list[RequestTiming]:
    """Run all prompts, at most `concurrency` at a time, greedy and to full length. Raises what the core raises."""
    waiting, running = deque(enumerate(prompts)), dict[str, RequestTiming]()
    rows = []
    while waiting or running:
        while waiting and len(running) < concurrency:
            at, prompt = waiting.popleft()
            row = RequestTiming(len(prompt.token_ids), time.perf_counter(), wanted=prompt.max_tokens)
            rows.append(row)
            running[str(at)] = row
            core.add([_request(str(at), prompt)])
        deltas = core.step()
        now = time.perf_counter()
        for delta in deltas:
            _take(delta, running, now)
        if not deltas and not core.in_flight:
            time.sleep(_STUCK)
    while core.has_work():  # Steps that were launched before the last request ended.
        core.step()
    return rows


def _request(name: str, prompt: Prompt) -> Request:
    return Request(name, prompt.token_ids, _params(prompt), arrival=time.monotonic())


def _params(prompt: Prompt) -> SamplingParams:
    return SamplingParams(max_tokens=prompt.max_tokens, temperature=0.0, ignore_eos=True, seed=0)


def _take(delta: Delta, running: dict[str, RequestTiming], now: float) -> None:
    row = running.get(delta.request_id)
    if row is None:
        return
    row.accepted_drafts += delta.accepted_drafts
    row.rejected_drafts += delta.rejected_drafts
    if delta.token_ids:
        row.output_tokens += len(delta.token_ids)
        row.cached_tokens = max(row.cached_tokens, delta.cached_tokens)
        row.piece(now)
    if delta.finish_reason is not None:
        row.error = delta.error
        row.close(now)
        del running[delta.request_id]
