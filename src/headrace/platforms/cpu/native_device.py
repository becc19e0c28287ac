"""The CPU device on native kernels: steps are tapes, and one team of threads runs them in order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from headrace.errors import OutOfMemory, PlatformError
from headrace.kernels.linear.cpu_pack import Compute
from headrace.kernels.registry import OPTIONAL
from headrace.kernels.spec import OpSpec
from headrace.platforms.cpu.native import load
from headrace.platforms.cpu.native_args import CopyBlocksArgs
from headrace.platforms.cpu.native_blocks import NativeBlocks
from headrace.platforms.cpu.native_chain import NativeChain
from headrace.platforms.cpu.native_drafting import NativeDrafting
from headrace.platforms.cpu.native_features import NativeFeatures
from headrace.platforms.cpu.native_kv import GROUP, LINE, NativeKV
from headrace.platforms.cpu.native_launch import EagerLauncher, Launcher
from headrace.platforms.cpu.native_layout import (
    BLOCK_TWINS,
    CHAIN_TWINS,
    DRAFTER_KERNELS,
    DRAFTER_TWINS,
    EXPERT_TWINS,
    NAMED_TWINS,
    check_layouts,
)
from headrace.platforms.cpu.native_linear import KEY, NativeLinear
from headrace.platforms.cpu.native_moe import NativeMoE
from headrace.platforms.cpu.native_named import NativeNamed
from headrace.platforms.cpu.native_ops import NativeOps
from headrace.platforms.cpu.native_split import split_table
from headrace.platforms.cpu.native_team import Team, TicketPending
from headrace.platforms.cpu.numa import Placement
from headrace.platforms.cpu.packed_forms import CpuPackedForms
from headrace.platforms.cpu.tape import Tape
from headrace.platforms.cpu.tape_executable import TapeExecutable
from headrace.platforms.interface import ALL_TO_ALL, KV, Communicator, Executable, PackedForms, Pending, StepFn, Tensor
from headrace.platforms.torch_device import TorchDevice
from headrace.types import COLLECTIVES, QUANT_FORMATS, Bucket, Capabilities, KVLayout

__all__ = ["CAPABILITIES", "NativeDevice"]

CAPABILITIES = Capabilities(
    dtypes=frozenset({"float32", "bfloat16", "float16", "quantized"}),
    kv_dtypes=frozenset({"float32", "bfloat16", "float16", "int8", "float8_e4m3"}),
    quant_formats=QUANT_FORMATS,
    block_sizes=(16, 32, 64, 128, 256),
    async_exec=True,
    deterministic=True,
    host_memory=True,
    attention_features=frozenset({"gqa", "sliding_window", "soft_cap", "sinks", "alibi"}),
)
_SEVERAL = replace(CAPABILITIES, collectives=COLLECTIVES | {ALL_TO_ALL}, passes_rows=True)
"""Of one of several ranks."""
T = TypeVar("T")
_NO_KERNEL = "no native kernel, and a recorded step cannot use the reference: HEADRACE_NATIVE=0 serves it, slowly"
_COMPUTE: dict[str | None, Compute] = {
    None: "int8", "quantized": "int8", "bfloat16": "bfloat16", "float16": "float32", "float32": "float32",
}  # fmt: skip


class NativeDevice(TorchDevice):
    """One opened CPU device.

    `threads` None: one per physical core that the process may use, divided among the ranks. `isa` None: the best one.
    `rank`, `world_size`, `rendezvous`: see `torch_communicator.World`; all ranks are on this machine.

    `dtype` None: the fast arithmetic of each weight's format (int8 inputs for integer codes, bfloat16 inputs for
    bfloat16, otherwise float32). `float32`: exact arithmetic. `bfloat16`, `float16`: no integer products.
    """

    def __init__(
        self,
        threads: int | None = None,
        dtype: str | None = None,
        isa: str | None = None,
        rank: int = 0,
        world_size: int = 1,
        rendezvous: str = "",
    ) -> None:
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise PlatformError(f"cpu: option threads is {threads!r}: give a count")
        if dtype is not None and dtype not in _COMPUTE:
            raise PlatformError(f"cpu: option dtype is {dtype!r}: choose one of {', '.join(filter(None, _COMPUTE))}")
        self._world = None if (rank, world_size) == (0, 1) else _world(rank, world_size, rendezvous)
        super().__init__(torch.device("cpu"), CAPABILITIES if self._world is None else _SEVERAL, 1)
        library = load(isa)
        check_layouts(library)
        self.team = Team(library, threads, (rank, world_size))
        self._placement = Placement(self.team.cpus)
        self._ops = NativeOps(EagerLauncher(self.team))
        self._compute = _COMPUTE[dtype]
        matrices = NativeLinear(self._ops, self._compute)
        self._check_experts = lambda: check_layouts(library, EXPERT_TWINS)
        experts = NativeMoE(self._ops, matrices, self._check_experts)
        packs = {
            "linear": matrices.pack,
            "logits": matrices.pack,
            "embedding": matrices.pack_table,
            "gated_linear": matrices.pack,
            **dict.fromkeys(("moe", "own_experts"), experts.pack),
        }
        tag = f"native {self.team.library.isa}"
        check = lambda: check_layouts(library, DRAFTER_TWINS)  # noqa: E731
        functions: dict[str, Callable[..., Any]] = {**self._ops.table(), **matrices.table(), **experts.table()}
        functions.update({**NativeFeatures(self._ops, check).table(), **NativeDrafting(self._ops, check).table()})
        functions |= NativeBlocks(self._ops, lambda: check_layouts(library, BLOCK_TWINS)).table()
        functions |= NativeChain(self._ops, lambda: check_layouts(library, CHAIN_TWINS)).table()
        functions |= NativeNamed(self._ops, lambda: check_layouts(library, NAMED_TWINS)).table()
        functions["embedding"] = split_table(self._ops, matrices.embedding)
        self._table = {name: NativeOperator(function, tag, packs.get(name)) for name, function in functions.items()}

    @property
    def chip(self) -> str:
        """See `interface.NamesChip`."""
        return " ".join(f"{name} without dot products" for name in self.team.library.without_dot)

    @property
    def block_padding(self) -> tuple[int, int]:
        """See `interface.OrdersBlocks` and `native_kv.NativeKV`."""
        return GROUP, LINE

    def put(self, array: npt.NDArray[Any]) -> Tensor:
        self._check_open()
        return torch.from_numpy(array.copy())

    def get(self, tensor: Tensor) -> Pending:
        self._check_open()
        source = tensor.detach() if tensor.requires_grad else tensor
        if source.dtype == torch.bfloat16 or not source.is_contiguous():
            self.wait()
            source = source.float() if source.dtype == torch.bfloat16 else source.contiguous()
        host = torch.empty_like(source)
        size = source.nbytes
        ticket = self.team.run_copy(host.data_ptr(), source.data_ptr(), size, (source, host)) if size else 0
        return TicketPending(self.team, ticket, host.numpy())

    def alloc_kv(self, layout: KVLayout, num_blocks: int) -> KV:
        self._check_open()
        needed, (free, total) = num_blocks * layout.bytes_per_block, self.memory()
        if needed > free:
            raise OutOfMemory(
                f"cpu: a KV cache of {num_blocks} blocks needs {needed} bytes, but {free} of {total} are free: lower "
                "num_blocks or kv_memory"
            )
        return NativeKV(layout, num_blocks)

    def copy_blocks(self, kv: KV, src: Sequence[int], dst: Sequence[int]) -> KV:
        self._check_open()
        if len(src) != len(dst):
            raise PlatformError(f"cpu: copy_blocks got {len(src)} sources and {len(dst)} destinations")
        if not len(src):
            return kv
        for block in (*src, *dst):
            if not 0 <= block < kv.num_blocks:
                raise PlatformError(f"cpu: copy_blocks: block {block} of a cache of {kv.num_blocks}")
        stores = kv.stores()
        pointers = np.array([x.data_ptr() for x in stores], np.uint64)
        sizes = np.array([x[0].numel() * x.element_size() for x in stores], np.int64)
        strides = np.array([x.stride(0) * x.element_size() for x in stores], np.int64)
        pairs = np.ascontiguousarray(np.array([src, dst], np.int64).T)
        packed = CopyBlocksArgs(*(x.ctypes.data for x in (pointers, sizes, strides, pairs)), len(stores), len(src))
        function = ctypes.cast(self.team.library.functions.hr_copy_blocks, ctypes.c_void_p).value
        assert function is not None
        self.team.run_kernel(function, packed, keep=(kv, pointers, sizes, strides, pairs))
        return kv

    def compile(self, step_fn: StepFn, bucket: Bucket) -> Executable:
        """A tape, recorded at the first call, which also moves its weights to the memory nodes of its threads."""
        self._check_open()
        return TapeExecutable(self.team, step_fn, bucket, self._swap, self._place)

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        return self._table.get(spec.name)

    def communicator(self, group: Sequence[int]) -> Communicator:
        """Collectives over shared memory; a tape can record them."""
        if len(group) == 1 or self._world is None:
            return super().communicator(group)
        from headrace.platforms.cpu.native_communicator import connect

        return connect(self._world, group, self._ops, self.team.threads, self._check_experts)

    def wait(self) -> None:
        """Wait until all launched work has run."""
        self.team.wait(self.team.run_tape(None, None, None, 0, None))

    def op_reasons(self) -> Mapping[str, str]:
        """Why the reference serves some optional operators."""
        return {spec.name: _NO_KERNEL for spec in OPTIONAL if spec.name not in self._table}

    def check_drafting(self) -> None:
        check_layouts(self.team.library, DRAFTER_TWINS)
        for kernel in DRAFTER_KERNELS:
            self.team.library.kernel(kernel)

    def busy_seconds(self) -> float:
        """The time during which the team had work."""
        return self.team.busy_seconds

    def as_one_of_several(self) -> Capabilities:
        """See `interface.WorksInGroups`."""
        return _SEVERAL

    def extension(self, kind: Callable[..., T]) -> T | None:
        if kind is PackedForms:
            return cast(T, CpuPackedForms(KEY.format(self._compute), self._compute, self.team.library.isa))
        return super().extension(kind)

    def close(self) -> None:
        super().close()
        self.team.close()
        if self._world is not None:
            self._world.close()

    def _place(self, tape: Tape) -> None:
        self.wait()
        self._placement.place(tape.products)

    def _swap(self, launcher: Launcher) -> Launcher:
        before, self._ops.launcher = self._ops.launcher, launcher
        return before


def _world(rank: int, size: int, rendezvous: str) -> Any:
    # Imported late: torch's collectives take long to import, and most devices are the only rank.
    from headrace.platforms.torch_communicator import World

    return World(rank, size, rendezvous)


class NativeOperator:
    """An operator with its tag for `doctor`."""

    def __init__(self, function: Callable[..., Any], tag: str, pack: Callable[[Any], None] | None = None) -> None:
        self._function, self.tag = function, tag
        if pack is not None:
            self.pack = pack

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)
