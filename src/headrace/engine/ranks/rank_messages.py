"""What rank 0 and the others say to each other: msgspec structs in MessagePack, framed by their length, over a socket pair."""

from __future__ import annotations

import socket
import struct
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from headrace.engine.wire import WireError
from headrace.types import SamplingBatch, StepPlan

__all__ = ["Down", "Loaded", "Message", "Opened", "Sizes", "Start", "Step", "Stop", "receive", "send"]

_FRAME = struct.Struct("<I")
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


class Sizes(_Base, frozen=True):
    """To a rank, once all devices are open: what rank 0 resolved."""

    max_model_len: int
    block_size: int
    kv_dtype: str
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int


class Step(_Base, frozen=True):
    """To a rank: run this plan behind those before it."""

    arrays: dict[str, _Array]
    step: int
    num_logprobs: int
    request_ids: tuple[str, ...]

    @classmethod
    def of(cls, plan: StepPlan) -> Step:
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


Message = Start | Sizes | Step | Stop | Opened | Loaded | Down
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def send(to: socket.socket, message: Message) -> None:
    """Raises OSError where nobody is left to read."""
    data = _encoder.encode(message)
    to.sendall(_FRAME.pack(len(data)) + data)


def receive(source: socket.socket) -> Message | None:
    """The next message; None once the other end is closed. Raises OSError, msgspec.DecodeError."""
    head = _exactly(source, _FRAME.size)
    data = None if head is None else _exactly(source, _FRAME.unpack(head)[0])
    return None if data is None else _decoder.decode(data)


def _exactly(source: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


def _arrays(holder: StepPlan | SamplingBatch, prefix: str) -> dict[str, _Array]:
    values = ((field.name, getattr(holder, field.name)) for field in fields(holder))
    return {prefix + name: _packed(value) for name, value in values if isinstance(value, np.ndarray)}


def _taken(found: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): found.pop(name) for name in [*found] if name.startswith(prefix)}


def _packed(array: np.ndarray[Any, Any]) -> _Array:
    return array.dtype.str, list(array.shape), array.tobytes()


def _array(dtype: str, shape: list[int], data: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(data, dtype).reshape(shape)
