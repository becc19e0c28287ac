"""The device: numpy arrays, steps of static shapes, a cache that every call takes over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.errors import HeadraceError, OutOfMemory, PlatformError
from headrace.kernels.spec import OpSpec
from headrace.platforms.host import host_memory
from headrace.platforms.interface import PERSISTENT, Communicator, StepFn, own_extension
from headrace.platforms.one_rank import OneRank
from headrace.types import ATTENTION_FEATURES, QUANT_FORMATS, Bucket, Capabilities, KVLayout
from headrace_numpy.operators import OPERATORS

__all__ = ["CAPABILITIES", "Cache", "NumpyDevice"]

Array = npt.NDArray[Any]
T = TypeVar("T")
CAPABILITIES = Capabilities(
    dtypes=frozenset({"float32"}),
    kv_dtypes=frozenset({"float32", "float16"}),
    quant_formats=QUANT_FORMATS,  # made dense at load
    block_sizes=(16, 32),
    static_shapes=True,
    in_place_kv=False,
    attention_features=ATTENTION_FEATURES,
    host_memory=True,
)


class Cache:
    """Keys and values by layer, [num_blocks, block_size, heads, head_dim] each. Dead once a call has taken it."""

    def __init__(self, layout: KVLayout, stores: list[tuple[Array, Array]]) -> None:
        self.layout = layout
        self._stores: list[tuple[Array, Array]] | None = stores

    @property
    def stores(self) -> list[tuple[Array, Array]]:
        """Raises PlatformError where the cache was given away."""
        if self._stores is None:
            raise PlatformError("numpy: this cache was donated to a step: go on with the one that came back")
        return self._stores

    def take(self) -> Cache:
        """The same memory under another handle."""
        taken = Cache(self.layout, self.stores)
        self._stores = None
        return taken


@dataclass(frozen=True, slots=True)
class Ready:
    """An `interface.Pending`: work has ended when a launch returns."""

    array: Array

    def done(self) -> bool:
        return True

    def result(self) -> Array:
        return self.array


class NumpyDevice:
    """An `interface.Device`, from nothing."""

    def __init__(self) -> None:
        self._closed = False

    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def memory(self) -> tuple[int, int]:
        return host_memory()

    def put(self, array: Array) -> Array:
        self._check_open()
        return np.array(array, copy=True)

    def get(self, tensor: Array) -> Ready:
        self._check_open()
        return Ready(np.array(tensor, copy=True))

    def alloc_kv(self, layout: KVLayout, num_blocks: int) -> Cache:
        self._check_open()
        needed, (free, total) = num_blocks * layout.bytes_per_block, self.memory()
        if needed > free:
            raise OutOfMemory(
                f"numpy: a KV cache of {num_blocks} blocks needs {needed} bytes, but {free} of {total} are free: lower "
                "num_blocks or kv_memory"
            )

        def store(heads: int, size: int) -> Array:
            return np.zeros((num_blocks, layout.block_size, heads, size), layout.dtype)

        shapes = [(layer.num_kv_heads, layer.head_dim) for layer in layout.layers]
        return Cache(layout, [(store(*shape), store(*shape)) for shape in shapes])

    def copy_blocks(self, kv: Cache, src: Sequence[int], dst: Sequence[int]) -> Cache:
        self._check_open()
        taken = kv.take()
        for stores in taken.stores:
            for store in stores:
                store[list(dst)] = store[list(src)]  # the right-hand side is a copy
        return taken

    def compile(self, step_fn: StepFn, bucket: Bucket) -> NumpyStep:
        self._check_open()
        return NumpyStep(step_fn)

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        return OPERATORS.get(spec.name)

    def communicator(self, group: Sequence[int]) -> Communicator:
        if len(group) != 1:
            raise PlatformError(f"numpy: no collectives here, but a group of {len(group)} ranks was asked for")
        return OneRank()

    def extension(self, kind: Callable[..., T]) -> T | None:
        return own_extension(self, kind)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise PlatformError("numpy: the device has been closed")


class NumpyStep:
    """An `interface.Executable`. A compiler would translate the step for the shapes of its first call; this only holds
    every
    later call to them."""

    def __init__(self, step_fn: StepFn) -> None:
        self._step_fn = step_fn
        self._shapes: dict[str, tuple[int, ...]] | None = None

    def __call__(self, kv: Any, inputs: Mapping[str, Array]) -> tuple[Any, Mapping[str, Array]]:
        shapes = {name: np.shape(array) for name, array in inputs.items()}
        self._shapes = self._shapes or shapes
        if shapes != self._shapes:
            wrong = next(name for name in shapes if shapes[name] != self._shapes.get(name))
            raise PlatformError(
                f"numpy: input {wrong} is {shapes[wrong]}, but the step was compiled for {self._shapes.get(wrong)}"
            )
        taken = kv.take() if isinstance(kv, Cache) else kv
        given = {name: _taken(array) if name in PERSISTENT else array for name, array in inputs.items()}
        try:
            _, outputs = self._step_fn(taken, given)
        except HeadraceError:
            raise
        except Exception as error:
            raise PlatformError(f"numpy: {type(error).__name__}: {error}") from error
        return taken, outputs


def _taken(array: Array) -> Array:
    """The buffer under another name; the old one holds nonsense, as if it had been used for something else."""
    taken = array.copy()
    array.fill(-77)
    return taken
