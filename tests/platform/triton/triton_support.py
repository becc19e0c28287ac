"""What the tests of the Triton operators share: inputs that are small enough for the interpreter, and the
comparison."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from headrace.conformance.operators_tier import nmse
from headrace.kernels.registry import OPS, OPTIONAL
from headrace.kernels.spec import OpSpec
from headrace.kernels.tritonlib.chip import TritonChip

CPU = torch.device("cpu")
BY_NAME = {spec.name: spec for spec in (*OPS, *OPTIONAL)}
_PROGRAMS = 250
"""Of a token or row and head, about: what a case may cost."""


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def operator(name: str, dtype: str = "float32", batch_invariant: bool = True, **chip: Any) -> Any:
    from headrace.kernels.tritonlib.launch_config import config_for
    from headrace.kernels.tritonlib.operator_set import operators

    return operators(config_for(TritonChip(**chip), dtype, batch_invariant))[name]


def _cost(arguments: dict[str, Any]) -> int:
    if "qkv" in arguments:
        return len(arguments["qkv"]) * arguments["qkv"].shape[1] // arguments["kv"].layout.layers[0].head_dim
    if "x" in arguments:
        return len(arguments["x"]) * -(-arguments["x"].shape[1] // 1024)
    return 0


def cases(spec: OpSpec, dtype: str, count: int) -> Iterator[dict[str, Any]]:
    """The first `count` draws of the operator's own generator that the interpreter can run quickly."""
    found = (spec.generate(rng(seed), CPU, dtype) for seed in range(200))
    affordable = (arguments for arguments in found if _cost(arguments) <= _PROGRAMS)
    for _ in range(count):
        yield next(affordable)


def outputs(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def check(spec: OpSpec, arguments: dict[str, Any], found: Any, limit: float) -> None:
    """`found` against the reference's answer to the same arguments, which must still be as they were before the
    call."""
    for got, want in zip(outputs(found), outputs(spec.reference(**arguments)), strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert nmse(got.float().numpy(), want.float().numpy()) <= limit


def run(spec: OpSpec, arguments: dict[str, Any], limit: float, **extra: Any) -> tuple[dict[str, Any], Any]:
    """The arguments as the Triton operator left them, and its answer, checked."""
    own = copy.deepcopy(arguments)
    found = operator(spec.name, **extra)(**own)
    check(spec, arguments, found, limit)
    return own, found
