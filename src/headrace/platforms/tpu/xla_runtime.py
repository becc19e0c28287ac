"""All calls of torch-xla. Another runtime would be another class with these members.

A step is traced once into a graph, which torch-xla compiles and caches under its hash. Later calls run the graph by
that hash with other tensors, so that no Python code of the model runs again. State tensors that the step replaces are
donated.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["TracedFunction", "XlaGraph", "XlaRuntime"]

Tensor = torch.Tensor
TracedFunction = Callable[[list[Tensor], list[Tensor]], tuple[list[Tensor], list[Tensor]]]
"""(state, inputs) → (new state, outputs). It may write to its state arguments, but never to inputs."""


@dataclass(frozen=True, slots=True)
class XlaGraph:
    """A compiled step. `sources`: the graph's inputs, each the number of an argument or a constant tensor. `results`:
    the caller's results, each ("computed", number), ("argument", number) or a tensor that no run changes."""

    name: str
    sources: tuple[int | Tensor, ...]
    results: tuple[tuple[str, int] | Tensor, ...]


class XlaRuntime:
    """torch-xla in this process. Tests replace `load`, which imports a module."""

    def __init__(self, load: Callable[[str], Any] = importlib.import_module) -> None:
        """Raises ImportError if torch-xla is missing."""
        self._load = load
        self._xla = load("torch_xla")
        self._model = load("torch_xla.core.xla_model")
        self._runtime = load("torch_xla.runtime")
        self._metrics = load("torch_xla.debug.metrics")
        self._c = self._xla._XLAC

    def device_count(self) -> int:
        return int(self._runtime.addressable_device_count())

    def device(self, index: int) -> torch.device:
        found: torch.device = self._xla.device(index)
        return found

    def rank(self) -> tuple[int, int]:
        """(number of this process, number of processes)."""
        return int(self._runtime.global_ordinal()), int(self._runtime.world_size())

    def memory(self, device: torch.device) -> tuple[int, int] | None:
        """(free, total) bytes; None if the runtime doesn't report it."""
        try:
            info = self._model.get_memory_info(device)
        except RuntimeError:
            return None
        total = int(info["bytes_limit"])
        return max(total - int(info["bytes_used"]), 0), total

    def exact_products(self) -> None:
        """Compute float32 products exactly instead of with one pass of bfloat16, in the complete process."""
        self._load("torch_xla.backends").set_mat_mul_precision("highest")

    def compilations(self) -> int:
        """The number of compilations in this process so far."""
        metric = self._metrics.metric_data("CompileTime")
        return int(metric[0]) if metric else 0

    def settle(self, tensors: Sequence[Tensor]) -> None:
        """Launch pending computations of the tensors. Does not wait."""
        late = [x for x, needed in zip(tensors, self._pending(tensors), strict=True) if needed]
        if late:
            self._c._xla_sync_multi(late, devices=[], wait=False, sync_xla_data=True)

    def wait(self) -> None:
        """Wait until all launched work has finished."""
        self._model.wait_device_ops()

    def capture(self, function: TracedFunction, state: Sequence[Tensor], inputs: Sequence[Tensor]) -> XlaGraph:
        """Trace and compile; nothing is run. State that the function replaces is donated at every run: the caller must
        not use those tensors afterwards."""
        self._xla.sync()
        self.wait()
        given = [*state, *inputs]
        numbers = {self._c._xla_get_tensor_id(x): at for at, x in enumerate(given)}
        # A clone shares the data of its origin, and writing to it doesn't change the origin.
        traced = [x.clone() for x in state]
        try:
            new, outputs = function(list(traced), list(inputs))
            places = {id(x): at for at, x in enumerate([*traced, *inputs])}
            computed, results = self._results([*new, *outputs], places)
            for x, result in zip(state, results, strict=False):
                if not isinstance(result, torch.Tensor) and result[0] == "computed":
                    self._c._set_buffer_donation(x, True)
            return self._compiled(computed, results, numbers)
        finally:  # a traced step, complete or not, must not run by itself
            self._c._clear_pending_irs(str(given[0].device if given else self.device(0)))

    def run(self, graph: XlaGraph, given: Sequence[Tensor]) -> list[Tensor]:
        """`given`: state, then inputs. Returns new state, then outputs, before the device has finished."""
        self.settle(given)
        taken = [given[x] if isinstance(x, int) else x for x in graph.sources]
        made = self._c._run_cached_graph(graph.name, taken) if graph.name else []
        own = {"computed": made, "argument": given}
        return [x if isinstance(x, torch.Tensor) else own[x[0]][x[1]] for x in graph.results]

    def call_kernel(self, function: Callable[..., Any], *tensors: Tensor | None, **static: Any) -> Any:
        """Add a JAX function over arrays to the graph. `function` must be the same object every time: it is the cache
        key of its lowered form."""
        return self._load("torch_xla.core.xla_builder").call_jax(function, tensors, static)

    def all_reduce(self, x: Tensor, groups: list[list[int]]) -> Tensor:
        found: Tensor = self._model.all_reduce("sum", x, groups=groups)
        return found

    def all_gather(self, x: Tensor, dim: int, groups: list[list[int]]) -> Tensor:
        found: Tensor = self._model.all_gather(x, dim, groups=groups)
        return found

    def reduce_scatter(self, x: Tensor, dim: int, groups: list[list[int]]) -> Tensor:
        found: Tensor = self._model.reduce_scatter("sum", x, 1.0, dim, len(groups[0]), groups=groups)
        return found

    def _pending(self, tensors: Sequence[Tensor]) -> list[bool]:
        return list(self._c._check_tensor_need_materialization(list(tensors)))

    def _results(
        self, found: list[Tensor], places: dict[int, int]
    ) -> tuple[list[Tensor], list[tuple[str, int] | Tensor]]:
        """(distinct tensors to compute, the source of each tensor of `found`)."""
        computed: list[Tensor] = []
        numbers: dict[int, int] = {}
        results: list[tuple[str, int] | Tensor] = []
        for x, late in zip(found, self._pending(found), strict=True):
            if not late:
                results.append(("argument", places[id(x)]) if id(x) in places else x)
                continue
            if id(x) not in numbers:
                numbers[id(x)] = len(computed)
                computed.append(x)
            results.append(("computed", numbers[id(x)]))
        return computed, results

    def _compiled(
        self,
        computed: list[Tensor],
        results: list[tuple[str, int] | Tensor],
        numbers: dict[int, int],
    ) -> XlaGraph:
        if not computed:
            return XlaGraph("", (), tuple(results))
        names, values = self._c._get_tensors_xla_device_data_node(computed)
        donors = self._c._xla_get_enable_alias_with_buffer_donor_config()
        self._c._xla_set_enable_alias_with_buffer_donor_config(True)
        try:
            name = self._c._get_graph_hash(computed)
            self._c._xla_warm_up_cache(computed, [])
        finally:
            self._c._xla_set_enable_alias_with_buffer_donor_config(donors)
        sources = tuple(numbers.get(number, value) for number, value in zip(names, values, strict=True))
        return XlaGraph(name, sources, tuple(results))
