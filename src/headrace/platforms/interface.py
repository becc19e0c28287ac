"""The contract between Headrace and a platform: 23 names, version `types.API_VERSION`.

A platform is a small plugin, in this repository or outside of it. `Platform` finds devices without opening them.
`Device` holds memory, copies, and compiles a step. Three handles (`Executable`, `Pending`, `Communicator`) represent
work in flight. Only plans of padded host arrays and an opaque KV handle cross the contract: no stream, pointer or torch
type reaches the core. The KV handle is passed in and returned, so that a compiler can donate its buffers while other
devices update in place.

A raw backend has all eleven members of `Device`. If the chip is a `torch.device`, each has a tested default in
`torch_device.TorchDevice`. Only the engine's thread calls the methods, unless a docstring allows others;
`Pending.result` may be called from any thread.
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
    "ALL_TO_ALL",
    "CONTRACT",
    "KV",
    "PERSISTENT",
    "STEP_INPUTS",
    "BusySeconds",
    "CaptureReason",
    "ChecksDrafting",
    "Communicator",
    "Device",
    "ExchangesBlocks",
    "Executable",
    "NamesChip",
    "OpProfile",
    "OpReasons",
    "OrdersBlocks",
    "PackedForms",
    "PacksWeights",
    "PassesRows",
    "Pending",
    "Platform",
    "Profiled",
    "ProviderVersions",
    "StepFn",
    "StepInput",
    "Tagged",
    "Tensor",
    "TimesLaunches",
    "TorchTensors",
    "WorksInGroups",
    "own_extension",
]

ALL_TO_ALL = "all_to_all"
"""A device has it among its `collectives` if its communicators are `ExchangesBlocks`."""
T = TypeVar("T")
Tensor = Any
"""A device array, of any type that the device's operators accept. The engine passes it on and never reads it."""
KV = Any
"""The paged cache of one device: opaque, passed in and returned."""
StepFn = Callable[[KV, Mapping[str, Tensor]], tuple[KV, Mapping[str, Tensor]]]
"""One step in terms of bound operators: (kv, inputs) → (kv, outputs)."""


@runtime_checkable
class Pending(Protocol):
    """A host copy in flight."""

    def done(self) -> bool:
        """True once `result` would not block. Never blocks."""

    def result(self) -> npt.NDArray[Any]:
        """The host array; blocks until it is ready. Raises what the device's work raised (PlatformError)."""


@runtime_checkable
class Executable(Protocol):
    """A compiled step."""

    def __call__(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        """Launch the step in the device's order. With `async_exec` it returns before the step has finished. Outputs
        stay valid until the next call of the same executable has been launched; a `get` issued before that is safe.

        Without `in_place_kv` the call consumes `kv` and the persistent inputs: the caller continues with the returned
        ones. If the step fails, in the call or in a result, the caller must not use them again. It then allocates
        another cache with `alloc_kv`, whose content is empty, and calls the same executables with it."""


@runtime_checkable
class Communicator(Protocol):
    """Collectives of one group. Sum is the only reduction. With one rank they return the input unchanged.

    Tensor parallel models call `all_reduce` and `all_gather`. `reduce_scatter` is for sequences and experts that are
    spread over ranks, each of which needs its share of the tokens of a sum; `broadcast` is for data that only one rank
    has, such as masks of a grammar. The conformance kit tests all four.
    """

    def all_reduce(self, x: Tensor) -> Tensor: ...

    def all_gather(self, x: Tensor, dim: int) -> Tensor: ...

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor: ...

    def broadcast(self, x: Tensor, root: int) -> Tensor: ...


@runtime_checkable
class ExchangesBlocks(Protocol):
    """A `Communicator` with one more collective, whose device has `ALL_TO_ALL` among its `collectives`: for models
    whose ranks hold complete experts. It must work while a step is compiled, as all_reduce does."""

    def all_to_all(self, x: Tensor, dim: int) -> Tensor:
        """Along `dim`, block j of the result is this rank's block of rank j's x, in blocks of one size, in rank order.

        Raises PlatformError if the dimension is not divisible.
        """


@runtime_checkable
class Device(Protocol):
    """One opened device."""

    def capabilities(self) -> Capabilities:
        """The device's frozen capabilities; the same object every time."""

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes now."""

    def put(self, array: npt.NDArray[Any]) -> Tensor:
        """Copy a host array to the device, in order with launched work. The array may be reused when this returns."""

    def get(self, tensor: Tensor) -> Pending:
        """Start copying to the host, in order with launched work. Does not block if `async_exec` is declared."""

    def alloc_kv(self, layout: KVLayout, num_blocks: int) -> KV:
        """A zeroed cache. Raises OutOfMemory with the needed and the free bytes."""

    def copy_blocks(self, kv: KV, src: Sequence[int], dst: Sequence[int]) -> KV:
        """Copy blocks in all layers, in order with launched work. All sources are read before any destination is
        written."""

    def compile(self, step_fn: StepFn, bucket: Bucket) -> Executable:
        """Compile a step for inputs up to the bucket's sizes. May run `step_fn` to record it."""

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        """This device's implementation of an operator; None: the reference serves it. The callable may implement
        `PacksWeights` and `Tagged`."""

    def communicator(self, group: Sequence[int]) -> Communicator:
        """Collectives over the ranks of a group. Default: one rank, without an effect."""

    def extension(self, kind: Callable[..., T]) -> T | None:
        """The object that implements one of the optional protocols below; None if the device has none. Default:
        `own_extension`, which returns the device itself if it has the protocol's members."""

    def close(self) -> None:
        """Release all resources; later calls raise PlatformError. Calling it twice is harmless."""


@runtime_checkable
class Platform(Protocol):
    """Finds devices. It has no state. Importing and probing don't load a driver or open a context."""

    name: str
    api_version: tuple[int, int]

    def probe(self) -> tuple[int, str]:
        """(score, reason). 0: unusable here, for this reason. Below 10: used only if the user names it. Never
        raises."""

    def devices(self) -> list[DeviceInfo]:
        """The available devices, without opening them."""

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        """Open a device. Raises PlatformError that names the device and the remedy, also for unknown options."""


# The optional protocols: the engine and its tools request them with `extension`, or find them on objects of the device.


@runtime_checkable
class PackedForms(Protocol):
    """Converts a device's packed weights to plain headers and buffers, so that the engine can store them on disk.
    Called by one thread at a time."""

    @property
    def identity(self) -> str:
        """All inputs of packing except the checkpoint: version of the layout, instruction set, arithmetic."""

    def dump(self, weight: Weight) -> tuple[dict[str, Any], list[torch.Tensor]] | None:
        """A header for JSON and contiguous buffers with the complete packed form of a weight; None if there is none, or
        if it cannot be converted."""

    def load(self, weight: Weight, header: dict[str, Any], buffers: Sequence[torch.Tensor]) -> None:
        """Restore the result of `dump` in `weight.prepared`. Buffers are aligned to 64 bytes, and the device may keep
        them."""

    def take(self, size: int) -> torch.Tensor:
        """Memory for all buffers of a file, as the device prefers to read it: uint8 [size] on the host, aligned to 64
        bytes."""


@runtime_checkable
class NamesChip(Protocol):
    """A device of several kinds, whose arithmetic need not be the same to the bit."""

    @property
    def chip(self) -> str:
        """The kind. Cached blocks of others are not taken for its own."""


@runtime_checkable
class OrdersBlocks(Protocol):
    """A device that says in which order `gather_blocks` gives a block's bytes: of each layer the keys, the values, and
    their scales if there are any, each [KV heads, tokens, row] where a row holds one head of one token. Tokens may be
    in groups, if every block is a whole number of them. Between engines with such devices, blocks of another number of
    tokens and another split of the heads are converted; otherwise they are refused."""

    @property
    def block_padding(self) -> tuple[int, int]:
        """The multiple of values that a row of keys or values is padded to, and the multiple of bytes that each of
        those parts of a layer is padded to."""


@runtime_checkable
class BusySeconds(Protocol):
    """A device that measures its working time; for other devices the engine estimates it."""

    def busy_seconds(self) -> float:
        """Seconds in which the device has worked since it was opened."""


@runtime_checkable
class TimesLaunches(Protocol):
    """A device with `BusySeconds` that knows how long each launch took, without anyone having waited for it."""

    def mark(self) -> int:
        """A point behind all that has been launched. Later points are no smaller."""

    def busy_until(self, mark: int) -> float | None:
        """Seconds in which the device had worked when it had done all that is before the point; None if that is not
        done yet, or too long ago to be known."""


@runtime_checkable
class PassesRows(Protocol):
    """A `Communicator` of two ranks whose first passes rows of floats to its second, for stages of layers
    (`Capabilities.passes_rows`). Both are called inside a step, recorded with its other operators, in the same order on
    either side. Neither returns before the other rank has come that far."""

    def send_rows(self, x: Tensor) -> None:
        """Send float32 [T, width]. Only the first rank calls it."""

    def receive_rows(self, like: Tensor, width: int) -> Tensor:
        """float32 [T, width] that the first rank sends; `like` [T] has as many rows. Only the second rank calls it."""


@runtime_checkable
class ChecksDrafting(Protocol):
    """A device whose operators for drafts may be out of date; it is asked while a model with a drafter loads."""

    def check_drafting(self) -> None:
        """Raise PlatformError, with the remedy, if an operator that only drafters call cannot run."""


@runtime_checkable
class WorksInGroups(Protocol):
    """A device that was opened alone, and says what it would be able to do as one of several ranks: so a dry run
    refuses what the start of the ranks would."""

    def as_one_of_several(self) -> Capabilities:
        """Those that the device would declare."""


@runtime_checkable
class ProviderVersions(Protocol):
    """A device that supports vendors' libraries of operators, for `headrace doctor`."""

    def provider_versions(self) -> Mapping[str, str]:
        """Library → its version and the option that selects it, or that it is not installed."""


@runtime_checkable
class CaptureReason(Protocol):
    """A device that captures steps if it can, for `headrace doctor`."""

    def why_uncaptured(self) -> str:
        """Why steps are not captured; empty if they are."""


@dataclass(frozen=True, slots=True)
class OpProfile:
    """One operator of a recorded step. Shapes are (name of the symbolic dimension or a number, ...). `bytes`: read and
    written at the actual sizes of the last launch, without caches. `seconds`: mean of the profiled runs, 0 before the
    first."""

    name: str
    shapes: tuple[tuple[int | str, ...], ...]
    bytes: int
    seconds: float
    weight: str = ""
    """The form of the matrix that it reads; empty if it reads none."""
    arithmetic: str = "float32"
    """The dtype of its products."""


@runtime_checkable
class Profiled(Protocol):
    """An `Executable` that can measure its operators, for `headrace doctor --tape`."""

    def profile(self, on: bool | None = None) -> list[OpProfile]:
        """The operators in order, measured since the last call. `on` switches measuring."""


def own_extension(device: object, kind: Callable[..., T]) -> T | None:
    """The device itself if it has the members of an optional protocol, otherwise None."""
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
