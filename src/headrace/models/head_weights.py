"""Reads the parts that draft heads have in common: matrices cut by columns, norms, the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.kernels.weight import Weight
from headrace.models.assemble import Assembly, Finish, Source
from headrace.models.config import DecoderConfig
from headrace.models.family import Names
from headrace.quant.column_split import take_columns
from headrace.quant.finite_values import check_vector

__all__ = ["HeadReader", "StoredTensors", "vocabulary_columns"]

Tensor = torch.Tensor


class StoredTensors(Source, Protocol):
    """A checkpoint's tensors, in their stored types too."""

    def get(self, name: str) -> Tensor:
        """A tensor in its stored type. Raises CheckpointError."""


@dataclass(frozen=True, slots=True)
class HeadReader:
    """Reads a head's tensors and puts them on the device."""

    source: StoredTensors
    path: str
    finish: Finish
    place: Callable[[Tensor], Any]
    place_ints: Callable[[Tensor], Any]
    """Puts int32 values into the memory that the operators read."""
    norm_offset: float = 0.0

    def vector(self, name: str, size: int) -> Tensor:
        """A norm, by the complete name of its tensor."""
        vector = self.source.vector(name, size)
        check_vector(vector, self.path, name)
        return self.placed(vector + self.norm_offset)

    def placed(self, vector: Tensor) -> Tensor:
        found: Tensor = self.place(vector)
        return found

    def ones(self, width: int) -> Tensor:
        return self.placed(torch.ones(width))

    def matrix(self, name: str, rows: int, columns: int, *operators: str) -> Weight:
        return self.finish(self.source.matrix(name, rows, columns, bias=False), operators or ("linear",))

    def column_parts(self, name: str, rows: int, widths: Sequence[int]) -> list[Weight]:
        """A matrix whose inputs stand side by side, one part for each. Its bias, if any, is refused."""
        whole = self.source.matrix(name, rows, sum(widths), bias=False)
        found, at = [], 0
        for width in widths:
            found.append(self.finish(_copied(take_columns(whole, at, at + width)), ("linear",)))
            at += width
        return found

    def assembly(self, config: DecoderConfig, names: Names) -> Assembly:
        """For layers of a decoder's usual form."""
        return Assembly(
            config,
            names,
            self.source,
            self.path,
            self.norm_offset,
            False,
            self.place,
            self.finish,
            lambda size: None,
        )

    def refuse_unknown(self, ignored: Iterable[str], prefixes: tuple[str, ...] = ("",)) -> None:
        """Raise UnsupportedModel for tensors under the prefixes that have not been read: their arithmetic would be
        missing. `ignored`: beginnings of the names of tensors that a head doesn't need."""
        skipped = tuple(ignored)
        rest = [
            name
            for name in self.source.names
            if name.startswith(prefixes) and name not in self.source.used and not name.startswith(skipped)
        ]
        if rest:
            shown = ", ".join(sorted(rest)[:4])
            raise UnsupportedModel(f"{self.path}: {len(rest)} tensors of the draft head are unknown: {shown}")


def _copied(weight: Weight) -> Weight:
    """With tensors of its own: a part of a row is not contiguous."""
    return replace(weight, tensors={name: tensor.contiguous() for name, tensor in weight.tensors.items()})


def vocabulary_columns(source: StoredTensors, path: str, draft: int, vocab: int) -> Tensor:
    """int32 [vocab]: the column of each token in a reduced vocabulary, -1 for none, from `d2t` [draft], the distances
    from a column's number to its token's id. Raises CheckpointError."""
    offsets = source.get("d2t")
    if tuple(offsets.shape) != (draft,) or offsets.dtype.is_floating_point or offsets.dtype == torch.bool:
        raise CheckpointError(
            f"has shape {list(offsets.shape)} and type {offsets.dtype}: expected {draft} integers (draft_vocab_size)",
            path,
            "d2t",
        )
    tokens = torch.arange(draft) + offsets.long()
    rises = bool((tokens[1:] > tokens[:-1]).all())
    if draft and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab or not rises):
        raise CheckpointError(
            f"gives tokens from {int(tokens.min())} to {int(tokens.max())}{'' if rises else ', not ascending'}: "
            f"expected ascending ids below the target's vocab_size {vocab}",
            path,
            "d2t",
        )
    columns = torch.full((vocab,), -1, dtype=torch.int32)
    columns[tokens] = torch.arange(draft, dtype=torch.int32)
    return columns
