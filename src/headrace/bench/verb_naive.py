"""Static batches against our engine: transformers.generate and Headrace on the same requests, with the wastes of both.

KV utilisation: token places that were used over token places reserved (each batch reserves its longest prompt plus its
longest output for every member). Slot occupancy: steps in which a member still needed tokens over steps run. Device
busy: time inside the model's forward pass over wall time. Each engine runs in its own process, so that its memory is
measured alone. Static batches compute in bfloat16; `--dtype`, `--kv-dtype`, `--quantize` and `--platform` apply to
Headrace alone. Requires transformers (`pip install headrace[dev]`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.arguments import add_engine_options, engine_options
from headrace.bench.bench_report import BenchReport, ReportTable, add_outputs, facts, publish
from headrace.bench.load_options import load_encoder
from headrace.bench.local_engine import open_engine
from headrace.bench.offline_load import run_in_process
from headrace.bench.plots import Bar, bars
from headrace.bench.process_cost import cost
from headrace.bench.workloads import WORKLOADS, Prompt, Workload, build
from headrace.errors import ConfigError
from headrace.hub.catalogue import resolve_model

__all__ = ["ServingResult", "configure", "ratios", "run", "static_batches"]

_NAIVE, _OURS = "transformers, static batches", "headrace"
_SHARES = {"kv_utilization": "KV utilisation", "slot_occupancy": "slot occupancy", "device_busy": "device busy"}


@dataclass(slots=True)
class ServingResult:
    """Measurements of one engine that serves the requests. `peak_bytes`: the peak memory of its process."""

    name: str
    wall_s: float
    output_tokens: int
    kv_utilization: float
    slot_occupancy: float
    device_busy: float
    peak_bytes: int = 0

    @property
    def output_tok_s(self) -> float:
        return self.output_tokens / self.wall_s


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--workload", default="W2", choices=sorted(WORKLOADS), help="the load")
    parser.add_argument("--requests", type=int, metavar="N", help="in place of the workload's own number")
    parser.add_argument("--batch", type=int, default=16, help="members of a static batch, and our max_num_seqs")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the prompts' content")
    add_engine_options(parser)
    add_outputs(parser, "static batches and headrace")


def run(args: argparse.Namespace) -> int:
    if args.batch < 1:
        raise ConfigError(f"--batch {args.batch}: at least 1")
    path, options = resolve_model(args.model), engine_options(args)
    _check_packages(path)
    workload = replace(WORKLOADS[args.workload], concurrency=args.batch)
    prompts = build(workload, load_encoder(args.model), args.seed, args.requests)
    args.progress("static batches")
    naive = _in_own_process(_static_batches, path, prompts, args.batch, options.get("threads"))
    args.progress("headrace")
    ours = _in_own_process(_headrace, path, workload, options, args.seed, args.requests)
    publish(args, _report(args, naive, ours, options))
    return 0


def _check_packages(path: Path) -> None:
    """Raises ConfigError for what transformers needs to read the model and is not installed."""
    needed = ["transformers", *(["gguf"] if path.is_file() else [])]
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        found = " and ".join(missing)
        raise ConfigError(f"`headrace bench naive` needs {found}: pip install {' '.join(missing)}")


def ratios(naive: ServingResult, ours: ServingResult) -> dict[str, float]:
    """Ratios by name. Above 1 ours is better: more tokens per second, less waste, less memory."""
    found = {"output_tok_s": ours.output_tok_s / naive.output_tok_s}
    found |= {name: getattr(ours, name) / getattr(naive, name) for name in _SHARES if getattr(naive, name)}
    return found | {"peak_bytes": naive.peak_bytes / ours.peak_bytes}


def _report(
    args: argparse.Namespace, naive: ServingResult, ours: ServingResult, options: dict[str, Any]
) -> BenchReport:
    found = ratios(naive, ours)
    rows = [
        (
            one.name,
            f"{one.output_tok_s:.1f}",
            *(f"{getattr(one, n):.1%}" for n in _SHARES),
            f"{one.peak_bytes / 1e6:.0f}",
        )
        for one in (naive, ours)
    ]
    names = ("output_tok_s", *_SHARES, "peak_bytes")
    rows.append(("ratio; above 1 ours is better", *(f"{found[n]:.2f}" if n in found else "–" for n in names)))
    title = f"{args.model}, {args.workload}, batches of {args.batch}"
    table = ReportTable(title, ("engine", "out tok/s", *_SHARES.values(), "peak MB"), rows)
    wastes = [Bar(f"{label}: {one.name}", getattr(one, n)) for n, label in _SHARES.items() for one in (naive, ours)]
    plots = [
        bars([Bar(one.name, one.output_tok_s) for one in (naive, ours)], "output tokens per second"),
        bars(wastes, "shares of memory, slots and device time that were used", mark=1.0),
    ]
    data = {"ways": [asdict(naive), asdict(ours)], "ratios": found}
    known = {
        "model": args.model,
        "workload": args.workload,
        "batch": args.batch,
        "seed": args.seed,
        "dtype": "auto",
        **options,
    }
    words = replace(WORKLOADS[args.workload], concurrency=args.batch).words
    return BenchReport(args.label, data, [table], plots, facts() | known, [words])


def _in_own_process(measure: Callable[..., ServingResult], *args: Any) -> ServingResult:
    """Call `measure` in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *args).result()


def _static_batches(path: Path, prompts: Sequence[Prompt], batch: int, threads: int | None) -> ServingResult:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    model = _transformers(path)
    static_batches(model, [Prompt(prompts[0].token_ids[:32], 8)], 1)
    found = static_batches(model, prompts, batch)
    return replace(found, peak_bytes=cost(os.getpid()).peak_bytes)


def _headrace(
    path: Path, workload: Workload, options: dict[str, Any], seed: int, requests: int | None
) -> ServingResult:
    engine, encode = open_engine(str(path), {**options, "max_num_seqs": workload.concurrency})
    try:
        found = run_in_process(engine, workload, encode, seed=seed, requests=requests)
    finally:
        engine.close()
    wastes = {name: found.wastes.get(name, 0.0) for name in _SHARES}
    peak = int(found.usage["peak_rss_bytes"])
    return ServingResult(_OURS, found.summary.wall_s, found.summary.output_tokens, peak_bytes=peak, **wastes)


def _transformers(path: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    source: dict[str, Any] = {"gguf_file": path.name} if path.is_file() else {}
    directory = path.parent if path.is_file() else path
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16, **source)
    model.eval()
    return model


def static_batches(model: Any, prompts: Sequence[Prompt], batch: int) -> ServingResult:
    """Run `model.generate` on consecutive batches, left-padded; every member runs as long as the longest."""
    import torch

    forward, inside = model.forward, 0.0

    def timed(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        start = time.perf_counter()
        try:
            return forward(*args, **kwargs)
        finally:
            inside += time.perf_counter() - start

    model.forward = timed
    held = reserved = useful = steps = 0
    start = time.perf_counter()
    for i in range(0, len(prompts), batch):
        members = prompts[i : i + batch]
        longest, most = max(len(p.token_ids) for p in members), max(p.max_tokens for p in members)
        ids = torch.tensor([[0] * (longest - len(p.token_ids)) + list(p.token_ids) for p in members])
        mask = torch.tensor([[0] * (longest - len(p.token_ids)) + [1] * len(p.token_ids) for p in members])
        model.generate(ids, attention_mask=mask, max_new_tokens=most, min_new_tokens=most, do_sample=False)
        held += sum(len(p.token_ids) + p.max_tokens for p in members)
        reserved += len(members) * (longest + most)
        useful += sum(p.max_tokens for p in members)
        steps += len(members) * most
    wall = time.perf_counter() - start
    model.forward = forward
    return ServingResult(_NAIVE, wall, useful, held / reserved, useful / steps, inside / wall)
