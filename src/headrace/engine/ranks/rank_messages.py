"""Messages between rank 0 and the others: msgspec structs in MessagePack, over an `engine.channel`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from headrace.engine.wire import WireError
from headrace.types import SamplingBatch, StepPlan, StepResult

__all__ = [
    "BlocksRead",
    "Loaded",
    "Opened",
    "RankFailed",
    "RankMessage",
    "RunStep",
    "SampleStep",
    "Sizes",
    "Start",
    "StepDone",
    "Stop",
    "decode",
    "encode",
]

_Array = tuple[str, list[int], bytes]
_CONSTRAINTS = ("bias_row", "bias_token", "bias_value", "allowed", "allowed_row")
"""Fields of `SamplingBatch` that a split plan gets when it is completed."""


class _RankStruct(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages: an array whose first entry is the name of the type."""


class Start(_RankStruct, frozen=True):
    """The first message to a rank: its number and configuration."""

    config: str
    """The user's `Config`, as JSON."""
    rank: int
    size: int
    index: int
    """The device to open."""
    rendezvous: str
    log_level: int = logging.WARNING
    """Log level of rank 0: the other ranks log no more than rank 0 does."""


class Sizes(_RankStruct, frozen=True):
    """Sent to a rank after all devices have been opened: the values that rank 0 resolved."""

    max_model_len: int
    block_size: int
    kv_dtype: str
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int


class RunStep(_RankStruct, frozen=True):
    """Sent to a rank: run this plan after the earlier ones."""

    arrays: dict[str, _Array]
    step: int
    num_logprobs: int
    request_ids: tuple[str, ...]
    split: bool
    hidden: bool
    loads: tuple[tuple[int, bytes], ...] = ()
    """(block, this rank's part of its bytes)."""

    @classmethod
    def of(cls, plan: StepPlan) -> RunStep:
        arrays = {**_arrays(plan, ""), **_arrays(plan.sampling, "sampling.")}
        arrays |= {f"params.{name}": _packed(array) for name, array in plan.sampling.params.items()}
        return cls(arrays, plan.step, plan.sampling.num_logprobs, plan.request_ids, plan.split, plan.hidden)

    def loading(self, loads: Sequence[tuple[int, Any]], part: slice) -> RunStep:
        """The same for a rank with this part of the bytes of each block."""
        return msgspec.structs.replace(
            self, loads=tuple((block, bytes(memoryview(data)[part])) for block, data in loads)
        )

    def plan(self) -> StepPlan:
        """The plan, without the core's tag. Its arrays are read-only."""
        found: dict[str, Any] = {name: _array(*array) for name, array in self.arrays.items()}
        sampling, params = _pop_prefixed(found, "sampling."), _pop_prefixed(found, "params.")
        batch = SamplingBatch(params=params, **sampling, num_logprobs=self.num_logprobs)
        found |= {"split": self.split, "hidden": self.hidden, "loads": self.loads}
        return StepPlan(step=self.step, sampling=batch, request_ids=self.request_ids, **found)


class SampleStep(_RankStruct, frozen=True):
    """Sent to a rank: run the second part of the last step, whose plan is complete now."""

    arrays: dict[str, _Array]

    @classmethod
    def of(cls, plan: StepPlan) -> SampleStep:
        constraints = {name: getattr(plan.sampling, name) for name in _CONSTRAINTS}
        arrays = {"row_target": plan.row_target, **constraints}
        return cls({name: _packed(array) for name, array in arrays.items() if array is not None})

    def complete(self, plan: StepPlan) -> None:
        """Set the values that the core has set on rank 0."""
        found = {name: _array(*array) for name, array in self.arrays.items()}
        plan.row_target = found.pop("row_target")
        for name, array in found.items():
            setattr(plan.sampling, name, array)


class Stop(_RankStruct, frozen=True):
    """Sent to a rank: end."""


class Opened(_RankStruct, frozen=True):
    """Sent by a rank: its device is open."""


class Loaded(_RankStruct, frozen=True):
    """Sent by a rank: it is loaded and waits for steps."""

    block_bytes: int = 0
    """Of its part of a block; 0 if no blocks are moved."""


class StepDone(_RankStruct, frozen=True):
    """Sent by the last stage of a pipeline: the result of a step."""

    step: int
    arrays: dict[str, _Array]

    @classmethod
    def of(cls, step: int, result: StepResult) -> StepDone:
        return cls(step, _arrays(result, ""))

    def result(self) -> StepResult:
        """The result. Its arrays are read-only."""
        found: dict[str, Any] = {name: _array(*array) for name, array in self.arrays.items()}
        return StepResult(**found)


class BlocksRead(_RankStruct, frozen=True):
    """Sent by a rank: its parts of the blocks that a step has read, in order."""

    step: int
    blocks: tuple[bytes, ...]


class RankFailed(_RankStruct, frozen=True):
    """The last message of a rank: the error that ends it."""

    error: WireError


RankMessage = Start | Sizes | RunStep | SampleStep | StepDone | BlocksRead | Stop | Opened | Loaded | RankFailed
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[RankMessage] = msgspec.msgpack.Decoder(RankMessage)


def encode(message: RankMessage) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes) -> RankMessage:
    """Raises msgspec.DecodeError for what is not a message of ranks."""
    return _decoder.decode(data)


def _arrays(holder: StepPlan | SamplingBatch | StepResult, prefix: str) -> dict[str, _Array]:
    values = ((field.name, getattr(holder, field.name)) for field in fields(holder))
    return {prefix + name: _packed(value) for name, value in values if isinstance(value, np.ndarray)}


def _pop_prefixed(found: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): found.pop(name) for name in [*found] if name.startswith(prefix)}


def _packed(array: np.ndarray[Any, Any]) -> _Array:
    return array.dtype.str, list(array.shape), array.tobytes()


def _array(dtype: str, shape: list[int], data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(data, dtype).reshape(shape)
