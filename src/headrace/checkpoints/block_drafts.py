"""Opens the checkpoint of a block drafter: `--speculate dflash:CHECKPOINT` and `dspark:CHECKPOINT`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.files import located, present, read_json
from headrace.checkpoints.safetensors_source import SafetensorsSource, open_safetensors
from headrace.errors import ConfigError, ModelNotFound
from headrace.kernels.weight import Weight
from headrace.models.assemble import Finish
from headrace.models.block_draft_config import BlockDraftConfig, Method
from headrace.models.block_draft_settings import read_block_draft
from headrace.models.block_draft_weights import BlockDraftWeights, TargetMatrices, read_weights
from headrace.quant.methods import scheme_of
from headrace.quant.weights import same_values
from headrace.settings import MOST_LAYERS

__all__ = ["BlockDraftCheckpoint", "block_draft_settings", "describe_block_draft", "open_block_draft"]


@dataclass(frozen=True, slots=True)
class BlockDraftCheckpoint:
    """An open drafter, whose settings and header are read; no weight is read yet."""

    path: Path
    config: BlockDraftConfig
    source: SafetensorsSource

    def weights(
        self,
        own: TargetMatrices | None,
        target: Checkpoint,
        finish: Finish,
        place: Callable[[torch.Tensor], Any],
        finish_own: Finish | None = None,
        draws: bool = False,
    ) -> BlockDraftWeights:
        """Read the weights, see `read_weights`. `own`: the target's matrices as it uses them, None if it holds only a
        part of them: then they are read again, whole, and finished by `finish`; those of the drafter by `finish_own`
        (default: the same). Those of the drafter that equal the target's stored ones are replaced by them. Raises
        CheckpointError that names file and tensor, UnsupportedModel for unknown tensors."""

        def same(role: str, matrix: Weight) -> bool:
            return same_values(matrix, _stored(target, role))

        tables = _Whole(target, finish) if own is None else own
        return read_weights(self.config, self.source, str(self.path), tables, same, finish_own or finish, place, draws)


class _Whole:
    """The target's matrices for a rank that holds a part of them; each is read when it is first used."""

    def __init__(self, target: Checkpoint, finish: Finish) -> None:
        self._target, self._finish = target, finish

    @cached_property
    def embedding(self) -> Weight:
        return self._finish(_stored(self._target, "embedding"), ("embedding",))

    @cached_property
    def head(self) -> Weight:
        return self._finish(_stored(self._target, "head"), ("logits",))


def _stored(target: Checkpoint, role: str) -> Weight:
    """The embedding or output matrix of a checkpoint."""
    decoder, names = target.decoder_config, target.names
    name = names.embedding
    if role == "head" and any(held.startswith(f"{names.head}.") for held in target.source.names):
        name = names.head
    return target.source.matrix(name, decoder.vocab, decoder.hidden, bias=False)


def describe_block_draft(path: Path | str, method: str) -> str:
    """A drafter in words, by its settings alone, whatever its target. Raises what `open_block_draft` raises."""
    config = block_draft_settings(path, method)
    parts = [f"{config.drafts} tokens a block", f"{len(config.decoder.layers)} layers"]
    parts += ["convolutions"] if config.convolution is not None else []
    parts += ["a selector of pairs"] if config.candidates is not None else []
    parts += [f"a {config.markov.kind} Markov head"] if config.markov is not None else []
    parts += ["estimates of its acceptance"] if config.confidence else []
    parts += [f"{config.draft_vocab} tokens of its own"] if config.draft_vocab is not None else []
    states = ", ".join(map(str, config.features))
    return f"{', '.join(parts)}; reads the hidden states after layers {states} of the model"


def block_draft_settings(path: Path | str, method: str) -> BlockDraftConfig:
    """The settings of a drafter, whatever its target: without stated features, they are not the true ones. Raises what
    `open_block_draft` raises."""
    return _read(Path(path), method, MOST_LAYERS)


def open_block_draft(path: Path | str, method: Method, target_layers: int) -> BlockDraftCheckpoint:
    """Open a directory. `target_layers`: the number of layers of the target.

    Raises ModelNotFound without a config.json, ConfigError if it drafts with the other method, CheckpointError and
    UnsupportedModel for what is wrong or not served.
    """
    path = Path(path)
    config = _read(path, method, target_layers)
    file = path / "config.json"
    with located(file):
        scheme = scheme_of(read_json(file), lambda name: None)
    return BlockDraftCheckpoint(path, config, open_safetensors(path, scheme))


def _read(path: Path, method: str, target_layers: int) -> BlockDraftConfig:
    file = path / "config.json"
    if not present(file):
        raise ModelNotFound(f"{path}: the drafter needs a directory with a config.json")
    with located(file):
        config = read_block_draft(read_json(file), target_layers)
    if config.method != method:
        raise ConfigError(
            f"--speculate {method}:{path}: the checkpoint drafts with {config.method}: write {config.method}:{path}"
        )
    return config
