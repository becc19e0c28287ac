"""The operator set as specs, and their binding to a device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from headrace.errors import PlatformError
from headrace.kernels import (
    accept,
    add_rms_norm,
    attention,
    block_conv,
    causal_conv1d,
    correct_logits,
    embedding,
    gated_activation,
    gated_delta_rule,
    gated_linear,
    gather_blocks,
    linear,
    load_features,
    logits,
    mamba2_scan,
    mix_experts,
    mla,
    moe,
    named_logprobs,
    ngram,
    own_experts,
    place,
    read_drafts,
    resolve_tokens,
    rms_norm,
    rotary_cache,
    sample,
    scatter_blocks,
    shift,
    store_features,
    take_rows,
    widen_logits,
)
from headrace.kernels.by_format import WITH_WEIGHTS, ByFormat
from headrace.kernels.ops import Ops
from headrace.kernels.spec import OpReasons, OpSpec, PacksWeights, TorchTensors
from headrace.kernels.weight import Weight
from headrace.types import QUANT_FORMATS, Capabilities

__all__ = [
    "DRAFTING",
    "HEAD_DRAFTING",
    "OPS",
    "OPTIONAL",
    "Binding",
    "ByReference",
    "Composed",
    "Missing",
    "OpSource",
    "bind",
    "binding",
    "pack",
]

T = TypeVar("T")
_log = logging.getLogger(__name__)
_FOLDERS = (
    resolve_tokens,
    embedding,
    rms_norm,
    add_rms_norm,
    linear,
    rotary_cache,
    attention,
    gated_activation,
    logits,
    sample,
)
OPS: tuple[OpSpec, ...] = tuple(folder.SPEC for folder in _FOLDERS)
"""Every operator that any model may call, in the order in which a step calls them."""
_DRAFTING: tuple[Any, ...] = (ngram, place, accept)
_HEAD_DRAFTING: tuple[Any, ...] = (read_drafts, shift)
_OPTIONAL_FOLDERS: tuple[Any, ...] = (
    gated_linear,
    moe,
    own_experts,
    mix_experts,
    mla,
    gated_delta_rule,
    mamba2_scan,
    causal_conv1d,
    store_features,
    load_features,
    take_rows,
    widen_logits,
    correct_logits,
    block_conv,
    gather_blocks,
    scatter_blocks,
    named_logprobs,
    *_DRAFTING,
    *_HEAD_DRAFTING,
)
OPTIONAL: tuple[OpSpec, ...] = tuple(folder.SPEC for folder in _OPTIONAL_FOLDERS)
"""Operators that only some architectures, drafters, tiers or requests call, or that fuse several. A device declares one
by having a form of it; if it has none, a composition of other operators is used, or the reference."""
DRAFTING: tuple[OpSpec, ...] = tuple(folder.SPEC for folder in _DRAFTING)
"""Those with which a device drafts and verifies by itself. If it lacks one, the host drafts, between two steps."""
HEAD_DRAFTING: tuple[OpSpec, ...] = tuple(folder.SPEC for folder in (place, accept, *_HEAD_DRAFTING))
"""Those with which it verifies the drafts of a head by itself. If it lacks one, the host reads them, between two steps.
"""
_DEFAULT_REASON, _OWN_REASON = "the device has no form of its own", "the device's own form"
_COMPOSED_REASON = "out of the device's other operators"


class OpSource(Protocol):
    """The part of `Device` that binding uses."""

    def capabilities(self) -> Capabilities: ...

    def op(self, spec: OpSpec) -> Callable[..., Any] | None: ...

    def extension(self, kind: Callable[..., T]) -> T | None: ...


@dataclass(frozen=True)
class Binding:
    """The operators bound to one device. Every method of `ops.Ops` and every optional operator is an attribute.

    `tags` gives the name of the implementation by operator (`reference` if the device has none), `reasons` why it was
    chosen. Optional operators are in `optional` instead, their reasons in `optional_reasons`.
    """

    callables: Mapping[str, Callable[..., Any]]
    tags: Mapping[str, str]
    reasons: Mapping[str, str]
    optional: Mapping[str, Callable[..., Any]]
    optional_reasons: Mapping[str, str]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        found = self.callables.get(name) or self.optional.get(name)
        if found is None:
            raise AttributeError(f"no operator {name!r}; there are {', '.join((*self.callables, *self.optional))}")
        return found


class ByReference:
    """The reference of an optional operator. The first call logs its use, since most models never call it."""

    tag = "reference"

    def __init__(self, spec: OpSpec, reason: str) -> None:
        self._spec, self._reason, self._logged = spec, reason, False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._logged:
            self._logged = True
            _log.info("by reference: %s (%s)", self._spec.name, self._reason)
        return self._spec.reference(*args, **kwargs)


class Missing:
    """An operator that a device lacks whose tensors no reference takes: an error wherever it is asked for, at load if
    it has weights."""

    tag = "missing"

    def __init__(self, spec: OpSpec, device: str, reason: str) -> None:
        self._spec, self._device, self._reason = spec, device, reason

    def pack(self, weight: Weight) -> None:
        """Raises PlatformError."""
        self._refuse(f" (it would take {weight.name})" if weight.name else "")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises PlatformError."""
        self._refuse("")

    def _refuse(self, what: str) -> None:
        raise PlatformError(
            f"{self._device} has no form of {self._spec.name}{what}, and no reference takes its tensors, which are not "
            f"torch's ({self._reason}): choose another platform"
        )


class Composed:
    """An optional operator composed of bound operators."""

    tag = "composed"

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


def binding(device: OpSource) -> Binding:
    """The device's operator or the reference for each spec. Logs nothing.

    The reasons come from the device if it implements `OpReasons`.
    Raises PlatformError if the device returns an object that is not callable.
    """
    on_torch = device.extension(TorchTensors) is not None
    reporter = device.extension(OpReasons)
    why: Mapping[str, str] = {} if reporter is None else reporter.op_reasons()
    callables, tags, reasons = {}, {}, {}
    optional: dict[str, Callable[..., Any]] = {}
    optional_reasons: dict[str, str] = {}
    for spec in OPS:
        own = _own(device, spec)
        reasons[spec.name] = why.get(spec.name, _DEFAULT_REASON if own is None else _OWN_REASON)
        if own is not None:
            callables[spec.name] = _by_format(device, spec, own, spec.reference)
        else:
            missing = Missing(spec, type(device).__name__, reasons[spec.name])
            callables[spec.name] = spec.reference if on_torch else missing
        tags[spec.name] = _tag(own, device) if own is not None else "reference" if on_torch else Missing.tag
    bound = Binding(callables, tags, reasons, optional, optional_reasons)
    for spec in OPTIONAL:
        own, reason = _own(device, spec), _OWN_REASON
        composed = None if spec.compose is None else Composed(spec.compose(bound))
        if own is not None:
            own = _by_format(device, spec, own, composed or spec.reference)
        elif composed is not None:
            own, reason = composed, _COMPOSED_REASON
        reason = why.get(spec.name, _DEFAULT_REASON if own is None else reason)
        other = ByReference(spec, reason) if on_torch else Missing(spec, type(device).__name__, reason)
        optional[spec.name], optional_reasons[spec.name] = own or other, reason
    return bound


def _tag(own: Callable[..., Any], device: OpSource) -> str:
    # As `isinstance(own, Tagged)`, which would be most of the time of binding all operators.
    return str(getattr(own, "tag", type(device).__name__))


def _by_format(
    device: OpSource, spec: OpSpec, own: Callable[..., Any], other: Callable[..., Any]
) -> Callable[..., Any]:
    """The device's operator, guarded so that it gets only weights in formats that the device declares."""
    if spec.name not in WITH_WEIGHTS:
        return own
    declared = device.capabilities().quant_formats
    if declared >= QUANT_FORMATS:
        return own
    on_torch = device.extension(TorchTensors) is not None
    return ByFormat(spec.name, own, other if on_torch else None, declared, type(device).__name__)


def _own(device: OpSource, spec: OpSpec) -> Callable[..., Any] | None:
    own = device.op(spec)
    if own is not None and not callable(own):
        raise PlatformError(f"{type(device).__name__}.op({spec.name!r}) gave {own!r}: return a callable or None")
    return own


def bind(device: OpSource) -> Ops:
    """The operators for a model to call. Logs once which ones use the reference, and why.

    Raises PlatformError if the device lacks operators of `OPS` and no reference can use its tensors.
    """
    bound = binding(device)
    missing = [name for name, tag in bound.tags.items() if tag == Missing.tag]
    if missing:
        raise PlatformError(
            f"{type(device).__name__} has no form of {', '.join(missing)}, and no reference takes its tensors, which "
            "are not torch's: a device without torch must have all operators of registry.OPS"
        )
    by_reason: dict[str, list[str]] = {}
    for name, tag in bound.tags.items():
        if tag == "reference":
            by_reason.setdefault(bound.reasons[name], []).append(name)
    for reason, names in by_reason.items():
        _log.info("by reference: %s (%s)", ", ".join(names), reason)
    return cast(Ops, bound)


def pack(ops: Ops, name: str, weight: Weight) -> None:
    """Let operator `name` repack a weight that it will be called with, if it repacks weights."""
    operator = getattr(ops, name)
    if isinstance(operator, PacksWeights):
        operator.pack(weight)
