"""Backends with one fault each. The kit has to catch every one, by the test that names the fault."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from headrace.errors import DeviceLost, HeadraceError, OutOfMemory, PlatformError
from headrace.kernels.ops import Batch
from headrace.kernels.spec import OpSpec
from headrace.kernels.weight import Weight
from headrace.platforms.interface import KV, Device, Executable, Pending, StepFn, Tensor
from headrace.platforms.torch_device import TorchDevice
from headrace.types import API_VERSION, Bucket, Capabilities, DeviceInfo

CAPABILITIES = Capabilities(
    dtypes=frozenset({"float32"}),
    kv_dtypes=frozenset({"float32"}),
    deterministic=True,
    attention_features=frozenset({"gqa", "sliding_window", "soft_cap", "sinks", "alibi"}),
)

FOUR_BITS = replace(CAPABILITIES, quant_formats=frozenset({"int4"}))


class Sound(TorchDevice):
    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), CAPABILITIES)


def replaced(spec: OpSpec, name: str, fault: Callable[..., Any]) -> Callable[..., Any] | None:
    if spec.name != name:
        return None
    names = inspect.signature(spec.reference)
    return lambda *given, **named: fault(spec.reference, **names.bind(*given, **named).arguments)


class TruncatesInsteadOfRounding(Sound):
    """Products come out in bfloat16, cut rather than rounded."""

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        def fault(reference: Callable[..., Any], x: Tensor, weight: Any) -> Tensor:
            return (reference(x, weight).view(torch.int32) & -65536).view(torch.float32)

        return replaced(spec, "linear", fault)


class LooksOneBlockAhead(Sound):
    """Attention reads the block table shifted by one."""

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        def fault(reference: Callable[..., Any], batch: Batch, **rest: Any) -> Tensor:
            return reference(batch=replace(batch, block_tables=batch.block_tables.roll(1, dims=1)), **rest)

        return replaced(spec, "attention", fault)


class KeepsStaleBlocks(Sound):
    """Copies of blocks are accepted and forgotten."""

    def copy_blocks(self, kv: KV, src: Sequence[int], dst: Sequence[int]) -> KV:
        return kv


class CopiesOneByOne(Sound):
    """A destination is written before another copy has read it."""

    def copy_blocks(self, kv: KV, src: Sequence[int], dst: Sequence[int]) -> KV:
        for one, other in zip(src, dst, strict=True):
            super().copy_blocks(kv, [one], [other])
        return kv


class SwallowsErrors(Sound):
    """A step that fails gives its inputs back, as if nothing were."""

    def compile(self, step_fn: StepFn, bucket: Bucket) -> Executable:
        def quiet(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            try:
                return step_fn(kv, inputs)
            except RuntimeError:
                return kv, inputs

        return super().compile(quiet, bucket)


class NeverRecovers(Sound):
    """One error, and every later call raises it again."""

    def submit(self, work: Callable[[], Any], lasting: bool = False) -> Any:
        return super().submit(work, lasting=True)


class CallsAllErrorsAlike(Sound):
    """Out of memory is an error like any other."""

    def _translate(self, error: Exception) -> HeadraceError:
        return _plain(super()._translate(error), OutOfMemory)


class CallsALossAnError(Sound):
    """Makes the engine continue with a device that is lost."""

    def _translate(self, error: Exception) -> HeadraceError:
        return _plain(super()._translate(error), DeviceLost)


def _plain(error: HeadraceError, kind: type[PlatformError]) -> HeadraceError:
    return PlatformError(str(error)) if isinstance(error, kind) else error


class HidesTheLoss(Sound):
    """A lost device gives what the step before has left."""

    def compile(self, step_fn: StepFn, bucket: Bucket) -> Executable:
        def quiet(kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
            with contextlib.suppress(DeviceLost):
                self.before = step_fn(kv, inputs)[1]
            return kv, self.before

        return super().compile(quiet, bucket)


class SharesTheCallersMemory(Sound):
    """`put` keeps the caller's array instead of a copy."""

    def put(self, array: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array))


@dataclass
class Alias:
    array: Any

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self.array


class HandsOutItsOwnMemory(Sound):
    """`get` gives a view of the device's memory."""

    def get(self, tensor: Tensor) -> Pending:
        return Alias(tensor.numpy())


class DependsOnTheBatch(Sound):
    """Declared deterministic, but a large batch is summed in another order."""

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        def fault(reference: Callable[..., Any], x: Tensor, weight: Any) -> Tensor:
            out = reference(x, weight)
            return out if len(x) < 20 else out * (1 + 2**-20)

        return replaced(spec, "linear", fault)


class SamplesBySlot(Sound):
    """The random number depends on the slot in which a sequence runs."""

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        def fault(reference: Callable[..., Any], inputs: Any, **rest: Any) -> Any:
            return reference(inputs=replace(inputs, seed=inputs.seed + inputs.slot), **rest)

        return replaced(spec, "sample", fault)


class ForgetsWhatItDeclares(Sound):
    """Declares the soft cap and leaves it out."""

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        def fault(reference: Callable[..., Any], soft_cap: float | None, **rest: Any) -> Tensor:
            return reference(soft_cap=None, **rest)

        return replaced(spec, "attention", fault)


class HasFewerHeads(Sound):
    """Declares grouped queries and gives every query the first key head."""

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        def fault(reference: Callable[..., Any], q: Tensor, kv: KV, layer: int, **rest: Any) -> Tensor:
            if q.shape[1] > kv.layout.layers[layer].num_kv_heads * kv.layout.layers[layer].head_dim:
                keys = [store[:, :1].expand_as(store).contiguous() for store in kv.keys]
                kv = replace(kv, keys=keys)
            return reference(q=q, kv=kv, layer=layer, **rest)

        return replaced(spec, "attention", fault)


class Picky(Sound):
    """No fault: little is declared, and nothing else may be asked of it."""

    def capabilities(self) -> Capabilities:
        return replace(CAPABILITIES, attention_features=frozenset(), head_sizes=frozenset({64}))

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        def strict(reference: Callable[..., Any], q: Tensor, kv: KV, layer: int, **rest: Any) -> Tensor:
            shape = kv.layout.layers[layer]
            assert shape.head_dim == 64, "a head size that is not declared"
            assert q.shape[1] == shape.num_kv_heads * 64, "grouped queries, which are not declared"
            assert all(rest[name] is None for name in ("window", "soft_cap", "sinks", "alibi"))
            return reference(q=q, kv=kv, layer=layer, **rest)

        return replaced(spec, "attention", strict)


class _Declares(Sound):
    """Weights of four bits, by an operator that gets `misread` ones."""

    def capabilities(self) -> Capabilities:
        return FOUR_BITS

    def misread(self, weight: Weight) -> Weight:
        raise NotImplementedError

    def op(self, spec: OpSpec) -> Callable[..., Any] | None:
        def fault(reference: Callable[..., Any], x: Tensor, weight: Weight) -> Tensor:
            return reference(x, self.misread(weight) if weight.scheme == "int4" else weight)

        return replaced(spec, "linear", fault)


class MisplacesTheZeroPoint(_Declares):
    """Codes without zero points of their own are read about 7."""

    def misread(self, weight: Weight) -> Weight:
        zeros = torch.full(weight.tensors["scales"].shape, 7, dtype=torch.uint8)
        return replace(weight, tensors={"zeros": zeros, **weight.tensors})


class SwapsNibbles(_Declares):
    """The first column of a byte is read from its high half."""

    def misread(self, weight: Weight) -> Weight:
        codes = weight.tensors["codes"]
        return replace(weight, tensors={**weight.tensors, "codes": (codes >> 4) | (codes << 4)})


class ForgetsToClose(Sound):
    """Works on after `close`."""

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Backend:
    """A platform of one device class."""

    make: type[Sound]
    name: str = "broken"
    api_version: tuple[int, int] = API_VERSION

    def probe(self) -> tuple[int, str]:
        return 1, "for tests"

    def devices(self) -> list[DeviceInfo]:
        return [DeviceInfo(0, "cpu", 1)]

    def open(self, index: int, options: Mapping[str, Any]) -> Device:
        if index or options:
            raise PlatformError(f"broken: index {index}, options {', '.join(options)}: there is neither")
        return self.make()


FAULTS = {
    TruncatesInsteadOfRounding: ("operators", "test_against_reference[linear"),
    LooksOneBlockAhead: ("operators", "test_attention_against_reference"),
    KeepsStaleBlocks: ("kv", "test_a_copied_block_is_whole_and_independent"),
    CopiesOneByOne: ("kv", "test_copies_read_before_they_write"),
    SwallowsErrors: ("faults", "test_a_failing_step_is_reported"),
    NeverRecovers: ("faults", "test_the_engine_survives[RuntimeError]"),
    CallsAllErrorsAlike: ("faults", "test_the_engine_survives[OutOfMemory]"),
    CallsALossAnError: ("faults", "test_a_lost_device_ends_the_engine"),
    HidesTheLoss: ("faults", "test_a_lost_device_ends_the_engine"),
    SharesTheCallersMemory: ("copies", "test_an_array_may_be_reused_once_put_returns"),
    HandsOutItsOwnMemory: ("copies", "test_a_result_is_the_callers_own"),
    DependsOnTheBatch: ("determinism", "test_alone_is_batched_is_chunked_is_warm"),
    SamplesBySlot: ("operators", "test_sample_exactly"),
    ForgetsWhatItDeclares: ("operators", "test_attention_feature_against_reference[soft_cap]"),
    HasFewerHeads: ("operators", "test_attention"),
    MisplacesTheZeroPoint: ("operators", "test_format_against_reference[linear-int4]"),
    SwapsNibbles: ("operators", "test_format_against_reference[linear-int4]"),
    ForgetsToClose: ("faults", "test_closing_is_final"),
}
"""The tier and the test that catch each."""
