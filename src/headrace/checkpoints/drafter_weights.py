"""The weights of a drafter in a precision of their own. Drafts change no answer, so it may be any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.drafter_tables import is_matrix
from headrace.checkpoints.quantizing import check_quantizing
from headrace.checkpoints.safetensors_source import SafetensorsSource, open_safetensors
from headrace.kernels.weight import Weight
from headrace.models.assemble import Finish
from headrace.quant.online import FLOAT_SCHEMES, FloatMatrix, bytes_saved, quantize_weight

__all__ = ["DraftWeights", "describe_head_files", "head_bytes"]


@dataclass(slots=True)
class DraftWeights:
    """How the matrices of a drafter lie in memory. Embeddings stay as they are stored."""

    kind: str | None = None
    """`int8` or `int4`; None: as they are stored."""
    chosen: bool = False
    """By the user: then a matrix that is quantised already is an error. Otherwise it stays."""
    loaded: int = field(default=0, init=False)
    """The bytes of the head's matrices."""

    def of_head(self, finish: Finish) -> Finish:
        """`finish` for the matrices of a head or a block drafter. Raises UnsupportedModel as `quantize_weight` does."""

        def finished(weight: Weight, operators: tuple[str, ...]) -> Weight:
            if self.kind is not None and "embedding" not in operators and (self.chosen or _is_float(weight)):
                weight = quantize_weight(weight, self.kind)
            self.loaded += weight.nbytes
            return finish(weight, operators)

        return finished

    def of_model(self, checkpoint: Checkpoint) -> DraftWeights:
        """The same for a draft model. Raises UnsupportedModel if it is quantised already and the user wants another
        precision."""
        if self.kind is None or not (self.chosen or checkpoint.weight_dtype in FLOAT_SCHEMES):
            return DraftWeights()
        check_quantizing(checkpoint, self.kind)
        return self

    def saved(self, matrices: Iterable[FloatMatrix]) -> int:
        """By how many bytes the matrices are smaller in memory than they are stored."""
        return 0 if self.kind is None else bytes_saved(matrices, self.kind)

    @property
    def name(self) -> str:
        """For messages."""
        return self.kind or "as stored"

    @property
    def reasons(self) -> list[str]:
        """Why the engine has chosen a precision, if it has."""
        if self.kind is None or self.chosen:
            return []
        return [f"draft_quantization {self.kind}: the model's own weights are quantised"]


def head_bytes(
    directory: Path, source: SafetensorsSource, precision: DraftWeights, copied: tuple[str, ...] = ()
) -> int:
    """The bytes that the weights of a head or a block drafter take in memory. `copied`: parts of the names of matrices
    that lie there twice; those that are stored in a quantised form are counted once."""
    stored = sum(file.stat().st_size for file in directory.glob("*.safetensors") if file.is_file())
    matrices = list(_head_matrices(source.float_matrices()))
    again = [one for one in matrices if any(part in one.name for part in copied)]
    stored += sum(one.rows * one.columns * one.size for one in again)
    return stored - precision.saved([*matrices, *again])


def describe_head_files(directory: Path) -> str:
    """How large a head or a block drafter is, by its files alone. Raises what `open_safetensors` raises."""
    source = open_safetensors(directory, None)
    stored, narrow = (head_bytes(directory, source, DraftWeights(kind)) for kind in (None, "int8"))
    return f"weights of {stored / 1e6:.1f} MB" + (f", {narrow / 1e6:.1f} MB in int8" if narrow < stored else "")


def _head_matrices(matrices: Iterable[FloatMatrix]) -> Iterator[FloatMatrix]:
    """Those of a head's or a block drafter's checkpoint that are quantised."""
    return (one for one in matrices if is_matrix(one.name))


def _is_float(weight: Weight) -> bool:
    return all(part.scheme in FLOAT_SCHEMES for part in weight.parts or (weight,))
