"""An estimate of the memory of what `--speculate` loads, from the headers of its files alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.checkpoints.drafter_tables import is_matrix
from headrace.checkpoints.safetensors_header import read_header
from headrace.config import DRAFT, Config
from headrace.errors import CheckpointError, excerpt
from headrace.quant.quantized_size import quantized_bytes
from headrace.server.model_files import ModelFiles, read_files
from headrace.server.model_plan import ModelPlan

__all__ = ["drafter_bytes"]

_SIZES = {"F32": 4, "F16": 2, "BF16": 2}


def drafter_bytes(plan: ModelPlan, target: ModelFiles) -> int:
    """Bytes of the drafter's weights in memory; 0 if there is none, or if it is in the files of the target. Raises
    CheckpointError for a matrix with a shape that is none."""
    path = plan.config.scheduler.draft_model
    if path is None or Path(path).resolve() == plan.path.resolve():
        return 0
    size, kind = read_files(path).size, _kind(plan.config, target)
    if kind is None:
        return size
    # A draft model's head stays as it is stored, too.
    names = ("lm_head",) if plan.config.scheduler.draft_method == DRAFT else ()
    saved = sum(
        rows * columns * width - quantized_bytes(rows, columns, kind)
        for name, (rows, columns), width in _matrices(Path(path))
        if is_matrix(name) and not any(part in name for part in names)
    )
    return max(0, size - saved)


def _kind(config: Config, target: ModelFiles) -> str | None:
    """As `engine.draft_weights` chooses it, for a device with operators for int8."""
    wanted = config.scheduler.draft_quantization
    if wanted != "auto":
        return None if wanted == "none" else wanted
    quantised = config.model.quantize is not None or target.quantised
    return "int8" if quantised and config.model.dtype == "auto" else None


def _matrices(directory: Path) -> Iterator[tuple[str, tuple[int, int], int]]:
    """The name, shape and bytes of a value of each matrix that is stored in 16 or 32 bits. Files that cannot be read
    have none: the load reports them. Raises CheckpointError for a shape of something else than whole numbers."""
    for file in sorted(directory.glob("*.safetensors")):
        try:
            found = [
                (name, entry["shape"], _SIZES[entry["dtype"]])
                for name, entry in read_header(file)[1].items()
                if len(entry["shape"]) == 2 and entry["dtype"] in _SIZES
            ]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
        for name, shape, width in found:
            yield name, _checked(shape, file, name), width


def _checked(shape: Any, file: Path, name: str) -> tuple[int, int]:
    rows, columns = shape
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in (rows, columns)):
        raise CheckpointError(
            f"has the shape {excerpt(shape)}: two whole numbers are expected; fetch the drafter again", str(file), name
        )
    return rows, columns
