"""Launches plans on a device and reads results back. Only `LaunchedStep.result` waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from headrace.engine.block_mover import BlockMover, stored
from headrace.engine.placed_steps import count_drafts, place_drafts
from headrace.engine.plans import history_plan
from headrace.engine.resident_inputs import ResidentInputs
from headrace.engine.second_look import first_not_finite
from headrace.errors import DeviceLost, PlatformError
from headrace.kernels.inputs import batch_arrays, batch_of, pad_arrays, plan_arrays, sample_inputs_of, sampling_arrays
from headrace.kernels.ops import Batch, Ops, OptionalOps
from headrace.models.sharding import Collectives
from headrace.platforms.interface import KV, Device, Executable, Pending, StepFn, Tensor
from headrace.types import Bucket, KVLayout, SamplingBatch, StepPlan, StepResult

__all__ = ["LaunchedStep", "Model", "Runner", "RunnerConfig", "constraint_sizes"]

_LOGPROB_STEPS = (-1, 0, 8, 32, 128)
"""Numbers of logprob alternatives that steps are compiled for."""


class Model(Protocol):
    """The members of a model that the runner uses."""

    def forward(self, batch: Batch, kv: Any, history: Any) -> Any:
        """Logits [R, V]."""


class HiddenModel(Model, Protocol):
    """A model whose hidden states can be read."""

    def hidden(self, batch: Batch, kv: Any, history: Any) -> Any:
        """Hidden states [T, D], of which `logits` makes the result of `forward`."""

    def logits(self, x: Any, batch: Batch) -> Any: ...


@dataclass(frozen=True, slots=True)
class RunnerConfig:
    layout: KVLayout
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    vocab_size: int
    drafts: int = 0
    """The most drafts of a sequence that the device makes; 0: plans have no `lengths`."""
    head_drafts: bool = False
    """They are those of a head, whose passes write them to the history; otherwise `ngram` finds them."""
    head_group: Collectives | None = None
    """The ranks of the model, if there are several: rank 0 alone has what makes the drafts."""


class _Nothing:
    """The tokens of a step that only moves blocks."""

    def done(self) -> bool:
        return True

    def result(self) -> npt.NDArray[Any]:
        return np.zeros(0, np.int32)


_NOTHING = _Nothing()


def _never() -> Mapping[str, Pending]:
    raise AssertionError("a step without tokens has no second part")


class LaunchedStep:
    """A step in flight."""

    def __init__(
        self,
        plan: StepPlan,
        outputs: Mapping[str, Pending] | None,
        sample: Callable[[], Mapping[str, Pending]],
        failed: Callable[[], None],
        parts: Sequence[tuple[int, Pending]] = (),
    ) -> None:
        """`outputs`: None if the step is split and `sample` must launch the rest. `failed` is called before an error of
        the device is raised. `parts`: blocks that were read before the step, see `BlockMover.gather`."""
        self._plan, self._outputs, self._sample, self._failed = plan, outputs, sample, failed
        self._parts = parts

    def take_stored(self) -> Callable[[], list[npt.NDArray[np.uint8]] | None]:
        """What waits for the blocks that were read before the step, and gives them; `result` does not any more. Any
        thread may call it, once."""
        parts, self._parts = self._parts, ()
        return partial(stored, parts)

    def sample(self) -> None:
        """Launch the second part of a split step, whose plan is complete now. Raises PlatformError."""
        try:
            self._outputs = self._sample()
        except PlatformError:
            self._failed()
            raise

    def done(self) -> bool:
        """True once `result` would not block."""
        moved = (pending for _, pending in self._parts)
        return self._outputs is not None and all(pending.done() for pending in (*self._outputs.values(), *moved))

    def result(self) -> StepResult:
        """The result of the step, all of which has been launched. Blocks until the device has finished. Raises
        PlatformError if the device's work failed."""
        assert self._outputs is not None
        try:
            arrays = {name: pending.result() for name, pending in self._outputs.items()}
            blocks = stored(self._parts)
        except PlatformError:
            self._failed()
            raise
        rows, top = self._plan.num_rows, max(0, self._plan.sampling.num_logprobs)
        wide = {n: a[:rows, :top] for n, a in arrays.items() if n.startswith("top_")}
        flat = {n: a[:rows] for n, a in arrays.items() if not n.startswith("top_")}
        if "hidden" in arrays:
            flat["hidden"] = np.asarray(arrays["hidden"][: self._plan.num_tokens], np.float32)
        if "counts" in arrays:
            flat["counts"] = arrays["counts"][: self._plan.num_seqs]
        return StepResult(**flat, **wide, stored=blocks)


class Runner:
    """Owns the cache, the token history and the compiled steps of one device.

    The history is int32 [max_num_seqs, max_model_len] on the device: the tokens of each running sequence by position. A
    step reads from it the tokens that the host does not have yet, so step N+1 can be launched before N is read back. If
    the device drafts, a last column holds the lengths of sequences that it places.
    """

    def __init__(self, device: Device, model: Model, ops: Ops, config: RunnerConfig) -> None:
        """Allocates the cache and the history. Raises OutOfMemory."""
        self.config = config
        self._device = device
        self._model = model
        self._ops = ops
        self._capabilities = device.capabilities()
        self._static = self._capabilities.static_shapes
        self._kv: KV = None
        self._history: Tensor = None
        self._allocate()
        self._allocations = 1
        """The number of times the cache was allocated: a step that fails late may have used an earlier cache."""
        self._donated_to_a_failure = False
        self.when_recovered: list[Callable[[], None]] = []
        """Called when the cache and the history were allocated again: what drafts has lost its own with them."""
        self._blocks = -(-config.max_model_len // config.layout.block_size)
        self._executables: dict[tuple[str, Bucket, int, int, bool, bool], Executable] = {}
        """By part of the step, bucket, numbers of logprob alternatives and of tokens that a row names, whether it
        places sequences, and whether it gives the hidden states."""
        self._resident = ResidentInputs(device)
        self._mover = BlockMover(device, ops)

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Launch a step after all earlier ones; of a split step, the forward pass. Raises PlatformError."""
        made = self._allocations
        outputs: dict[str, Pending] | None = None
        hidden: dict[str, Pending] = {}
        try:
            parts = self._prepare(plan)
            if not plan.num_tokens:
                return LaunchedStep(plan, {"tokens": _NOTHING}, _never, lambda: self._failed(made), parts)
            bucket = self.bucket(plan)
            inputs = self._inputs(batch_arrays(plan) if plan.split else self._all_arrays(plan), bucket)
            if plan.split:
                inputs |= self._call("forward", bucket, 0, inputs, plan.hidden)
                inputs.pop("history", None)
                hidden = {name: self._device.get(inputs.pop(name)) for name in ("hidden",) if name in inputs}
            else:
                outputs = self._sampled("step", bucket, plan, inputs)
        except PlatformError:
            self._failed(made)
            raise
        sample = partial(self._sample, plan, bucket, inputs, hidden)
        return LaunchedStep(plan, outputs, sample, lambda: self._failed(made), parts)

    def read(
        self, executable: Executable, inputs: Mapping[str, Tensor], with_history: bool = False
    ) -> Mapping[str, Tensor]:
        """Launch a drafter's executable on this cache, after all earlier steps. Raises PlatformError."""
        history = {"history": self._history} if with_history else {}
        self._kv, outputs = executable(self._kv, {**inputs, **history})
        self._history = outputs.get("history", self._history)
        return outputs

    def block_bytes(self) -> int:
        """Bytes of this rank's part of one block of the cache. Raises PlatformError if the device cannot move
        blocks."""
        return self._mover.block_bytes(self.read)

    def share_blocks(self, part: slice) -> None:
        """The bytes of blocks that plans load are of all ranks; `part` are this one's."""
        self._mover.part = part

    def run_beside(
        self, executable: Executable, kv: KV, inputs: Mapping[str, Tensor]
    ) -> tuple[KV, Mapping[str, Tensor]]:
        """Launch a drafter's executable on its own cache, with the token history. Raises PlatformError."""
        kv, outputs = executable(kv, {**inputs, "history": self._history})
        self._history = outputs.get("history", self._history)
        return kv, outputs

    def recover(self) -> bool:
        """Must be called after a step that failed. True if the cache had to be allocated again: with donated buffers
        the failed step has lost them, with the content of the cache. Raises DeviceLost if there is no memory for
        another cache."""
        if not self._donated_to_a_failure:
            return False
        self._donated_to_a_failure = False
        self._allocations += 1
        # Free the old buffers before the new ones are allocated.
        self._kv = self._history = None
        try:
            self._allocate()
        except PlatformError as error:
            raise DeviceLost(f"the KV cache cannot be made again after a step that failed: {error}") from error
        for renew in self.when_recovered:
            renew()
        return True

    def where_not_finite(self, tokens: Sequence[int]) -> str:
        """In words, for an error; as many of the tokens are computed once more as one step holds."""
        part = tokens[: self.config.max_num_batched_tokens]
        found = first_not_finite(self._device, self._model, self._ops, self.config.layout, self.config.vocab_size, part)
        if found is not None:
            return f"the first results that are not finite come from {found}"
        return f"computed alone and once more, the first {len(part)} of its tokens give finite numbers"

    def _allocate(self) -> None:
        config = self.config
        self._kv = self._device.alloc_kv(config.layout, config.num_blocks)
        # Padding rows write to an extra row after the last.
        shape = (config.max_num_seqs + self._static, config.max_model_len + (config.drafts > 0))
        self._history = self._device.put(np.zeros(shape, np.int32))

    def _failed(self, made: int) -> None:
        self._donated_to_a_failure |= not self._capabilities.in_place_kv and made == self._allocations

    def _prepare(self, plan: StepPlan) -> list[tuple[int, Pending]]:
        """Launch a plan's moves and copies of blocks and tokens, which come before its step. Returns what it reads."""
        parts = [] if plan.stores is None else self._mover.gather(self.read, plan.stores.tolist())
        if plan.loads:
            self._mover.scatter(self.read, plan.loads)
        if len(plan.copies):
            self._kv = self._device.copy_blocks(self._kv, plan.copies[:, 0].tolist(), plan.copies[:, 1].tolist())
        if len(plan.history_tokens):
            self._load_history(plan)
        return parts

    def _sample(
        self, plan: StepPlan, bucket: Bucket, inputs: Mapping[str, Tensor], more: Mapping[str, Pending]
    ) -> dict[str, Pending]:
        """Launch the second part of a split step. `inputs`: those of the first, and its logits; `more`: its other
        results."""
        if self._static:
            biases, masks = constraint_sizes(plan.sampling)
            bucket = replace(bucket, biases=biases, masks=masks)
        arrays = sampling_arrays(plan, self.config.vocab_size)
        return {**self._sampled("sample", bucket, plan, {**self._inputs(arrays, bucket), **inputs}), **more}

    def _all_arrays(self, plan: StepPlan) -> dict[str, npt.NDArray[Any]]:
        return plan_arrays(plan, self.config.vocab_size)

    def _sampled(self, part: str, bucket: Bucket, plan: StepPlan, inputs: Mapping[str, Tensor]) -> dict[str, Pending]:
        """Launch a part of the step that samples, and the copies of its results to the host."""
        top = next(k for k in _LOGPROB_STEPS if k >= plan.sampling.num_logprobs)
        whole = part == "step" and plan.hidden
        outputs = self._call(part, bucket, top, inputs, whole)
        names = ["tokens"] + ["hidden"] * whole
        if top >= 0:
            names += ["logprobs", "ranks"]
        if top > 0:
            names += ["top_ids", "top_logprobs"]
        names += ["counts"] * (plan.lengths is not None) + ["named"] * (plan.sampling.named is not None)
        return {name: self._device.get(outputs[name]) for name in names}

    def _inputs(self, arrays: Mapping[str, npt.NDArray[Any]], bucket: Bucket) -> dict[str, Tensor]:
        """The arrays on the device, padded if it needs that."""
        if self._static:
            arrays = pad_arrays(arrays, bucket, self.config.max_num_seqs)
        return self._resident.put(arrays)

    def _call(
        self, part: str, bucket: Bucket, top: int, inputs: Mapping[str, Tensor], hidden: bool = False
    ) -> Mapping[str, Tensor]:
        """Launch a part of a step; see `_step_fn`."""
        names = inputs["named"].shape[1] if "named" in inputs else 0
        key = part, bucket, top, names, "lengths" in inputs, hidden
        executable = self._executables.get(key)
        if executable is None:
            executable = self._executables[key] = self._device.compile(self._step_fn(part, top, hidden), bucket)
        self._kv, outputs = executable(self._kv, {**inputs, "history": self._history})
        self._history = outputs.get("history", self._history)
        return outputs

    def _step_fn(self, part: str, top: int, hidden: bool) -> StepFn:
        """`step` computes and samples, with `top` logprob alternatives; `forward` and `sample` are its two parts;
        `load` only writes the tokens of its inputs to the history. `hidden`: the hidden states are an output, too."""
        # With donated buffers the history becomes a new tensor at each step, like the cache.
        carry = not self._capabilities.in_place_kv

        def history_of(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {"history": inputs["history"]} if carry else {}

        def load(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            tokens = self._ops.resolve_tokens(batch_of(inputs), inputs["history"])
            return kv, {"tokens": tokens, **history_of(inputs)}

        def forward(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            config, size = self.config, self.config.layout.block_size
            placed = place_drafts(self._ops, inputs, config.drafts, size, config.head_drafts, config.head_group)
            found: dict[str, Tensor] = {name: placed[name] for name in ("drafts", "position") if name in placed}
            batch = batch_of({**inputs, **placed})
            if hidden:
                model = cast(HiddenModel, self._model)
                x = found["hidden"] = model.hidden(batch, kv, inputs["history"])
                logits = model.logits(x, batch)
            else:
                logits = self._model.forward(batch, kv, inputs["history"])
            return kv, {"logits": logits, **found, **history_of(inputs)}

        def sample(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            out = self._ops.sample(inputs["logits"], sample_inputs_of(inputs), batch_of(inputs), top)
            found = {"tokens": out.tokens, "logprobs": out.logprobs, "ranks": out.ranks}
            found |= count_drafts(self._ops, inputs, out.tokens)
            if "named" in inputs:
                by_name = cast(OptionalOps, self._ops).named_logprobs
                found["named"] = by_name(inputs["logits"], inputs["named"], out.top_logprobs)
            return kv, {**found, "top_ids": out.top_ids, "top_logprobs": out.top_logprobs, **history_of(inputs)}

        def step(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            kv, found = forward(kv, inputs)
            kv, sampled = sample(kv, {**inputs, **found})
            return kv, {**sampled, **{name: found[name] for name in ("hidden",) if name in found}}

        return {"load": load, "forward": forward, "sample": sample, "step": step}[part]

    def bucket(self, plan: StepPlan) -> Bucket:
        """The bucket of a plan. Without static shapes there are two: one for sampling, one for logprobs of all prompt
        tokens."""
        config = self.config
        many = plan.num_rows > config.max_num_seqs
        if not self._static:
            rows = config.max_num_batched_tokens if many else config.max_num_seqs
            return Bucket(config.max_num_batched_tokens, config.max_num_seqs, rows, self._blocks)
        tokens = _power_of_two(max(plan.num_tokens, plan.num_rows), config.max_num_batched_tokens)
        seqs = min(_power_of_two(plan.num_seqs, config.max_num_seqs), tokens)
        seqs = max(seqs, plan.num_seqs)
        rows = tokens if plan.num_rows > seqs else seqs
        return Bucket(tokens, seqs, rows, self._blocks, *constraint_sizes(plan.sampling))

    def _load_history(self, plan: StepPlan) -> None:
        """Write known tokens that no step computes to the history, with the operator that writes a step's tokens."""
        size = self.config.max_num_batched_tokens
        for start in range(0, len(plan.history_tokens), size):
            part = slice(start, start + size)
            tokens, positions = plan.history_tokens[part], plan.history_positions[part]
            history = history_plan(tokens, positions, plan.history_slots[part])
            bucket = self.bucket(history)
            self._call("load", bucket, 0, self._inputs(self._all_arrays(history), bucket))


def _power_of_two(value: int, most: int) -> int:
    return min(most, max(8, 1 << (value - 1).bit_length()))


def constraint_sizes(sampling: SamplingBatch) -> tuple[int, int]:
    """The padded numbers of biases and masks. A step is compiled for each size, and most batches have few or none."""
    return _coarse(len(sampling.bias_row)), 1 if sampling.allowed is None else _coarse(len(sampling.allowed))


def _coarse(count: int) -> int:
    """The next of 8, 64, 512, …"""
    size = 8
    while size < count:
        size *= 8
    return size
