"""Messages between rank 0 and the others: msgspec structs in MessagePack, over an `engine.channel`."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from headrace.engine.wire import WireError
from headrace.types import SamplingBatch, StepPlan

__all__ = ["Down", "Loaded", "Message", "Opened", "RunStep", "Sizes", "Start", "Stop", "decode", "encode"]

_Array = tuple[str, list[int], bytes]


class _Base(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An array whose first entry is the type's name."""


class Start(_Base, frozen=True):
    """To a rank, first: which one it is."""

    config: str
    """The user's `Config`, as JSON."""
    rank: int
    size: int
    index: int
    """The device to open."""
    rendezvous: str
    log_level: int = logging.WARNING
    """Rank 0's own: inside a script that asks for no log, the other ranks say no more than it does."""


class Sizes(_Base, frozen=True):
    """To a rank, once all devices are open: what rank 0 resolved."""

    max_model_len: int
    block_size: int
    kv_dtype: str
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int


class RunStep(_Base, frozen=True):
    """To a rank: run this plan behind those before it."""

    arrays: dict[str, _Array]
    step: int
    num_logprobs: int
    request_ids: tuple[str, ...]

    @classmethod
    def of(cls, plan: StepPlan) -> RunStep:
        arrays = {**_arrays(plan, ""), **_arrays(plan.sampling, "sampling.")}
        arrays |= {f"params.{name}": _packed(array) for name, array in plan.sampling.params.items()}
        return cls(arrays, plan.step, plan.sampling.num_logprobs, plan.request_ids)

    def plan(self) -> StepPlan:
        """The plan again, without the core's tag. Its arrays are read-only."""
        found: dict[str, Any] = {name: _array(*array) for name, array in self.arrays.items()}
        sampling, params = _taken(found, "sampling."), _taken(found, "params.")
        batch = SamplingBatch(params=params, **sampling, num_logprobs=self.num_logprobs)
        return StepPlan(step=self.step, sampling=batch, request_ids=self.request_ids, **found)


class Stop(_Base, frozen=True):
    """To a rank: end."""


class Opened(_Base, frozen=True):
    """From a rank: its device is open."""


class Loaded(_Base, frozen=True):
    """From a rank: it waits for steps."""


class Down(_Base, frozen=True):
    """From a rank, last: why it ends."""

    error: WireError


Message = Start | Sizes | RunStep | Stop | Opened | Loaded | Down
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Raises msgspec.DecodeError for what is not a message of ranks."""
    return _decoder.decode(data)


def _arrays(holder: StepPlan | SamplingBatch, prefix: str) -> dict[str, _Array]:
    values = ((field.name, getattr(holder, field.name)) for field in fields(holder))
    return {prefix + name: _packed(value) for name, value in values if isinstance(value, np.ndarray)}


def _taken(found: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): found.pop(name) for name in [*found] if name.startswith(prefix)}


def _packed(array: np.ndarray[Any, Any]) -> _Array:
    return array.dtype.str, list(array.shape), array.tobytes()


def _array(dtype: str, shape: list[int], data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(data, dtype).reshape(shape)
