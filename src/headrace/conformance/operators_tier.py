"""Tier 3: every operator against its reference, on inputs from the operator's own generator, for each dtype."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume

from headrace.conformance.explore import explore
from headrace.conformance.nmse import WorstError, nmse
from headrace.conformance.tiers import tier
from headrace.conformance.transfer import call, write_cache
from headrace.kernels.kv import TorchKV
from headrace.kernels.ops import SampleOutputs
from headrace.kernels.registry import OPS, OPTIONAL
from headrace.kernels.spec import OpSpec
from headrace.platforms.interface import Device, TorchTensors
from headrace.types import NO_CHOICE, NOT_FINITE

__all__ = ["OperatorsTier", "need_arithmetic", "need_dtype", "need_operator", "nmse", "reference"]

Array = npt.NDArray[Any]
_BY_NAME = {spec.name: spec for spec in OPS}
_OPTIONAL = {spec.name: spec for spec in OPTIONAL}
_APART = ("attention", "rotary_cache", "sample", "resolve_tokens")
_PLAIN = [spec for spec in OPS if spec.name not in _APART]
_IN_CACHE = ("store_features", "load_features")
_MOVES = ("gather_blocks", "scatter_blocks")
"""Tested with the cache (`kv_tier`): the order of a block's bytes is the device's own."""
_PURE = [spec for spec in OPTIONAL if spec.name not in (*_IN_CACHE, *_MOVES)]
_DTYPES = ("float32", "bfloat16", "float16")
_FEATURES = {"gqa": "q", "sliding_window": "window", "soft_cap": "soft_cap", "sinks": "sinks", "alibi": "alibi"}
"""Feature of attention → the argument that needs it; for `gqa` the queries, which then have more heads than the
cache."""
_STORED = {"float32": 0.0, "bfloat16": 2e-5, "float16": 1e-6, "int8": 1e-4, "float8_e4m3": 1e-3}
"""KV dtype → allowed error, if the device computes with the stored dtype."""
_HOST = torch.device("cpu")


def need_arithmetic(device: Device) -> None:
    if not device.capabilities().computes:
        pytest.skip("the device declares that it computes nothing")


def need_dtype(device: Device, dtype: str) -> None:
    if dtype not in device.capabilities().dtypes:
        pytest.skip(f"dtype {dtype} is not declared")
    if dtype == "bfloat16" and device.extension(TorchTensors) is None:
        pytest.skip("numpy has no bfloat16, and the device's tensors are not torch's")


def _need_store(device: Device, dtype: str) -> None:
    tested = {dtype, "int8", "float8_e4m3"}
    if not tested & device.capabilities().kv_dtypes:
        pytest.skip(f"none of the KV dtypes {', '.join(sorted(tested))} is declared")


def need_operator(device: Device, spec: OpSpec) -> None:
    """Skip if the device doesn't have an optional operator."""
    if device.op(spec) is None:
        pytest.skip(f"the optional operator {spec.name} is not declared: op() gives None for it")


def _declared(device: Device, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments without attention features that the device does not declare. Hypothesis chooses others if the
    device lacks the KV dtype, the head size or grouped queries."""
    able, layout = device.capabilities(), arguments["kv"].layout
    assume(layout.dtype in able.kv_dtypes)
    assume(not able.head_sizes or layout.layers[0].head_dim in able.head_sizes)
    assume("gqa" in able.attention_features or not _needs(arguments, "gqa"))
    missing = {argument for feature, argument in _FEATURES.items() if feature not in able.attention_features} - {"q"}
    return arguments | {name: None for name in missing if name in arguments}


def _needs(arguments: dict[str, Any], feature: str) -> bool:
    """True if a call needs the feature."""
    if feature != "gqa":
        return arguments[_FEATURES[feature]] is not None
    shape = arguments["kv"].layout.layers[0]
    heads = arguments["num_q_heads"] if "num_q_heads" in arguments else arguments["q"].shape[1] // shape.head_dim
    # Without queries nothing is grouped.
    return heads not in (0, shape.num_kv_heads)


def reference(spec: OpSpec, arguments: dict[str, Any]) -> Any:
    """The reference's results as numpy arrays. The reference may write to its copy of the arguments."""
    found = spec.reference(**copy.deepcopy({k: v for k, v in arguments.items() if k != "weight"}), **_weight(arguments))
    return found if isinstance(found, SampleOutputs) else tuple(t.float().numpy() for t in _each(found))


def _each(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _weight(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"weight": arguments["weight"]} if "weight" in arguments else {}


@tier("operators")
class OperatorsTier:
    @pytest.fixture
    @classmethod
    def worst(cls, request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> WorstError:
        """The largest error for the operator and dtype (or weight format) of the test; the report reads it."""
        given = getattr(request.node, "callspec", None)
        params = given.params if given else {}
        spec, named = params.get("spec"), request.node.name.removeprefix("test_").partition("_against")[0]
        worst = WorstError(
            spec.name if spec else named.partition("_exactly")[0], params.get("form") or params.get("dtype", "float32")
        )
        record_property(WorstError.PROPERTY, worst)
        return worst

    @pytest.mark.parametrize("dtype", _DTYPES)
    @pytest.mark.parametrize("spec", _PLAIN, ids=lambda spec: spec.name)
    def test_against_reference(
        self, device: Device, spec: OpSpec, dtype: str, examples: int, worst: WorstError
    ) -> None:
        need_arithmetic(device)
        need_dtype(device, dtype)
        _compare(device, spec, dtype, examples, worst)

    @pytest.mark.parametrize("dtype", _DTYPES)
    @pytest.mark.parametrize("spec", _PURE, ids=lambda spec: spec.name)
    def test_optional_against_reference(
        self, device: Device, spec: OpSpec, dtype: str, examples: int, worst: WorstError
    ) -> None:
        need_arithmetic(device)
        need_operator(device, spec)
        need_dtype(device, dtype)
        _compare(device, spec, dtype, examples, worst)

    @pytest.mark.parametrize("dtype", _DTYPES)
    def test_load_features_against_reference(
        self, device: Device, dtype: str, examples: int, worst: WorstError
    ) -> None:
        """Features that are stored are read again, as the cache's type rounds them."""
        need_arithmetic(device)
        store, load = (_OPTIONAL[name] for name in _IN_CACHE)
        for spec in (store, load):
            need_operator(device, spec)
        need_dtype(device, dtype)
        _need_store(device, dtype)
        able = device.capabilities()

        def check(rng: np.random.Generator) -> None:
            arguments = store.generate(rng, _HOST, dtype)
            source: TorchKV = arguments["kv"]
            assume(source.layout.dtype in able.kv_dtypes)
            assume(not able.head_sizes or source.layout.layers[0].head_dim in able.head_sizes)
            kv = device.alloc_kv(source.layout, len(source.keys[0]))
            call(device, store.name, arguments, kv)
            read = {"batch": arguments["batch"], "kv": source, "layer": 0, "width": arguments["x"].shape[1]}
            found = call(device, load.name, read, kv)
            store.reference(**arguments)
            (wanted,) = reference(load, read)
            worst.near(found, wanted, max(load.tolerance[dtype], _STORED[source.layout.dtype]))

        explore(check, examples)

    @pytest.mark.parametrize("dtype", _DTYPES)
    def test_attention_against_reference(self, device: Device, dtype: str, examples: int, worst: WorstError) -> None:
        need_arithmetic(device)
        need_dtype(device, dtype)
        _need_store(device, dtype)
        _attend(device, dtype, examples, worst)

    @pytest.mark.parametrize("feature", _FEATURES)
    def test_attention_feature_against_reference(
        self, device: Device, feature: str, examples: int, worst: WorstError
    ) -> None:
        need_arithmetic(device)
        if feature not in device.capabilities().attention_features:
            pytest.skip(f"attention feature {feature} is not declared")
        need_dtype(device, "float32")
        _need_store(device, "float32")
        _attend(device, "float32", -(-examples // 2), worst, feature)

    @pytest.mark.parametrize("dtype", _DTYPES)
    def test_rotary_cache_against_reference(self, device: Device, dtype: str, examples: int, worst: WorstError) -> None:
        need_arithmetic(device)
        need_dtype(device, dtype)
        _need_store(device, dtype)
        spec = _BY_NAME["rotary_cache"]

        def check(rng: np.random.Generator) -> None:
            arguments = _declared(device, spec.generate(rng, _HOST, dtype))
            source: TorchKV = arguments["kv"]
            kv = device.alloc_kv(source.layout, len(source.keys[0]))
            found, (wanted,) = call(device, "rotary_cache", arguments, kv), reference(spec, arguments)
            tokens = int(arguments["batch"].sizes[0])
            worst.near(found[:tokens], wanted[:tokens], spec.tolerance[dtype])

        explore(check, examples)

    def test_resolve_tokens_exactly(self, device: Device, examples: int) -> None:
        need_arithmetic(device)
        spec = _BY_NAME["resolve_tokens"]

        def check(rng: np.random.Generator) -> None:
            arguments = spec.generate(rng, _HOST, "float32")
            tokens = int(arguments["batch"].sizes[0])
            (wanted,), found = reference(spec, arguments), call(device, spec.name, arguments)
            np.testing.assert_array_equal(found[:tokens], wanted[:tokens])

        explore(check, examples)

    def test_sample_exactly(self, device: Device, examples: int, worst: WorstError) -> None:
        """The same tokens and ranks; logprobs within the tolerance. Logprobs of rows without a token are not
        compared."""
        need_arithmetic(device)
        spec = _BY_NAME["sample"]

        def check(rng: np.random.Generator) -> None:
            arguments = spec.generate(rng, _HOST, "float32")
            wanted, found = reference(spec, arguments), call(device, spec.name, arguments)
            np.testing.assert_array_equal(found["tokens"], wanted.tokens.numpy())
            read = ~np.isin(wanted.tokens.numpy(), (NO_CHOICE, NOT_FINITE))
            if arguments["num_logprobs"] >= 0 and read.any():
                np.testing.assert_array_equal(found["ranks"][read], wanted.ranks.numpy()[read])
                np.testing.assert_array_equal(found["top_ids"][read], wanted.top_ids.numpy()[read])
                worst.near(found["logprobs"][read], wanted.logprobs.numpy()[read], spec.tolerance["float32"])

        explore(check, 2 * examples)


def _compare(device: Device, spec: OpSpec, dtype: str, examples: int, worst: WorstError) -> None:
    def check(rng: np.random.Generator) -> None:
        arguments = spec.generate(rng, _HOST, dtype)
        wanted, found = reference(spec, arguments), _each(call(device, spec.name, arguments))
        for got, want in zip(found, wanted, strict=True):
            worst.near(got, want, spec.tolerance[dtype])

    explore(check, examples)


def _attend(device: Device, dtype: str, examples: int, worst: WorstError, asked: str | None = None) -> None:
    """Compare attention. `asked`: a feature that every call must need."""
    spec = _BY_NAME["attention"]

    def check(rng: np.random.Generator) -> None:
        arguments = _declared(device, spec.generate(rng, _HOST, dtype))
        assume(asked is None or _needs(arguments, asked))
        source: TorchKV = arguments["kv"]
        kv = device.alloc_kv(source.layout, len(source.keys[0]))
        write_cache(device, kv, source)
        found, (wanted,) = call(device, "attention", arguments, kv), reference(spec, arguments)
        tokens = int(arguments["batch"].sizes[0])
        allowed = max(spec.tolerance[dtype], _STORED[source.layout.dtype])
        worst.near(found[:tokens], wanted[:tokens], allowed)

    explore(check, examples)
