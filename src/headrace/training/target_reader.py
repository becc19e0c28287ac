"""Reads the target's hidden states, computed by the operators of the device that will serve it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from headrace.checkpoints.checkpoint import Checkpoint, open_checkpoint
from headrace.config import Config
from headrace.engine.plans import single_sequence_plan
from headrace.engine.rank_loading import load_rank, open_rank
from headrace.engine.ranks.rank_messages import Sizes
from headrace.kernels.inputs import batch_arrays, batch_of, pad_arrays
from headrace.kernels.ops import Ops
from headrace.kernels.registry import bind
from headrace.models.decoder import Decoder, DecoderWeights
from headrace.models.sharding import Shard
from headrace.plugins import discover
from headrace.resolution import resolve
from headrace.types import Bucket

__all__ = ["TargetReader"]

Tensor = torch.Tensor


class _CapturingOps:
    """The operators, with notes of the residual stream where each layer's first norm reads it, and of the last norm's
    output."""

    def __init__(self, ops: Ops, weights: DecoderWeights) -> None:
        self._ops, self._final = ops, weights.norm
        self._norms = {id(layer.input_norm): at for at, layer in enumerate(weights.layers)}
        self._norms[id(weights.norm)] = len(weights.layers)
        self.found: dict[int, Tensor] = {}
        """By capture point: 0 is the embedding, n the residual stream after n layers."""
        self.final: Tensor | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operator: Callable[..., Any] = getattr(self._ops, name)
        return operator

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if id(weight) in self._norms:
            self.found[self._norms[id(weight)]] = x
        return self._ops.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        y, total = self._ops.add_rms_norm(x, residual, weight, eps)
        if id(weight) in self._norms:
            self.found[self._norms[id(weight)]] = total
        if weight is self._final:
            self.final = y
        return y, total


class TargetReader:
    """A target on its device."""

    def __init__(self, config: Config, points: Sequence[int], longest: int) -> None:
        """Load the model. `points`: the capture points, `longest`: tokens of the longest sequence.

        `config` is for one rank. Raises what opening and loading a model raise.
        """
        assert config.parallel.world_size == 1
        self._points, self._longest = tuple(points), longest
        checkpoint = open_checkpoint(config.model.model)
        platform, _ = discover().select_platform(config.device.platform)
        self._device = open_rank(platform, config, config.device.index, 0, "")
        try:
            self._load(config, checkpoint)
        except BaseException:
            self._device.close()
            raise

    def _load(self, config: Config, checkpoint: Checkpoint) -> None:
        cache = config.cache.model_copy(update={"num_blocks": 2, "kv_memory": None})
        resolved, _ = resolve(
            config.model_copy(update={"cache": cache}), self._device.capabilities(), checkpoint.facts(), 0
        )
        self._layout = resolved.kv_layout
        blocks = self._longest // self._layout.block_size + 2
        sizes = Sizes(self._longest, self._layout.block_size, self._layout.dtype, blocks, 1, self._longest)
        loaded = load_rank(config, checkpoint, self._device, Shard(0, 1), sizes, lambda stage, done: None)
        loaded.finish_saving()
        self._ops = _CapturingOps(bind(self._device), loaded.weights)
        put = None if self._device.capabilities().host_memory else self._put
        self._model = Decoder(checkpoint.decoder_config, cast(Ops, self._ops), loaded.weights, self._longest, place=put)
        self._kv = self._device.alloc_kv(self._layout, blocks)
        self._history = self._device.put(np.zeros((2, self._longest), np.int32))
        self._bucket = Bucket(self._longest, 1, 1, blocks - 1)
        self._step = self._device.compile(self._forward, self._bucket)

    def _put(self, tensor: Tensor) -> Any:
        return self._device.put(tensor.numpy())

    def _forward(self, kv: Any, inputs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        self._model.forward(batch_of(inputs), kv, inputs["history"])
        found = {str(point): self._ops.found[point] for point in self._points}
        assert self._ops.final is not None
        return kv, {**found, "final": self._ops.final, "history": inputs["history"]}

    def read(self, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(features [T, m H], the last norm's output [T, H]) of one sequence, in float32. Raises PlatformError."""
        plan = single_sequence_plan(len(tokens), 0, self._layout.block_size)
        arrays = batch_arrays(replace(plan, token_ids=np.array(tokens, np.int32)))
        if self._device.capabilities().static_shapes:
            arrays = pad_arrays(arrays, self._bucket, 1)
        inputs = {name: self._device.put(np.ascontiguousarray(array)) for name, array in arrays.items()}
        self._kv, outputs = self._step(self._kv, {**inputs, "history": self._history})
        self._history = outputs["history"]
        names = (*(str(point) for point in self._points), "final")
        pending = [self._device.get(outputs[name]) for name in names]
        parts = [torch.from_numpy(one.result()[: len(tokens)]).float() for one in pending]
        features = torch.cat(parts[:-1], 1) if len(parts) > 1 else torch.zeros(len(tokens), 0)
        return features, parts[-1]

    def close(self) -> None:
        self._device.close()
