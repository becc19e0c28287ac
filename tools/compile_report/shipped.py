"""The launches of real models, recorded without launching, for the compile report.

Every case calls an operator as a model would, with the tile sizes, head sizes and groups of models in use; only what no
kernel is specialised on (rows, vocabulary) is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from compile_report.chips import Chip
from compile_report.shipped_experts import EXPERT_PRODUCTS, experts
from compile_report.shipped_states import PRODUCTS, latents, scans
from headrace.kernels import random
from headrace.kernels.ngram.generate import draw_step
from headrace.kernels.ops import Batch, SampleInputs
from headrace.kernels.sample.generate import generate as sample_inputs
from headrace.kernels.tritonlib.launch_config import config_for
from headrace.kernels.tritonlib.operator_set import operators
from headrace.kernels.weight import Weight
from headrace.types import LayerKV

__all__ = ["Recorded", "recorded"]

Tensor = torch.Tensor
_CPU = torch.device("cpu")
_WIDTH, _ROWS = 4096, 256
_CACHES = ("bfloat16", "int8", "float8_e4m3")


@dataclass(frozen=True)
class Recorded:
    """One recorded launch."""

    case: str
    kernel: Any
    args: dict[str, Any]
    warps: int
    stages: int
    matrix: str | None
    """Operands whose matrix instruction the code must hold: a key of `Chip.matrix`."""
    core: bool
    """Of the cases that even a quick report compiles: every kernel at least once."""

    @property
    def name(self) -> str:
        return f"{self.case}/{self.kernel.__name__}"


_Call = tuple[str, str | None, bool, str, dict[str, Any]]
"""(case, matrix, core, operator, its arguments)"""


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _x(rows: int, columns: int, dtype: str = "bfloat16") -> Tensor:
    return torch.zeros(rows, columns, dtype=random.DTYPES[dtype])


def _batch(fresh: tuple[int, ...] = (1, 40)) -> tuple[random.Shape, Batch]:
    shape = random.Shape(fresh, (600,) * len(fresh), 16)
    return shape, random.batch(_rng(), shape, _CPU)


def _small() -> Iterator[_Call]:
    _, batch = _batch()
    table = Weight("bfloat16", (8, _WIDTH), {"weight": _x(8, _WIDTH)}, Weight.dequantize)
    x, norm = _x(2, _WIDTH), torch.ones(_WIDTH)
    yield (
        "resolve_tokens",
        None,
        True,
        "resolve_tokens",
        {"batch": batch, "history": torch.zeros(8, 1024, dtype=torch.int32)},
    )
    yield "embedding", None, True, "embedding", {"ids": batch.token_ids.clamp(0, 7), "table": table, "scale": 2.0}
    yield "rms_norm", None, True, "rms_norm", {"x": x, "weight": norm, "eps": 1e-5}
    wide = {"x": _x(2, 16384), "weight": torch.ones(16384), "eps": 1e-5}
    yield "rms_norm-16384", None, False, "rms_norm", wide
    yield "add_rms_norm", None, True, "add_rms_norm", {"x": x, "residual": x, "weight": norm, "eps": 1e-5}
    for kind in ("silu", "gelu", "gelu_tanh"):
        yield (
            f"gated_activation-{kind}",
            None,
            kind == "silu",
            "gated_activation",
            {"x": _x(2, 2 * _WIDTH), "kind": kind},
        )


def _paged() -> Iterator[_Call]:
    shape, batch = _batch()
    tokens, extras = len(batch.token_ids), dict.fromkeys(("window", "soft_cap", "sinks", "alibi"))

    def attend(
        size: int, heads: int, kv_heads: int, store: str, dtype: str = "bfloat16", **given: Any
    ) -> dict[str, Any]:
        kv = random.cache(_rng(), shape, LayerKV(kv_heads, size), _CPU, store)
        shared = {"q": _x(tokens, heads * size, dtype), "batch": batch, "kv": kv, "layer": 0, "scale": size**-0.5}
        return {**shared, **extras, **given}

    for store in _CACHES:
        kv = random.cache(_rng(), shape, LayerKV(8, 128), _CPU, store)
        shared = {
            "batch": batch,
            "kv": kv,
            "layer": 0,
            "cos_sin": torch.zeros(1024, 128),
            "num_q_heads": 32,
            "eps": 1e-6,
        }
        qkv = {"qkv": _x(tokens, 48 * 128), "q_norm": torch.ones(128), "k_norm": torch.ones(128)}
        yield f"rotary_cache-{store}", None, store == "float8_e4m3", "rotary_cache", {**shared, **qkv}
        yield f"attention-{store}", "float16", store != "int8", "attention", attend(128, 32, 8, store)
    yield "attention-64", "float16", False, "attention", attend(64, 9, 3, "bfloat16")
    yield "attention-float16", "float16", False, "attention", attend(128, 32, 8, "float16", "float16")
    yield "attention-256-cap", "any", False, "attention", attend(256, 8, 4, "bfloat16", window=4096, soft_cap=50.0)
    sinks = attend(64, 64, 8, "bfloat16", window=128, sinks=torch.zeros(64))
    yield "attention-sinks", "float16", False, "attention", sinks
    alibi = attend(128, 32, 32, "bfloat16", alibi=torch.ones(32))
    yield "attention-alibi", "float16", False, "attention", alibi
    yield "attention-float32", None, False, "attention", attend(128, 32, 8, "float32", "float32")


def _weights() -> Iterator[tuple[str, str | None, bool, Weight]]:
    def make(scheme: str, activation: str | None = None, **tensors: Tensor) -> Weight:
        return Weight(scheme, (_ROWS, _WIDTH), tensors, Weight.dequantize, activation=activation)

    packed, bytes_ = (torch.zeros(_ROWS, n, dtype=torch.uint8) for n in (_WIDTH // 2, _WIDTH))
    whole, by_128, by_32 = (torch.ones(_ROWS, groups) for groups in (1, _WIDTH // 128, _WIDTH // 32))
    fp8, int8 = bytes_.view(torch.float8_e4m3fn), bytes_.view(torch.int8)
    for dtype in ("bfloat16", "float16"):
        yield dtype, "float16", dtype == "bfloat16", make(dtype, weight=_x(_ROWS, _WIDTH, dtype))
    yield "int4-128", "float16", True, make("int4", codes=packed, scales=by_128, zeros=by_128.to(torch.uint8))
    yield "q4_0", "float16", False, make("int4", codes=packed, scales=by_32)
    order: dict[str, Any] = {"group_index": (torch.arange(_WIDTH) % 32).int()}
    yield (
        "gptq-order",
        "float16",
        False,
        make("int4", codes=packed, scales=by_128, zeros=by_128.to(torch.uint8), **order),
    )
    yield "q8_0", "float16", False, make("int8", codes=int8, scales=by_32)
    yield "mxfp4", "float16", True, make("mxfp4", codes=packed, scales=by_32.to(torch.uint8))
    yield "int8-w8a8", "int8", True, make("int8", "int8_token", codes=int8, scales=whole)
    yield "fp8-w8a16", "float16", False, make("fp8_e4m3", codes=fp8, scales=whole)
    yield "fp8-token", "fp8", True, make("fp8_e4m3", "fp8_token", codes=fp8, scales=whole)
    static = {"input_scale": torch.ones(1)}
    yield "fp8-tensor", "fp8", False, make("fp8_e4m3", "fp8_tensor", codes=fp8, scales=whole, **static)
    yield "fp8-block", "fp8", False, make("fp8_e4m3", "fp8_group128", codes=fp8, scales=by_128)


def _products() -> Iterator[_Call]:
    for name, matrix, core, weight in _weights():
        x = _x(64, _WIDTH, "float16" if name == "float16" else "bfloat16")
        yield f"linear-{name}", matrix, core, "linear", {"x": x, "weight": weight}
    plain = Weight("float32", (_ROWS, _WIDTH), {"weight": _x(_ROWS, _WIDTH, "float32")}, Weight.dequantize)
    yield "linear-float32", None, False, "linear", {"x": _x(64, _WIDTH, "float32"), "weight": plain}
    head = Weight("bfloat16", (_ROWS, _WIDTH), {"weight": _x(_ROWS, _WIDTH)}, Weight.dequantize)
    _, batch = _batch()
    arguments = {"x": _x(len(batch.token_ids), _WIDTH), "batch": batch, "head": head, "soft_cap": 30.0}
    yield "logits", "float16", False, "logits", arguments


def _sampling() -> Iterator[_Call]:
    draws = (sample_inputs(np.random.default_rng(seed), _CPU, "float32") for seed in range(100))
    found = next(a for a in draws if len(a["logits"]) > 2 and len(a["inputs"].bias_row) > 2)
    inputs: SampleInputs = found["inputs"]
    vocab, rows = 128256, len(found["logits"])
    allowed = torch.zeros(2, vocab // 32, dtype=torch.int32)
    history = torch.zeros(rows + 1, 8192, dtype=torch.int32)
    given = {
        "logits": torch.zeros(rows, vocab),
        "inputs": replace(inputs, allowed=allowed, history=history),
        "num_logprobs": 5,
    }
    yield "sample", None, True, "sample", {**found, **given}


def _drafting() -> Iterator[_Call]:
    """Up to eight drafts for each sequence."""
    step = draw_step(np.random.default_rng(3), _CPU)
    assert len(step.lengths) > 1, "draw another step"
    history, drafts = torch.zeros(len(step.history), 8193, dtype=torch.int32), torch.zeros(len(step.lengths), 8).int()
    given = {"batch": step.batch, "lengths": step.lengths, "history": history}
    yield "ngram", None, True, "ngram", {**given, "most": 8}
    given |= {"drafts": drafts}
    yield "place", None, True, "place", {**given, "position": step.position, "size": 16}
    yield "accept", None, True, "accept", {**given, "tokens": step.batch.rows}
    given = {"batch": step.batch, "history": history}
    yield "read_drafts", None, True, "read_drafts", {**given, "lengths": step.lengths, "most": 8}
    yield "shift", None, True, "shift", {**given, "bounds": step.lengths, "position": step.position, "size": 16}


_FAST_TILES = ("linear-bfloat16", "linear-int4-128", "linear-fp8-block", "linear-int8-w8a8", "attention-bfloat16")


def _states() -> Iterator[_Call]:
    _, batch = _batch()
    yield from latents(batch)
    yield from scans(batch)


def _calls() -> Iterator[_Call]:
    for source in (_small, _paged, _products, _sampling, experts, _states, _drafting):
        yield from source()


def recorded(chip: Chip, core_only: bool = False) -> list[Recorded]:
    """Every launch on a chip; the batch-invariant tiles, and for some cases those that follow the batch."""
    found: list[Recorded] = []
    for case, matrix, core, name, arguments in _calls():
        if core or not core_only:
            found += _record(case, matrix, core, chip, True, [(name, arguments)])
        if case in _FAST_TILES and not core_only:
            few = {**arguments, "x": arguments["x"][:4]} if "x" in arguments else arguments
            many = {**arguments, "x": arguments["x"].repeat(2, 1)} if "x" in arguments else arguments
            found += _record(f"{case}-few", None, False, chip, False, [(name, few)])
            found += _record(f"{case}-many", matrix, False, chip, False, [(name, many)])
    return found


def _record(
    case: str, matrix: str | None, core: bool, chip: Chip, invariant: bool, calls: list[tuple[str, dict[str, Any]]]
) -> list[Recorded]:
    found: list[Recorded] = []

    def launch(kernel: Any, grid: tuple[int, ...], args: dict[str, Any], warps: int, stages: int) -> None:
        product = kernel.__name__ in ("dense_kernel", "coded_kernel", "prefill_kernel")
        product = product or kernel.__name__ in PRODUCTS | EXPERT_PRODUCTS
        product = product or (kernel.__name__ == "decode_kernel" and invariant)
        again = sum(one.kernel is kernel for one in found)  # experts multiply twice
        name = f"{case}-{again + 1}" if again else case
        found.append(Recorded(name, kernel, args, warps, stages, matrix if product else None, core))

    bound: dict[str, Callable[..., Any]] = dict(operators(config_for(chip.triton, "bfloat16", invariant, launch)))
    for name, arguments in calls:
        bound[name](**arguments)
    return found
