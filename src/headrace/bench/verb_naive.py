"""The naive way beside ours: transformers.generate in static batches on the same requests, and the three wastes of both.

KV utilisation: places that came to hold a token over places reserved (each batch reserves its longest prompt plus its longest
output for every member). Slot occupancy: steps in which a member still wanted tokens over steps run. Device busy: time inside
the model's forward pass over wall time. Needs transformers (`pip install headrace[dev]`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.bench.verb_serve import load_encoder
from headrace.bench.workloads import WORKLOADS, Prompt, build
from headrace.engine.catalogue import resolve_model
from headrace.llm import LLM
from headrace.types import SamplingParams

__all__ = ["Naive", "configure", "run", "static_batches"]


@dataclass(slots=True)
class Naive:
    """Figures of one way of serving the same requests."""

    name: str
    wall_s: float
    output_tokens: int
    kv_utilization: float
    slot_occupancy: float
    device_busy: float


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--workload", default="W2", choices=sorted(WORKLOADS))
    parser.add_argument("--requests", type=int)
    parser.add_argument("--batch", type=int, default=16, help="members of a static batch, and our max_num_seqs")
    parser.add_argument("--seed", type=int, default=0)


def run(args: argparse.Namespace) -> int:
    prompts = build(WORKLOADS[args.workload], load_encoder(args.model), args.seed, args.requests)
    path = resolve_model(args.model)
    rows = [static_batches(_transformers(path), prompts, args.batch), _ours(path, prompts, args.batch)]
    table = Table(title=f"{args.model}, {args.workload}, {len(prompts)} requests")
    for column in ("way", "out tok/s", "KV utilisation", "slot occupancy", "device busy"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for row in rows:
        shares = (row.kv_utilization, row.slot_occupancy, row.device_busy)
        table.add_row(row.name, f"{row.output_tokens / row.wall_s:.1f}", *(f"{share:.1%}" for share in shares))
    Console().print(table)
    return 0


def _transformers(path: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    source: dict[str, Any] = {"gguf_file": path.name} if path.is_file() else {}
    directory = path.parent if path.is_file() else path
    model: Any = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16, **source)
    model.eval()
    return model


def static_batches(model: Any, prompts: Sequence[Prompt], batch: int) -> Naive:
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
    return Naive("transformers, static batches", wall, useful, held / reserved, useful / steps, inside / wall)


def _ours(path: Path, prompts: Sequence[Prompt], batch: int) -> Naive:
    with LLM(str(path), max_num_seqs=batch) as llm:
        params = [SamplingParams(max_tokens=p.max_tokens, temperature=0.0, ignore_eos=True) for p in prompts]
        start = time.perf_counter()
        answers = llm.generate([list(p.token_ids) for p in prompts], params)
        wall = time.perf_counter() - start
        stats = llm.stats()
    tokens = sum(len(choice.token_ids) for answer in answers for choice in answer.outputs)
    return Naive("headrace", wall, tokens, stats.kv_utilization, stats.slot_occupancy, stats.device_busy)
