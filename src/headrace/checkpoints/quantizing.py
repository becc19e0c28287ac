"""Quantizes on load for several ranks: complete matrices, before they are split, so that all ranks use the same codes
and scales as one rank."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

import torch

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.gguf_source import GGUFSource
from headrace.checkpoints.safetensors_source import SafetensorsSource
from headrace.kernels.weight import Weight
from headrace.models.assemble import Source
from headrace.models.family import Names
from headrace.quant.online import FloatMatrix, check_quantizable, quantize_weight

__all__ = ["QuantizingSource", "check_quantizing", "quantized_matrices", "quantizing"]

_EXPERT = re.compile(r"(?<=\.experts)\.\d+\.")


def quantizing(checkpoint: Checkpoint, kind: str) -> Checkpoint:
    """The same checkpoint, quantized while it is read; `kind` as in `quant.online.quantize_weight`."""
    layers = len(checkpoint.decoder_config.layers)
    return replace(checkpoint, source=QuantizingSource(checkpoint.source, checkpoint.names, layers, kind))


def check_quantizing(checkpoint: Checkpoint, kind: str) -> None:
    """Raises UnsupportedModel as reading the weights would: of a GGUF for any matrix in its list of tensors, else for
    the first one, which is opened as `open_checkpoint` opens it."""
    names, config = checkpoint.names, checkpoint.decoder_config
    if isinstance(checkpoint.source, GGUFSource):
        matrices = _own_names(names, len(config.layers))
        for name, scheme, columns in checkpoint.source.matrices():
            if name.removesuffix(".weight") in matrices:
                check_quantizable(name, scheme, columns, kind)
        return
    found = checkpoint.source.matrix(names.q.format(i=0), config.num_q_heads * config.head_dim, config.hidden, False)
    for part in found.parts or (found,):
        check_quantizable(part.name, part.scheme, part.shape[1], kind)


def quantized_matrices(checkpoint: Checkpoint) -> list[FloatMatrix]:
    """Those that `quantizing` quantizes, from the headers; of a plugin's source none are known."""
    own = _own_names(checkpoint.names, len(checkpoint.decoder_config.layers))
    source = checkpoint.source
    if not isinstance(source, SafetensorsSource | GGUFSource):
        return []
    return [one for one in source.float_matrices() if _EXPERT.sub(".{e}.", one.name.removesuffix(".weight")) in own]


def _own_names(names: Names, layers: int) -> set[str]:
    """The matrices that are quantized, without `.weight`."""
    patterns = (
        names.q, names.k, names.v, names.output, names.gate, names.up, names.down, names.expert_gate,
        names.expert_up, names.expert_down, names.shared_gate, names.shared_up, names.shared_down,
    )  # fmt: skip
    return {name.format(i=index, e="{e}") for name in patterns for index in range(layers)}


class QuantizingSource:
    """A `models.assemble.Source` that quantizes the matrices of layers; embedding, head and routers stay wide."""

    def __init__(self, source: Source, names: Names, layers: int, kind: str) -> None:
        self._own = _own_names(names, layers)
        self._source, self._kind = source, kind

    @property
    def names(self) -> Collection[str]:
        return self._source.names

    @property
    def used(self) -> Collection[str]:
        return self._source.used

    def matrix(self, name: str, rows: int, columns: int, bias: bool) -> Weight:
        """A quantized matrix. Raises UnsupportedModel if it is already quantized."""
        found = self._source.matrix(name, rows, columns, bias)
        return quantize_weight(found, self._kind) if name in self._own else found

    def experts(self, name: str, count: int, rows: int, columns: int) -> list[Weight]:
        return [quantize_weight(part, self._kind) for part in self._source.experts(name, count, rows, columns)]

    def vector(self, name: str, size: int) -> torch.Tensor:
        return self._source.vector(name, size)
