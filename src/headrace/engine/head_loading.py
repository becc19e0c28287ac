"""Loads the draft head of `--speculate eagle3:CHECKPOINT`, `mtp` and `mtp:CHECKPOINT`. Rank 0 alone has it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.drafter_weights import DraftWeights, head_bytes
from headrace.checkpoints.files import located, present, read_json
from headrace.checkpoints.safetensors_source import SafetensorsSource, open_safetensors
from headrace.config import EAGLE3, MTP, Config
from headrace.engine.draft_weights import draft_weights
from headrace.engine.head_drafter import HeadDrafter
from headrace.engine.head_passes import HeadPasses
from headrace.engine.ranks.rank_messages import Sizes
from headrace.engine.runner import Runner
from headrace.errors import ConfigError, ModelNotFound, UnsupportedModel
from headrace.kernels.ops import Ops
from headrace.kernels.weight import Weight
from headrace.models.assemble import Finish
from headrace.models.config import DecoderConfig
from headrace.models.decoder import DecoderWeights
from headrace.models.draft_heads import DraftHead
from headrace.models.eagle3 import Eagle3Config, build_head, build_tap, read_eagle3
from headrace.models.family import HF_NAMES, Names
from headrace.models.features import FeatureTap, feature_layer
from headrace.models.head_weights import HeadReader, StoredTensors
from headrace.models.mtp import MtpNames, build_mtp, check_sizes, find_mtp, head_config, mtp_tap
from headrace.platforms.interface import Device
from headrace.resolution import ModelFacts, Resolved, resolve
from headrace.types import KVLayout, LayerKV

__all__ = ["HEAD_METHODS", "HeadSource", "find_head"]

_log = logging.getLogger(__name__)
HEAD_METHODS = (EAGLE3, MTP)
_OPERATORS = frozenset({"store_features", "load_features", "take_rows", "widen_logits"})
_BIN = "pytorch_model.bin"


@dataclass(slots=True)
class HeadSource:
    """A head that fits its target: a `rank_loading.TapSource`. Weights are read by `load`."""

    method: str
    target: Checkpoint
    path: str
    source: StoredTensors
    decoder: DecoderConfig
    """Of the head's layers."""
    layout: KVLayout
    """Of the features in the target's cache and of the head's own cache, which has as many blocks."""
    precision: DraftWeights
    eagle3: Eagle3Config | None = None
    mtp: MtpNames | None = None
    max_model_len: int = 0
    _head: DraftHead | None = field(default=None, init=False)
    _reader: HeadReader | None = field(default=None, init=False)
    _ops: Any = field(default=None, init=False)
    _tap: FeatureTap | None = field(default=None, init=False)

    @property
    def layers(self) -> tuple[LayerKV, ...]:
        """The one that keeps features."""
        return (feature_layer(self.decoder.hidden, self.target.decoder_config.head_dim),)

    @property
    def total_bytes(self) -> int:
        """Of the weights in the head's own files, as they lie in memory."""
        if self.mtp is not None and not self.mtp.alone:
            return 0
        assert isinstance(self.source, SafetensorsSource)
        return head_bytes(Path(self.path), self.source, self.precision)

    def spare(self, sizes: Sizes) -> int:
        return 0

    def load(
        self, device: Device, ops: Ops, weights: DecoderWeights, finish: Finish, place: Callable[[torch.Tensor], Any]
    ) -> None:
        offset = self.target.norm_offset if self.mtp is not None and not self.mtp.alone else 0.0
        own = self.precision.of_head(finish)
        reader = HeadReader(self.source, self.path, own, place, lambda ints: device.put(ints.numpy()), offset)
        whole = replace(reader, finish=finish)
        self._ops, self._reader = ops, reader
        self._tap = self._make_tap(0)
        if self.eagle3 is not None:
            same = self.decoder.hidden == self.target.decoder_config.hidden
            embedding = self._tables(weights, whole)[0] if same else None
            self._head = build_head(self.eagle3, reader, ops, embedding, self.max_model_len)
        else:
            assert self.mtp is not None
            tables = self._tables(weights, whole)
            family = _names(self.target)
            self._head = build_mtp(self.mtp, self.decoder, reader, ops, family, tables, self.max_model_len)

    def tap(self, layer: int) -> FeatureTap:
        assert self._tap is not None
        return replace(self._tap, layer=layer)

    def make(
        self, device: Device, runner: Runner, resolved: Resolved, busy_seconds: Callable[[], float] | None
    ) -> HeadDrafter:
        """Bind it to the runner of the target. Raises OutOfMemory."""
        assert self._head is not None
        assert self._tap is not None
        layout = resolved.kv_layout
        feature = (len(runner.config.layout.layers) - 1, self._tap.width)
        own = replace(layout, layers=self.decoder.kv_layers)
        passes = HeadPasses(device, runner, self._head, own, resolved.num_blocks, feature)
        drafter = HeadDrafter(
            self.method,
            self.path,
            passes,
            resolved.num_blocks,
            layout.block_size,
            resolved.max_num_batched_tokens,
            resolved.max_model_len,
            self.target.decoder_config.vocab,
            self._head.zero_first,
            busy_seconds,
        )
        drafter.warm_up()
        runner.when_recovered.append(drafter.renew)
        size = self.precision.loaded / 1e6
        _log.info("drafts by %s of %s: weights %s, %.1f MB", self.method, self.path, self.precision.name, size)
        return drafter

    def _make_tap(self, layer: int) -> FeatureTap:
        reader, target = self._reader, self.target.decoder_config
        assert reader is not None
        if self.eagle3 is None:
            return mtp_tap(reader, self._ops, target, layer)
        return build_tap(self.eagle3, reader, self._ops, target.norm_eps, layer)

    def _tables(self, weights: DecoderWeights, reader: HeadReader) -> tuple[Weight, Weight]:
        """The target's embedding and output matrix. A rank of several has only its part of them: they are read again,
        whole."""
        if weights.first_token is None:
            return weights.embedding, weights.head
        own = replace(reader, source=cast(StoredTensors, self.target.source))
        assembly = own.assembly(self.target.decoder_config, self.target.names)
        return assembly.tables()


def find_head(config: Config, target: Checkpoint, device: Device) -> HeadSource | None:
    """The head of the methods `eagle3` and `mtp`, which has been compared with the target; None for other methods.

    Raises ConfigError, ModelNotFound, CheckpointError and UnsupportedModel.
    """
    method, path = config.scheduler.draft_method, config.scheduler.draft_model or ""
    if method not in HEAD_METHODS:
        return None
    if method == MTP:
        return _find_mtp(config, target, device, path)
    directory = Path(path)
    source = _open(directory)
    with located(directory / "config.json"):
        settings = read_eagle3(read_json(directory / "config.json"), source, target.decoder_config)
    layout = _layout(config, target, device, settings.decoder)
    precision = draft_weights(config, target, device.capabilities())
    return HeadSource(method, target, path, source, settings.decoder, layout, precision, eagle3=settings)


def _find_mtp(config: Config, target: Checkpoint, device: Device, path: str) -> HeadSource:
    """The head in the directory `path`, or without one that in the target's own checkpoint."""
    goal, source = target.decoder_config, _open(Path(path)) if path else target.source
    if not isinstance(source, SafetensorsSource):
        raise ConfigError(
            f"--speculate mtp: {target.path} is no directory of safetensors files: give that of its head, as "
            "mtp:CHECKPOINT"
        )
    names, where = frozenset(source.names), path or str(target.path)
    own = find_mtp(names, goal, where, alone=bool(path))
    if path:
        with located(Path(path) / "config.json"):
            check_sizes(read_json(Path(path) / "config.json"), goal)
    layers = head_config(own, names, goal, _names(target))
    layout, precision = _layout(config, target, device, layers), draft_weights(config, target, device.capabilities())
    return HeadSource(MTP, target, where, source, layers, layout, precision, mtp=own)


def _names(target: Checkpoint) -> Names:
    """The target's names of tensors in safetensors files."""
    return target.names if isinstance(target.source, SafetensorsSource) else HF_NAMES


def _layout(config: Config, target: Checkpoint, device: Device, head: DecoderConfig) -> KVLayout:
    """Raises ConfigError and UnsupportedModel, if the device lacks what the head's layers or its operators need."""
    goal = target.decoder_config
    layers = (*head.kv_layers, feature_layer(head.hidden, goal.head_dim))
    needs = tuple(own | _OPERATORS for own in head.operator_needs)
    facts = ModelFacts(layers, goal.max_position, goal.vocab, target.weight_dtype, head.attention_needs, needs)
    # Two blocks: only the layout counts here.
    cache = config.cache.model_copy(update={"num_blocks": 2})
    model = config.model.model_copy(update={"max_model_len": None})
    own = config.model_copy(update={"cache": cache, "model": model})
    return resolve(own, device.capabilities(), facts, 0, "the device of the draft head")[0].kv_layout


def _open(directory: Path) -> SafetensorsSource:
    if not present(directory / "config.json"):
        raise ModelNotFound(f"{directory}: no directory of a draft head: it has no config.json")
    if present(directory / _BIN) and not any(directory.glob("*.safetensors")):
        raise UnsupportedModel(
            f"{directory}: {_BIN} is not read, because a pickle may run code: load it by torch.load with "
            "weights_only=True, and write model.safetensors beside it with safetensors.torch.save_file"
        )
    return open_safetensors(directory, None)
