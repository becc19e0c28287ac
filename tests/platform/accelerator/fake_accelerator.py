"""A device module like `torch.cuda` on CPU tensors: streams and events keep a journal, graphs are kept in recorded
form.

What is captured is recorded and undone; `replay` runs the record again on the same tensors. Reading a value on the host
while capturing is an error, as it is on a device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from stream_mark import Mark
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from headrace.kernels.registry import DRAFTING, HEAD_DRAFTING, OPS
from headrace.kernels.tritonlib.chip import TritonChip
from headrace.kernels.tritonlib.launch_config import config_for, run
from headrace.platforms.accelerator.accelerator_options import AcceleratorOptions
from headrace.platforms.accelerator.torch_runtime import TorchRuntime
from headrace.platforms.accelerator.triton_operators import OperatorSource, OperatorTable
from headrace.types import Capabilities

GIB = 1 << 30
_READS_ON_HOST = ("aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::equal")


class Event:
    """`torch.cuda.Event`, with the errors that torch and the runtime have for a wrong use of times and captures."""

    def __init__(self, module: FakeModule, enable_timing: bool = False) -> None:
        self._module, self._timing = module, enable_timing
        self.stream: Stream | None = None
        self._mark: Mark | None = None
        """Where it was last recorded. Recorded again, it forgets where it was."""
        self._captured = False

    def record(self, stream: Stream) -> None:
        self._module.check()
        self._module.journal.append(("record", stream.name))
        self.stream, self._captured = stream, self._module.recorder is not None
        if self._timing:
            self._module.now += self._module.event_time
        self._mark = stream.last = Mark(stream.last, at=self._module.now)
        if not self._module.slow:
            self._mark.wait()

    def query(self) -> bool:
        self._check()
        return self._mark is None or self._mark.passed

    def synchronize(self) -> None:
        self._check()
        if self._mark is not None:
            self._mark.wait()

    def elapsed_time(self, end_event: Event) -> float:
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._mark is None or end_event._mark is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return float(np.float32(end_event._mark.at - self._mark.at))

    def _check(self) -> None:
        self._module.check()
        if self._module.recorder is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nsome advice")
        if self._captured:
            raise RuntimeError("CUDA error: operation not permitted on an event last recorded in a capturing stream")


class Stream:
    def __init__(self, module: FakeModule, name: str) -> None:
        self._module = module
        self.name = name
        self.last: Mark | None = None

    def wait_event(self, event: Event) -> None:
        assert event.stream is not None, "an event is recorded before it is waited for"
        assert event._mark is not None
        self._module.journal.append(("wait", self.name, event.stream.name))
        self._follow(event._mark)

    def wait_stream(self, stream: Stream) -> None:
        self._module.journal.append(("wait", self.name, stream.name))
        if stream.last is not None:
            self._follow(stream.last)

    def synchronize(self) -> None:
        self._module.check()
        if self.last is not None:
            self.last.wait()

    def _follow(self, mark: Mark) -> None:
        """What comes next is behind a place in another stream, too."""
        if not mark.passed:
            self.last = Mark(self.last, mark)


class Graph:
    """Steps in recorded form."""

    def __init__(self, module: FakeModule) -> None:
        self._module = module
        self.steps: list[Callable[[], None]] = []
        self.keep: list[Any] = []
        self.replays = 0

    def replay(self) -> None:
        self._module.check()
        self._module.journal.append(("replay", self._module.current_stream().name))
        self.replays += 1
        for step in self.steps:
            step()


class FakeModule:
    """`properties`: what `get_device_properties` gives for each device."""

    def __init__(self, *properties: Any, graph: str = "CUDAGraph", total: int = 8 * GIB) -> None:
        self._properties = properties
        self.journal: list[tuple[str, ...]] = []
        self.graphs: list[Graph] = []
        self.slow = False
        """Events recorded from now on pass only once they, or what is behind them, are waited for."""
        self.now = 0.0
        """The device's clock in milliseconds. Only `work`, events with times and tests let it go on."""
        self.event_time = 2.0**-11
        """Milliseconds that such an event takes, which is about what it resolves."""
        self.failure: RuntimeError | None = None
        self.recorder: Recorder | None = None
        self.total, self.others = total, 0
        self.reserved = self.allocated = 0
        self._count = 0
        self._local = threading.local()
        self.default = Stream(self, "default")
        if graph:
            setattr(self, graph, self._new_graph)

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def Event(self, enable_timing: bool = False) -> Event:
        return Event(self, enable_timing)

    def work(self, milliseconds: float) -> None:
        """Something that takes the device so long; in a capture, each time that it is replayed."""

        def step() -> None:
            self.now += milliseconds

        if self.recorder is None:
            step()
        else:
            self.recorder.graph.steps.append(step)

    def Stream(self, device: Any = None) -> Stream:
        self._count += 1
        return Stream(self, ("compute", "copies")[self._count - 1] if self._count < 3 else f"stream{self._count}")

    def current_stream(self, device: Any = None) -> Stream:
        found: Stream = getattr(self._local, "stream", self.default)
        return found

    def set_stream(self, stream: Stream) -> None:
        self._local.stream = stream

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream()
        self.set_stream(stream)
        try:
            yield
        finally:
            self.set_stream(before)

    def device_count(self) -> int:
        return len(self._properties)

    def get_device_properties(self, index: int) -> Any:
        return self._properties[index]

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return self.total - self.others - self.reserved, self.total

    def memory_reserved(self, device: Any) -> int:
        return self.reserved

    def memory_allocated(self, device: Any) -> int:
        return self.allocated

    def empty_cache(self) -> None:
        self.check()
        self.reserved = self.allocated
        self.journal.append(("empty_cache",))

    def graph_pool_handle(self) -> object:
        return ("pool",)

    def _new_graph(self) -> Graph:
        self.graphs.append(Graph(self))
        return self.graphs[-1]

    @contextmanager
    def graph(self, graph: Graph, pool: Any = None, stream: Any = None, **options: Any) -> Iterator[None]:
        assert stream is not None
        assert stream.name == "compute"
        assert pool == ("pool",)
        self.recorder = Recorder(graph)
        try:
            with self.stream(stream), self.recorder:
                yield
        finally:
            self.recorder.undo()
            self.recorder = None


class Effects(NamedTuple):
    """Of an operator of torch, by its schema."""

    reads_on_host: bool
    allocates: bool
    """And no more: `empty`."""
    views: bool
    """Its result shares the data of an argument."""
    writes: tuple[tuple[int, str], ...]
    """Positions and names of the arguments that it writes to."""


@cache
def effects_of(func: Any) -> Effects:
    schema = func._schema
    written = [s.alias_info is not None and s.alias_info.is_write for s in schema.arguments]
    return Effects(
        schema.name in _READS_ON_HOST,
        schema.name.startswith("aten::empty"),
        any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns),
        tuple((at, s.name) for at, s in enumerate(schema.arguments) if written[at]),
    )


class Recorder(TorchDispatchMode):
    """Runs what is captured to learn its results, writes it down, and undoes what it did to tensors from outside."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would make torch import its compiler, which takes a second and is never used here.
        return False

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph = graph
        self._inside = 0
        self._own: set[int] = set()
        self._before: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        does = effects_of(func)
        if not self._inside and does.reads_on_host:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nsome advice")
        written = [args[at] if at < len(args) else kwargs.get(name, does) for at, name in does.writes]
        written = [x for x in written if x is not does]
        if written:
            self._remember([x for x in written if isinstance(x, torch.Tensor)])
        found = func(*args, **kwargs)
        if not does.views and not written:
            self._claim(found)
        if not self._inside:  # What is inside of an operator is made anew by each replay.
            if not does.views and not does.allocates:
                self.graph.steps.append(_again(lambda: func(*args, **kwargs), None if written else found))
            self.graph.keep.append((args, kwargs, found))
        return found

    def operator(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """One complete operator, as a kernel is one node of a graph."""
        self._inside += 1
        try:
            found = function(*args, **kwargs)
        finally:
            self._inside -= 1
        self.graph.steps.append(_again(lambda: function(*args, **kwargs), found))
        self.graph.keep.append((args, kwargs, found))
        return found

    def launch(self, kernel: Any, grid: tuple[int, ...], args: dict[str, Any], warps: int, stages: int) -> None:
        """One kernel, which writes behind torch's back."""
        with _disable_current_modes():
            self._remember(_tensors(list(args.values())))
        self.operator(run, (kernel, grid, args, warps, stages), {})

    def undo(self) -> None:
        for storage, saved in self._before:
            storage.copy_(saved)

    def _remember(self, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._own:
                self._own.add(storage.data_ptr())
                self._before.append((storage, storage.clone()))

    def _claim(self, found: Any) -> None:
        self._own |= {tensor.untyped_storage().data_ptr() for tensor in _tensors(found)}


def _again(again: Callable[[], Any], into: Any) -> Callable[[], None]:
    def step() -> None:
        for target, source in zip(_tensors(into), _tensors(again()), strict=into is not None):
            target.copy_(source)

    return step


def _tensors(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, tuple | list):
        return [tensor for item in found for tensor in _tensors(item)]
    if is_dataclass(found):
        return [tensor for field in fields(found) for tensor in _tensors(getattr(found, field.name))]
    return []


class RecordedOperator:
    """A reference that a capture takes for one kernel."""

    tag = "recorded reference"

    def __init__(self, module: FakeModule, function: Callable[..., Any]) -> None:
        self._module = module
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = self._module.recorder
        if recorder is None:
            return self._function(*args, **kwargs)
        return recorder.operator(self._function, args, kwargs)


def operators_of(module: FakeModule, *names: str) -> OperatorSource:
    """Every operator that a platform's own table has, but those of some architectures alone; or those named."""
    specs = [spec for spec in (*OPS, *DRAFTING, *HEAD_DRAFTING) if not names or spec.name in names]
    table = {spec.name: RecordedOperator(module, spec.reference) for spec in specs}
    return lambda capabilities, chip, options: (table, "not in the fake's table")


def triton_of(module: FakeModule) -> OperatorSource:
    """The Triton operators as they are, glue and all; a capture takes each kernel's launch for one node."""

    def launch(kernel: Any, grid: tuple[int, ...], args: dict[str, Any], warps: int, stages: int) -> None:
        (module.recorder.launch if module.recorder else run)(kernel, grid, args, warps, stages)

    def source(capabilities: Capabilities, chip: TritonChip, options: AcceleratorOptions) -> tuple[OperatorTable, str]:
        from headrace.kernels.tritonlib.operator_set import operators

        return operators(config_for(chip, options.dtype, launch=launch)), ""

    return source


def runtime_of(module: FakeModule, graph: str = "CUDAGraph") -> TorchRuntime:
    return TorchRuntime(module, "cpu", pinned=False, graph=graph)


H200 = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, shared_memory_per_block_optin=232448
)
MI300X = SimpleNamespace(
    name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-", multi_processor_count=304,
    shared_memory_per_block=65536,
)  # fmt: skip
MAX1550 = SimpleNamespace(
    name="Intel(R) Data Center GPU Max 1550", sub_group_sizes=[16, 32], gpu_subslice_count=64, has_fp16=True,
    has_bfloat16_conversions=True, has_subgroup_matrix_multiply_accumulate=True, local_mem_size=131072,
)  # fmt: skip
