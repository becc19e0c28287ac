"""A draft head on the device: reads features from the target's cache and runs passes on its own cache.

The first pass of a round computes the entries whose tokens are known and drafts one token for each sequence. Each
following pass computes one entry a sequence, out of the hidden state and the token of the pass before, which never
leave the device. Every depth has its own executable, so that a recorded one always reads the same buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from headrace.engine.head_plans import HeadPass
from headrace.engine.runner import Runner
from headrace.kernels.inputs import batch_arrays, batch_of, pad_arrays, plan_arrays, sample_inputs_of
from headrace.kernels.ops import OptionalOps
from headrace.models.draft_heads import DraftHead
from headrace.platforms.interface import KV, Device, Executable, Pending, StepFn, Tensor
from headrace.types import Bucket, KVLayout

__all__ = ["HeadPasses"]

Arrays = Mapping[str, npt.NDArray[Any]]


class HeadPasses:
    """The executables of one head. One thread calls everything; nothing waits for the device."""

    def __init__(
        self,
        device: Device,
        runner: Runner,
        head: DraftHead,
        layout: KVLayout,
        num_blocks: int,
        feature: tuple[int, int],
    ) -> None:
        """`feature`: the layer of the target's cache that keeps features, and their width. Raises OutOfMemory."""
        self._device, self._runner, self._head = device, runner, head
        self._layer, self._width = feature
        self._static = device.capabilities().static_shapes
        self._carry = not device.capabilities().in_place_kv
        self._kv: KV = device.alloc_kv(layout, num_blocks)
        self._blocks = -(-runner.config.max_model_len // layout.block_size)
        self._executables: dict[tuple[int, Bucket], Executable] = {}
        self._hidden: Tensor = None
        self._rows = 0
        """The padded rows of the pass before."""

    def first(self, step: HeadPass, places: npt.NDArray[np.int32]) -> Pending:
        """Launch the pass of known entries, whose features are at `places`. The result holds a token per sequence."""
        bucket = self._sized(self._runner.bucket(step.plan))
        reading = {**batch_arrays(step.plan), "slot_mapping": places}
        features = self._runner.read(self._executable(-1, bucket), self._put(reading, bucket))["features"]
        return self._launch(step, 0, bucket, features)

    def following(self, step: HeadPass, depth: int) -> Pending:
        """Launch the pass after `depth` drafts. Its sequences are the first ones of the pass before."""
        bucket = self._sized(self._runner.bucket(step.plan))
        rows = self._rows if self._static else bucket.rows
        return self._launch(step, depth, replace(bucket, tokens=rows, seqs=rows, rows=rows), self._hidden)

    def _sized(self, bucket: Bucket) -> Bucket:
        return replace(bucket, blocks=self._blocks)

    def _launch(self, step: HeadPass, depth: int, bucket: Bucket, features: Tensor) -> Pending:
        arrays = {**plan_arrays(step.plan, self._runner.config.vocab_size), "token_positions": step.token_positions}
        inputs = {**self._put(arrays, bucket), "features": features}
        self._kv, outputs = self._runner.run_beside(self._executable(depth, bucket), self._kv, inputs)
        self._hidden, self._rows = outputs["hidden"], bucket.rows
        return self._device.get(outputs["tokens"])

    def _put(self, arrays: Arrays, bucket: Bucket) -> dict[str, Tensor]:
        if self._static:
            arrays = pad_arrays(arrays, bucket, self._runner.config.max_num_seqs)
        return {name: self._device.put(np.ascontiguousarray(array)) for name, array in arrays.items()}

    def _executable(self, depth: int, bucket: Bucket) -> Executable:
        found = self._executables.get((depth, bucket))
        if found is None:
            function = self._read if depth < 0 else self._step_fn(depth)
            found = self._executables[depth, bucket] = self._device.compile(function, bucket)
        return found

    def _read(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        ops = cast(OptionalOps, self._head.ops)
        return kv, {"features": ops.load_features(batch_of(inputs), kv, self._layer, self._width)}

    def _step_fn(self, depth: int) -> StepFn:
        head, carry = self._head, self._carry

        def step(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            batch, features = batch_of(inputs), inputs["features"]
            ids = batch.token_ids
            if depth:
                written = replace(batch, positions=inputs["token_positions"])
                ids = head.ops.resolve_tokens(written, inputs["history"])
                # The pass before may have had more rows; here each token is a row.
                features = cast(OptionalOps, head.ops).take_rows(features, batch)
            found = head.forward(batch, kv, ids, features)
            out = head.ops.sample(found.logits, sample_inputs_of(inputs), batch, -1)
            history = {"history": inputs["history"]} if carry else {}
            return kv, {"tokens": out.tokens, "hidden": found.hidden, **history}

        return step
