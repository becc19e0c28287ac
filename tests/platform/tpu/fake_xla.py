"""torch-xla's modules on the CPU: tensors are plain, tracing is a recording of operators, and donated tensors end as
poison.

Between `sync`, which begins a trace, and `_clear_pending_irs`, which ends it, every operator is written down; running a
graph by its hash calls them again on other tensors. Nothing of this knows the model: only what is an argument to an
operator can change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from headrace.platforms.tpu.xla_runtime import XlaRuntime

GIB = 1 << 30
Tensor = torch.Tensor


class Tape(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would make torch import its compiler, which takes a second and is never used here.
        return False

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, Any, Any, Any]] = []
        self.made: set[int] = set()
        self.clones: set[int] = set()

    def pending(self, x: Tensor) -> bool:
        """A clone that nothing was written to is its origin."""
        return id(x) in self.made and not (id(x) in self.clones and x._version == 0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.steps.append((func, args, kwargs or {}, found))
        if func is torch.ops.aten.clone.default:
            self.clones.add(id(found))
        self.made.update(map(id, tensors(found)))
        return found


def tensors(value: Any) -> Iterator[Tensor]:
    """Those in an operator's arguments or results, in their order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from tensors(one)


class Program:
    """A tape to run on other tensors. Where each operator finds its tensors is looked up once, when this is made:
    hundreds of operators on tiny tensors would spend most of a run's time on that."""

    def __init__(self, tape: Tape, values: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """`values` are what a run is given, `outputs` what it gives."""
        self._places = {id(x): at for at, x in enumerate(values)}
        self._steps = [self._step(*step) for step in tape.steps]
        self._outputs = [self._places[id(x)] for x in outputs]

    def run(self, given: Sequence[Tensor]) -> list[Tensor]:
        now: list[Any] = [*given, *[None] * (len(self._places) - len(given))]
        for func, constant, by_number, named, by_name, place, places in self._steps:
            args, kwargs = list(constant), named
            for number, source in by_number:
                args[number] = source(now)
            if by_name:
                kwargs = {**named, **{name: source(now) for name, source in by_name}}
            found = func(*args, **kwargs)
            if place is not None:
                now[place] = found
                continue
            for at, x in zip(places, tensors(found), strict=True):
                now[at] = x
        return [now[place] for place in self._outputs]

    def _step(self, func: Any, args: Any, kwargs: Any, found: Any) -> tuple[Any, ...]:
        by_number = [(at, self._source(x)) for at, x in enumerate(args) if any(True for _ in tensors(x))]
        by_name = [(name, self._source(x)) for name, x in kwargs.items() if any(True for _ in tensors(x))]
        places = [self._places.setdefault(id(x), len(self._places)) for x in tensors(found)]
        # One tensor, as most operators give, or several.
        place = places[0] if isinstance(found, Tensor) else None
        return getattr(func, "_op", func), args, by_number, kwargs, by_name, place, places

    def _source(self, x: Any) -> Callable[[list[Any]], Any]:
        """Gives what stands in for `x`. A result may be a constant (of `lift_fresh`): it has no place before."""
        if isinstance(x, Tensor) and id(x) in self._places:
            return itemgetter(self._places[id(x)])
        if isinstance(x, tuple | list):
            parts = [self._source(one) for one in x]
            return lambda now: [part(now) for part in parts]
        return lambda now: x


class FakeXla:
    """One process with `count` devices, of `ranks` processes. `failure` is raised by the next run, `late` by copies."""

    def __init__(self, count: int = 1, rank: int = 0, ranks: int = 1) -> None:
        self.count, self.rank, self.ranks = count, rank, ranks
        self.compiled = self.runs = 0
        self.failure: BaseException | None = None
        self.used: int | None = GIB
        self.precision = ""
        self.journal: list[tuple[Any, ...]] = []
        self._tape: Tape | None = None
        self._graphs: dict[str, tuple[Tape, Program, list[bool]]] = {}
        """The tape keeps its tensors, whose ids say which they are."""
        self._donors: set[int] = set()
        self._aliasing = False

    def load(self, name: str) -> Any:
        c = SimpleNamespace(**{n: getattr(self, n) for n in dir(self) if n.startswith("_") and not n.startswith("__")})
        return {
            "torch_xla": SimpleNamespace(_XLAC=c, sync=self._sync, device=lambda index: torch.device("cpu")),
            "torch_xla.core.xla_model": SimpleNamespace(
                get_memory_info=self._memory, wait_device_ops=lambda: None, all_reduce=self._all_reduce,
                all_gather=self._all_gather, reduce_scatter=self._reduce_scatter,
            ),
            "torch_xla.runtime": SimpleNamespace(
                addressable_device_count=lambda: self.count, global_ordinal=lambda: self.rank,
                world_size=lambda: self.ranks,
            ),
            "torch_xla.debug.metrics": SimpleNamespace(
                metric_data=lambda name: (self.compiled, 0.0, ()) if self.compiled else None
            ),
            "torch_xla.backends": SimpleNamespace(set_mat_mul_precision=lambda p: setattr(self, "precision", p)),
            "torch_xla.core.xla_builder": SimpleNamespace(call_jax=self._call_jax),
        }[name]  # fmt: skip

    def runtime(self) -> XlaRuntime:
        return XlaRuntime(self.load)

    def _sync(self) -> None:
        self._tape = Tape()
        self._tape.__enter__()

    def _clear_pending_irs(self, device: str) -> None:
        assert self._tape is not None
        self._tape.__exit__(None, None, None)
        self._tape = None
        self._donors.clear()

    def _xla_get_tensor_id(self, x: Tensor) -> int:
        return id(x)

    def _check_tensor_need_materialization(self, tensors: Sequence[Tensor]) -> list[bool]:
        return [self._tape is not None and self._tape.pending(x) for x in tensors]

    def _xla_sync_multi(self, tensors: Sequence[Tensor], devices: Any, wait: bool, sync_xla_data: bool) -> None:
        raise AssertionError("nothing is late here")

    def _set_buffer_donation(self, x: Tensor, donate: bool) -> None:
        self._donors.add(id(x))

    def _xla_get_enable_alias_with_buffer_donor_config(self) -> bool:
        return self._aliasing

    def _xla_set_enable_alias_with_buffer_donor_config(self, on: bool) -> None:
        self._aliasing = on

    def _get_tensors_xla_device_data_node(self, outputs: list[Tensor]) -> tuple[list[int], list[Tensor]]:
        """Tensors that operators took and none has made."""
        assert self._tape is not None
        taken: dict[int, Tensor] = {}
        for _, args, kwargs, _ in self._tape.steps:
            for x in tensors([*args, *kwargs.values()]):
                if id(x) not in self._tape.made:
                    taken[id(x)] = x
        return list(taken), list(taken.values())

    def _get_graph_hash(self, outputs: list[Tensor]) -> str:
        assert self._tape is not None
        assert self._aliasing, "donation counts only while it is asked for"
        name = f"graph{len(self._graphs)}"
        _, values = self._get_tensors_xla_device_data_node(outputs)
        program = Program(self._tape, values, outputs)
        self._graphs[name] = (self._tape, program, [id(x) in self._donors for x in values])
        return name

    def _xla_warm_up_cache(self, outputs: list[Tensor], devices: list[str]) -> None:
        self.compiled += 1

    def _run_cached_graph(self, name: str, given: list[Tensor]) -> list[Tensor]:
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.runs += 1
        _, program, donated = self._graphs[name]
        made = [x.clone() for x in program.run(given)]
        for x, gone in zip(given, donated, strict=True):
            if gone:
                x.fill_(77 if not x.is_floating_point() else torch.nan)
        return made

    def _memory(self, device: torch.device) -> dict[str, int]:
        if self.used is None:
            raise RuntimeError("UNIMPLEMENTED: GetAllocatorStats is not supported")
        return {"bytes_limit": 16 * GIB, "bytes_used": self.used}

    def _all_reduce(self, kind: str, x: Tensor, groups: Any) -> Tensor:
        self.journal.append((kind, groups))
        return x * len(groups[0])

    def _all_gather(self, x: Tensor, dim: int, groups: Any) -> Tensor:
        self.journal.append(("gather", groups))
        return torch.cat([x] * len(groups[0]), dim)

    def _reduce_scatter(self, kind: str, x: Tensor, scale: float, dim: int, count: int, groups: Any) -> Tensor:
        self.journal.append((kind, count, groups))
        return x.narrow(dim, 0, x.shape[dim] // count) * count * scale

    def _call_jax(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.journal.append(("kernel", function))
        with _disable_current_modes():
            found = function(*args, **kwargs)
        return found
