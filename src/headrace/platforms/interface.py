"""The contract between Headrace and a platform: 23 names, version `types.API_VERSION`.

A platform is a small plugin, in this repository and outside it alike. `Platform` finds devices without touching them;
`Device` holds memory, copies, and compiles a step; three handles (`Executable`, `Pending`, `Communicator`) carry what is in
flight. What crosses is a padded host-array plan and an opaque KV handle: no stream, pointer or torch type reaches the core.
The KV handle is passed in and returned, so that a compiler can donate its buffers where others update in place.

A raw backend has all eleven members of `Device`; where the chip is a `torch.device`, each has a tested default in
`torch_device.TorchDevice`. Methods are called from one thread, the engine's, unless said otherwise; `Pending.result` may be
called from any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, runtime_checkable

import numpy.typing as npt

from headrace.kernels.spec import OpReasons, OpSpec, PacksWeights, Tagged, TorchTensors
from headrace.kernels.step_inputs import PERSISTENT, STEP_INPUTS, StepInput
from headrace.types import Bucket, Capabilities, DeviceInfo, KVLayout

if TYPE_CHECKING:
    import torch

    from headrace.kernels.weight import Weight

__all__ = [
    "CONTRACT",
    "KV",
    "PERSISTENT",
    "STEP_INPUTS",
    "BusySeconds",
    "CaptureReason",
    "Communicator",
    "Device",
    "Executable",
    "OpProfile",
    "OpReasons",
    "PackedForms",
    "PacksWeights",
    "Pending",
    "Platform",
    "Profiled",
    "ProviderVersions",
    "StepFn",
    "StepInput",
    "Tagged",
    "Tensor",
    "TorchTensors",
    "own_extension",
]

T = TypeVar("T")
Tensor = Any
"""A device array: whatever the device's operators take. The engine moves it and never looks inside."""
KV = Any
"""The paged cache of one device: opaque, passed in and handed back."""
StepFn = Callable[[KV, Mapping[str, Tensor]], tuple[KV, Mapping[str, Tensor]]]
"""One step in terms of bound operators: (kv, inputs) → (kv, outputs)."""


@runtime_checkable
class Pending(Protocol):
    """A host copy under way."""

    def done(self) -> bool:
        """True once `result` would not block. Never blocks."""

    def result(self) -> npt.NDArray[Any]:
        """The host array; blocks until it is there. Raises what the device's work raised (PlatformError)."""


@runtime_checkable
class Executable(Protocol):
    """A compiled step."""

    def __call__(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        """Launch the step in the device's order. Returns before it has finished where `async_exec` is declared. Outputs
        stay valid until the next call of the same executable has been launched and a `get` issued before then is safe.

        Where `in_place_kv` is not declared, the call takes `kv` and the inputs that persist: the caller goes on with what comes
        back, and uses nothing of them after a step that failed, in the call or in a result. It then allocates another cache
        with `alloc_kv`, forgets what the old one held, and calls the same executables on."""


@runtime_checkable
class Communicator(Protocol):
    """Collectives of one group. Sum is the only reduction. One rank: the input, unchanged.

    Models that are split by layers' width call `all_reduce` and `all_gather`. `reduce_scatter` is for sequences and experts
    spread over ranks, where each keeps its share of the tokens of a sum; `broadcast` for what one rank alone makes, as masks of
    a grammar. The conformance kit holds a group to all four.
    """

    def all_reduce(self, x: Tensor) -> Tensor: ...

    def all_gather(self, x: Tensor, dim: int) -> Tensor: ...

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor: ...

    def broadcast(self, x: Tensor, root: int) -> Tensor: ...


@runtime_checkable
class Device(Protocol):
    """One opened device."""

    def capabilities(self) -> Capabilities:
        """Frozen facts; the same object every time."""

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes now."""

    def put(self, array: npt.NDArray[Any]) -> Tensor:
        """Copy a host array to the device, in order with launched work. The array may be reused when this returns."""

    def get(self, tensor: Tensor) -> Pending:
        """Start copying to the host, in order with launched work. Does not block where `async_exec` is declared."""

    def alloc_kv(self, layout: KVLayout, num_blocks: int) -> KV:
        """A zeroed cache. Raises OutOfMemory with both numbers."""

    def copy_blocks(self, kv: KV, src: Sequence[int], dst: Sequence[int]) -> KV:
        """Copy whole blocks over all layers, in order with launched work; sources are read before destinations are written."""

    def compile(self, step_fn: StepFn, bucket: Bucket) -> Executable:
        """Make a step launchable for inputs up to the bucket's sizes. May run `step_fn` to record it."""

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        """This device's form of an operator, None where the reference serves. The callable may be `PacksWeights` and `Tagged`."""

    def communicator(self, group: Sequence[int]) -> Communicator:
        """Collectives over the ranks of a group. Default: one rank, no-op."""

    def extension(self, kind: Callable[..., T]) -> T | None:
        """What the device has of one of the optional protocols below, None where it has nothing. Default: `own_extension`, the
        device itself where it has the protocol's members."""

    def close(self) -> None:
        """Release everything; later calls raise PlatformError. Twice is harmless."""


@runtime_checkable
class Platform(Protocol):
    """Finds devices. Stateless; importing and probing load no driver and open no context."""

    name: str
    api_version: tuple[int, int]

    def probe(self) -> tuple[int, str]:
        """(score, reason). 0: unusable here, and the reason says why. Below 10: used only where it is named. Never raises."""

    def devices(self) -> list[DeviceInfo]:
        """What is there, unopened."""

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        """Open one. Raises PlatformError that names the device and the remedy. Unknown options are an error."""


# The optional protocols: what the engine and its tools ask of a device by `extension`, and may find on what it hands out.


@runtime_checkable
class PackedForms(Protocol):
    """A device's own forms of weights, as plain headers and buffers: with it the engine keeps packed weights on disk. Called by
    one thread at a time."""

    @property
    def identity(self) -> str:
        """Everything but the checkpoint that the forms depend on: the layout's version, instruction set, arithmetic."""

    def dump(self, weight: Weight) -> tuple[dict[str, Any], list[torch.Tensor]] | None:
        """A header for JSON and contiguous buffers of all that the device has prepared of this weight; None where that is
        nothing, or more than this can tell."""

    def load(self, weight: Weight, header: dict[str, Any], buffers: Sequence[torch.Tensor]) -> None:
        """Put what `dump` gave into `weight.prepared`. Buffers are aligned to 64 bytes, and may be kept."""

    def take(self, size: int) -> torch.Tensor:
        """Memory for all buffers of a file, where the device likes to read it: uint8 [size] on the host, aligned to 64 bytes."""


@runtime_checkable
class BusySeconds(Protocol):
    """A device that knows how long it has worked; the engine guesses it of others."""

    def busy_seconds(self) -> float:
        """Since it was opened."""


@runtime_checkable
class ProviderVersions(Protocol):
    """A device that knows vendors' libraries of operators, for `headrace doctor`."""

    def provider_versions(self) -> Mapping[str, str]:
        """Library → its version and how to ask for it, or that it is not installed."""


@runtime_checkable
class CaptureReason(Protocol):
    """A device that captures steps where it can, for `headrace doctor`."""

    def why_uncaptured(self) -> str:
        """Why steps are not captured; empty where they are."""


@dataclass(frozen=True, slots=True)
class OpProfile:
    """One operator of a recorded step. Shapes are (name of the symbolic dimension or a number, ...); `bytes` is what it reads and
    writes at the true sizes of the last launch, caches left out; `seconds` is the mean of the profiled runs, 0 before any."""

    name: str
    shapes: tuple[tuple[int | str, ...], ...]
    bytes: int
    seconds: float
    weight: str = ""
    """The form of the matrix that it reads; empty where it reads none."""
    arithmetic: str = "float32"
    """The type of its products."""


@runtime_checkable
class Profiled(Protocol):
    """An `Executable` that can measure its operators, for `headrace doctor --tape`."""

    def profile(self, on: bool | None = None) -> list[OpProfile]:
        """The operators in order, measured since the last call. `on` switches measuring."""


def own_extension(device: object, kind: Callable[..., T]) -> T | None:
    """The device itself where it has the members of an optional protocol."""
    return cast(T, device) if isinstance(device, cast(type, kind)) else None


CONTRACT: tuple[str, ...] = (
    "Platform.name",
    "Platform.api_version",
    "Platform.probe",
    "Platform.devices",
    "Platform.open",
    "Device.capabilities",
    "Device.memory",
    "Device.put",
    "Device.get",
    "Device.alloc_kv",
    "Device.copy_blocks",
    "Device.compile",
    "Device.op",
    "Device.communicator",
    "Device.close",
    "Device.extension",
    "Executable.__call__",
    "Pending.done",
    "Pending.result",
    "Communicator.all_reduce",
    "Communicator.all_gather",
    "Communicator.reduce_scatter",
    "Communicator.broadcast",
)
