"""The Triton operators for a device."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

from headrace.kernels.registry import OPS
from headrace.kernels.spec import PacksWeights, Tagged
from headrace.kernels.tritonlib.chip import TritonChip
from headrace.kernels.tritonlib.launch_config import config_for
from headrace.kernels.weight import Weight
from headrace.platforms.accelerator.accelerator_options import AcceleratorOptions
from headrace.types import Capabilities

__all__ = ["OperatorSource", "OperatorTable", "missing_operators", "triton_operators"]

OperatorTable = Mapping[str, Callable[..., Any]]
OperatorSource = Callable[[Capabilities, TritonChip, AcceleratorOptions], tuple[OperatorTable, str]]
"""(the chip's capabilities, the same for Triton, the user's options) → (operators by name, why the reference serves the
others)."""
_TABLE = "headrace.kernels.tritonlib.operator_set"


def triton_operators(
    capabilities: Capabilities, chip: TritonChip, options: AcceleratorOptions
) -> tuple[OperatorTable, str]:
    """The operators of `kernels.tritonlib`, which is imported here and not before; empty if triton is not installed."""
    if importlib.util.find_spec("triton") is None:
        return {}, "triton is not installed: install headrace with the extra of this platform"
    if options.dtype is not None:
        return _table(chip, options, options.dtype), _MISSING
    # Activations have the dtype of the embedding; the other operators use the dtype of their inputs.
    tables = {dtype: _table(chip, options, dtype) for dtype in sorted(capabilities.dtypes - {"quantized"})}
    usual = next(dtype for dtype in ("bfloat16", "float16", "float32") if dtype in tables)
    embeddings = {dtype: table["embedding"] for dtype, table in tables.items() if "embedding" in table}
    table = dict(tables[usual])
    if usual in embeddings:
        table["embedding"] = FollowsTable(embeddings, usual)
    return table, _MISSING


_MISSING = "there is no Triton form of it"


class FollowsTable:
    """An embedding whose result has the dtype of the table that it reads, or `usual` if the table is quantized."""

    def __init__(self, by_dtype: Mapping[str, Callable[..., Any]], usual: str) -> None:
        self._by_dtype = by_dtype
        self._usual = by_dtype[usual]
        self.tag = self._usual.tag if isinstance(self._usual, Tagged) else "triton"

    def __call__(self, ids: Any, table: Weight, scale: float, **part: Any) -> Any:
        return self._for(table)(ids, table, scale, **part)

    def pack(self, table: Weight) -> None:
        own = self._for(table)
        if isinstance(own, PacksWeights):
            own.pack(table)

    def _for(self, table: Weight) -> Callable[..., Any]:
        return self._by_dtype.get(table.scheme, self._usual)


def missing_operators(table: OperatorTable) -> list[str]:
    """Operators of the contract that the table lacks."""
    return [spec.name for spec in OPS if spec.name not in table]


def _table(chip: TritonChip, options: AcceleratorOptions, dtype: str) -> OperatorTable:
    config = config_for(chip, dtype, bool(options.batch_invariant))
    table: OperatorTable = importlib.import_module(_TABLE).operators(config)
    return table
