"""Tier 3: every operator against its reference, on inputs from the operator's own generator."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from headrace.conformance.moving import call, write_cache
from headrace.conformance.tiers import tier
from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import SampleOutputs
from headrace.kernels.registry import OPS, OPTIONAL
from headrace.kernels.spec import OpSpec
from headrace.platforms.interface import Device

__all__ = ["OperatorsTier", "nmse"]

Array = npt.NDArray[Any]
_CASES = range(12)
_BY_NAME = {spec.name: spec for spec in OPS}
_PLAIN = [spec for spec in OPS if spec.name not in ("attention", "rotary_cache", "sample", "resolve_tokens")]
_HOST = torch.device("cpu")


def nmse(found: Array, wanted: Array) -> float:
    """Mean squared error over the mean square of what is wanted."""
    if not wanted.size:
        return 0.0
    wanted64 = wanted.astype(np.float64)
    error = float(np.square(found.astype(np.float64) - wanted64).mean())
    return error / max(float(np.square(wanted64).mean()), 1e-30)


def need_arithmetic(device: Device) -> None:
    if not device.capabilities().computes:
        pytest.skip("the device declares that it computes nothing")


def need_features(device: Device, arguments: dict[str, Any]) -> None:
    asked = {"sliding_window": arguments.get("window"), "soft_cap": arguments.get("soft_cap")}
    asked |= {"sinks": arguments.get("sinks"), "alibi": arguments.get("alibi")}
    missing = {name for name, value in asked.items() if value is not None} - device.capabilities().attention_features
    if missing:
        pytest.skip(f"attention feature {min(missing)} is not declared")
    store = arguments["kv"].layout.dtype
    if store not in device.capabilities().kv_dtypes:
        pytest.skip(f"KV dtype {store} is not declared")


def need_operator(device: Device, spec: OpSpec) -> None:
    """For optional operators, which a device declares by having them."""
    if device.op(spec) is None:
        pytest.skip(f"the optional operator {spec.name} is not declared: op() gives None for it")


def inputs(spec: OpSpec, case: int, dtype: str = "float32") -> dict[str, Any]:
    return spec.generate(np.random.default_rng([case, len(spec.name)]), _HOST, dtype)


def reference(spec: OpSpec, arguments: dict[str, Any]) -> Any:
    """numpy results of the reference, which may write to its own copy of the arguments."""
    found = spec.reference(**copy.deepcopy({k: v for k, v in arguments.items() if k != "weight"}), **_weight(arguments))
    if isinstance(found, SampleOutputs):
        return found
    return tuple(t.float().numpy() for t in found) if isinstance(found, tuple) else found.numpy()


def _each(found: Any) -> tuple[Array, ...]:
    return found if isinstance(found, tuple) else (found,)


def _weight(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"weight": arguments["weight"]} if "weight" in arguments else {}


@tier("operators")
class OperatorsTier:
    @pytest.mark.parametrize("case", _CASES)
    @pytest.mark.parametrize("spec", _PLAIN, ids=lambda spec: spec.name)
    def test_against_reference(self, device: Device, spec: OpSpec, case: int) -> None:
        need_arithmetic(device)
        arguments = inputs(spec, case)
        wanted, found = reference(spec, arguments), call(device, spec.name, arguments)
        pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
        for got, want in pairs:
            assert got.shape == want.shape
            assert nmse(got, want) <= spec.tolerance["float32"], f"{spec.name}: beyond its tolerance"

    @pytest.mark.parametrize("case", _CASES)
    @pytest.mark.parametrize("spec", OPTIONAL, ids=lambda spec: spec.name)
    def test_optional_against_reference(self, device: Device, spec: OpSpec, case: int) -> None:
        need_arithmetic(device)
        need_operator(device, spec)
        arguments = inputs(spec, case)
        wanted, found = reference(spec, arguments), call(device, spec.name, arguments)
        for got, want in zip(_each(found), _each(wanted), strict=True):
            assert got.shape == want.shape
            assert nmse(got, want) <= spec.tolerance["float32"], f"{spec.name}: beyond its tolerance"

    @pytest.mark.parametrize("case", range(24))
    def test_attention_against_reference(self, device: Device, case: int) -> None:
        need_arithmetic(device)
        spec = _BY_NAME["attention"]
        arguments = inputs(spec, case)
        need_features(device, arguments)
        source: TorchKV = arguments["kv"]
        kv = device.alloc_kv(source.layout, len(source.keys[0]))
        write_cache(device, kv, source)
        found, wanted = call(device, "attention", arguments, kv), reference(spec, arguments)
        tokens = int(arguments["batch"].sizes[0])
        limit = max(spec.tolerance["float32"], _STORED[source.layout.dtype])
        assert nmse(found[:tokens], wanted[:tokens]) <= limit

    @pytest.mark.parametrize("case", _CASES)
    def test_rotary_cache_against_reference(self, device: Device, case: int) -> None:
        need_arithmetic(device)
        spec = _BY_NAME["rotary_cache"]
        arguments = inputs(spec, case)
        need_features(device, arguments)
        source: TorchKV = arguments["kv"]
        kv = device.alloc_kv(source.layout, len(source.keys[0]))
        found, wanted = call(device, "rotary_cache", arguments, kv), reference(spec, arguments)
        tokens = int(arguments["batch"].sizes[0])
        assert nmse(found[:tokens], wanted[:tokens]) <= spec.tolerance["float32"]

    @pytest.mark.parametrize("case", _CASES)
    def test_resolve_tokens_exactly(self, device: Device, case: int) -> None:
        need_arithmetic(device)
        spec = _BY_NAME["resolve_tokens"]
        arguments = inputs(spec, case)
        tokens = int(arguments["batch"].sizes[0])
        wanted, found = reference(spec, arguments), call(device, spec.name, arguments)
        np.testing.assert_array_equal(found[:tokens], wanted[:tokens])

    @pytest.mark.parametrize("case", range(24))
    def test_sample_exactly(self, device: Device, case: int) -> None:
        """The same tokens and ranks; logprobs within the tolerance."""
        need_arithmetic(device)
        spec = _BY_NAME["sample"]
        arguments = inputs(spec, case)
        wanted, found = reference(spec, arguments), call(device, spec.name, arguments)
        np.testing.assert_array_equal(found["tokens"], wanted.tokens.numpy())
        if arguments["num_logprobs"] >= 0 and len(wanted.tokens):
            np.testing.assert_array_equal(found["ranks"], wanted.ranks.numpy())
            np.testing.assert_array_equal(found["top_ids"], wanted.top_ids.numpy())
            assert nmse(found["logprobs"], wanted.logprobs.numpy()) <= spec.tolerance["float32"]


_STORED = {"float32": 0.0, "bfloat16": 2e-5, "float16": 1e-6, "int8": 1e-4, "float8_e4m3": 1e-3}
"""What a narrower store may cost, where the device computes from it as stored."""
