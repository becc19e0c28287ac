"""A draft head or model on the device: runs passes on its own cache; a head reads features from the target's cache.

The first pass of a round computes the entries whose tokens are known and drafts one token for each sequence. Each
following pass computes one entry a sequence, out of the token of the pass before, and for a head out of its hidden
state; neither leaves the device. Every depth of a head has its own executable, so that a recorded one always reads the
same buffer.

If the device places sequences, every pass moves its rows to where the device knows them to be. The drafts are then in
the history, behind the known tokens, for the step that verifies them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy.typing as npt

from headrace.engine.head_plans import HeadPass
from headrace.engine.resident_inputs import ResidentInputs
from headrace.engine.runner import Runner
from headrace.kernels.inputs import batch_arrays, batch_of, pad_arrays, plan_arrays, sample_inputs_of
from headrace.kernels.ops import Batch, Ops, OptionalOps
from headrace.models.draft_heads import HeadLogits
from headrace.platforms.interface import KV, Device, Executable, Pending, StepFn, Tensor
from headrace.types import Bucket, KVLayout

__all__ = ["HeadPasses", "PassModel"]

Arrays = Mapping[str, npt.NDArray[Any]]
_READ, _GIVEN = -2, -1
"""In place of a depth: reads features, or only begins; computes entries whose tokens the plan has, without those of
the history."""


class PassModel(Protocol):
    """What one pass computes."""

    @property
    def ops(self) -> Ops: ...

    @property
    def lag(self) -> int:
        """Of an entry's embedding, how many tokens it stands behind the entry's own place."""

    def forward(self, batch: Batch, kv: Any, ids: Any, features: Any) -> HeadLogits:
        """T entries, whose keys and values go to `kv`. `ids` [T] are the tokens of their embeddings; `features` are
        None if the passes read none."""


class HeadPasses:
    """The executables of one head or model. One thread calls everything; nothing waits for the device."""

    def __init__(
        self,
        device: Device,
        runner: Runner,
        head: PassModel,
        layout: KVLayout,
        num_blocks: int,
        feature: tuple[int, int] | None = None,
    ) -> None:
        """`feature`: the layer of the target's cache that keeps features, and their width; None: the passes read none.
        Raises OutOfMemory."""
        self._device, self._runner, self._head = device, runner, head
        self._feature, self.lag = feature, head.lag
        self.places = runner.config.head_drafts
        """The device moves the rows of sequences that it places."""
        self._static = device.capabilities().static_shapes
        self._carry = not device.capabilities().in_place_kv
        self._layout, self._num_blocks = layout, num_blocks
        self._kv: KV = device.alloc_kv(layout, num_blocks)
        self._size = layout.block_size
        self._blocks = -(-runner.config.max_model_len // layout.block_size)
        self._executables: dict[tuple[int, Bucket], Executable] = {}
        self._resident = defaultdict[int, ResidentInputs](lambda: ResidentInputs(device))
        """By depth, as the inputs of one are most like its own of the round before."""
        self._hidden: Tensor = None
        self._rows = 0
        """The padded rows of the pass before."""

    def renew(self) -> None:
        """Allocate the cache again, empty. Raises PlatformError."""
        # Free the old buffers before the new ones are allocated.
        self._kv = self._hidden = None
        self._kv = self._device.alloc_kv(self._layout, self._num_blocks)

    def known(self, step: HeadPass, timed: bool) -> list[Pending]:
        """Launch a pass of entries whose tokens the plan has. The last result comes at its end; `timed`: another one
        when it begins."""
        return self._first(step, _GIVEN, timed)

    def first(self, step: HeadPass, timed: bool) -> list[Pending]:
        """The same for the pass that begins a round. Its result holds a token per sequence."""
        return self._first(step, 0 if self.places else _GIVEN, timed)

    def following(self, step: HeadPass, depth: int) -> Pending:
        """Launch the pass after `depth` drafts. Its sequences are the first ones of the pass before."""
        bucket = self._sized(self._runner.bucket(step.plan))
        rows = self._rows if self._static else bucket.rows
        return self._launch(step, depth, replace(bucket, tokens=rows, seqs=rows, rows=rows), self._hidden)

    def _first(self, step: HeadPass, depth: int, timed: bool) -> list[Pending]:
        bucket = self._sized(self._runner.bucket(step.plan))
        if self._feature is None:
            begun = [self._begin(step, bucket)] if timed else []
            return [*begun, self._launch(step, depth, bucket, None)]
        reading = {**batch_arrays(step.plan), "slot_mapping": step.places}
        if self.places:
            reading |= {"block_tables": step.tables, "bounds": step.bounds, "position": step.plan.sampling.position}
        inputs = self._put(_READ, reading, bucket)
        features = self._runner.read(self._executable(_READ, bucket), inputs, self.places)["features"]
        begun = [self._device.get(features)] if timed else []
        return [*begun, self._launch(step, depth, bucket, features)]

    def _begin(self, step: HeadPass, bucket: Bucket) -> Pending:
        """A result that comes when all that was launched before is done."""
        inputs = self._put(_READ, batch_arrays(step.plan), bucket)
        return self._device.get(self._runner.read(self._executable(_READ, bucket), inputs, True)["ids"])

    def _sized(self, bucket: Bucket) -> Bucket:
        return replace(bucket, blocks=self._blocks)

    def _launch(self, step: HeadPass, depth: int, bucket: Bucket, features: Tensor) -> Pending:
        where = {"bounds": step.bounds} if self.places else {"token_positions": step.token_positions}
        arrays = {**plan_arrays(step.plan, self._runner.config.vocab_size), **where}
        inputs = self._put(depth, arrays, bucket)
        if self._feature is None:
            depth = min(depth, 0)
        else:
            inputs["features"] = features
        self._kv, outputs = self._runner.run_beside(self._executable(depth, bucket), self._kv, inputs)
        self._hidden, self._rows = outputs.get("hidden"), bucket.rows
        return self._device.get(outputs["tokens"])

    def _put(self, depth: int, arrays: Arrays, bucket: Bucket) -> dict[str, Tensor]:
        if self._static:
            arrays = pad_arrays(arrays, bucket, self._runner.config.max_num_seqs)
        return self._resident[depth].put(arrays)

    def _executable(self, depth: int, bucket: Bucket) -> Executable:
        found = self._executables.get((depth, bucket))
        if found is None:
            function = self._read if depth == _READ else self._step_fn(depth)
            found = self._executables[depth, bucket] = self._device.compile(function, bucket)
        return found

    def _read(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        if self._feature is None:
            ids = self._head.ops.resolve_tokens(batch_of(inputs), inputs["history"])
            return kv, {"ids": ids, **self._history(inputs)}
        batch, _, _ = self._moved(inputs)
        features = cast(OptionalOps, self._head.ops).load_features(batch, kv, *self._feature)
        return kv, {"features": features, **(self._history(inputs) if self.places else {})}

    def _step_fn(self, depth: int) -> StepFn:
        head = self._head

        def step(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            batch, after, position = self._moved(inputs)
            features: Any = inputs.get("features")
            ids = batch.token_ids
            if depth != _GIVEN:
                ids = head.ops.resolve_tokens(replace(batch, positions=after), inputs["history"])
            if depth > 0:
                # The pass before may have had more rows; here each token is a row.
                features = cast(OptionalOps, head.ops).take_rows(features, batch)
            found = head.forward(batch, kv, ids, features)
            sampling = sample_inputs_of({**inputs, "position": position})
            out = head.ops.sample(found.logits, sampling, batch, -1)
            hidden = {} if self._feature is None else {"hidden": found.hidden}
            return kv, {"tokens": out.tokens, **hidden, **self._history(inputs)}

        return step

    def _moved(self, inputs: Mapping[str, Tensor]) -> tuple[Batch, Tensor, Tensor]:
        """The batch where the device knows its rows to be, the places of the tokens of its embeddings, and those of
        the samples."""
        batch = batch_of(inputs)
        if not self.places:
            return batch, inputs.get("token_positions"), inputs.get("position")
        own = cast(OptionalOps, self._head.ops)
        found = own.shift(batch, inputs["bounds"], inputs["position"], inputs["history"], self._size)
        return found.of(batch), found.next_positions if self.lag else found.positions, found.position

    def _history(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"history": inputs["history"]} if self._carry else {}
