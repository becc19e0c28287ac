"""An estimate of the memory of what `--speculate` loads, from the headers of its files alone."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path

from headrace.checkpoints.drafter_tables import is_matrix
from headrace.checkpoints.safetensors_header import read_header
from headrace.config import DRAFT, Config
from headrace.server.model_files import ModelFiles, read_files
from headrace.server.model_plan import ModelPlan

__all__ = ["drafter_bytes"]

_SIZES = {"F32": 4, "F16": 2, "BF16": 2}
_BYTES = {"int8": 1.0, "int4": 0.625}
"""Of a quantised weight; int4 has scales."""


def drafter_bytes(plan: ModelPlan, target: ModelFiles) -> int:
    """Bytes of the drafter's weights in memory; 0 if there is none, or if it is in the files of the target."""
    path = plan.config.scheduler.draft_model
    if path is None or Path(path).resolve() == plan.path.resolve():
        return 0
    size, kind = read_files(path).size, _kind(plan.config, target)
    if kind is None:
        return size
    # A draft model's head stays as it is stored, too.
    names = ("lm_head",) if plan.config.scheduler.draft_method == DRAFT else ()
    saved = sum(
        count * (width - _BYTES[kind])
        for name, count, width in _matrices(Path(path))
        if is_matrix(name) and not any(part in name for part in names)
    )
    return max(0, size - int(saved))


def _kind(config: Config, target: ModelFiles) -> str | None:
    """As `engine.draft_weights` chooses it, for a device with operators for int8."""
    wanted = config.scheduler.draft_quantization
    if wanted != "auto":
        return None if wanted == "none" else wanted
    quantised = config.model.quantize is not None or target.quantised
    return "int8" if quantised and config.model.dtype == "auto" else None


def _matrices(directory: Path) -> Iterator[tuple[str, int, int]]:
    """The name, number of values and bytes of a value of each matrix that is stored in 16 or 32 bits. Files that cannot
    be read have none: the load reports them."""
    for file in sorted(directory.glob("*.safetensors")):
        try:
            found = [
                (name, prod(entry["shape"]), _SIZES[entry["dtype"]])
                for name, entry in read_header(file)[1].items()
                if len(entry["shape"]) == 2 and entry["dtype"] in _SIZES
            ]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
        yield from found
