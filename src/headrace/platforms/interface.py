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
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from headrace.kernels.spec import OpSpec
from headrace.types import Bucket, Capabilities, DeviceInfo, KVLayout

__all__ = ["CONTRACT", "KV", "Communicator", "Device", "Executable", "Pending", "Platform", "StepFn", "Tensor"]

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
    """Collectives of one group. Sum is the only reduction. One rank: the input, unchanged."""

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
        """This device's form of an operator, None where the reference serves. The callable may carry `pack(weight) → None`,
        called once a weight at load, and `tag: str`, the implementation's name for `doctor`."""

    def communicator(self, group: Sequence[int]) -> Communicator:
        """Collectives over the ranks of a group. Default: one rank, no-op."""

    def extension(self, name: str) -> object | None:
        """What has not yet earned a minor version. Default: None."""

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
