"""The native operators of drafters that read hidden states, recorded on a tape and called at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from headrace.conformance.explore import explore
from headrace.conformance.operators_tier import reference
from headrace.conformance.transfer import call
from headrace.kernels.inputs import batch_of
from headrace.kernels.registry import OPTIONAL, bind
from headrace.platforms.cpu import native
from headrace.types import Bucket, KVLayout, LayerKV

pytestmark = pytest.mark.skipif(native.missing() is not None, reason="the native kernels are not built")
SPECS = {spec.name: spec for spec in OPTIONAL}
CPU = torch.device("cpu")
TOKENS, WIDTH = 40, 150


@pytest.fixture(params=["generic", None])
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    from headrace.platforms.cpu.native_device import NativeDevice

    if request.param is not None and request.param not in native.usable():
        pytest.skip("the library is built without it")
    opened = NativeDevice(isa=request.param)
    yield opened
    opened.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "float8_e4m3"])
def test_stored_features_are_the_references_to_the_bit(device: Any, dtype: str) -> None:
    """The reference reads what the native operator stored in a plain cache, and the reverse."""
    store, load = SPECS["store_features"], SPECS["load_features"]

    def check(rng: np.random.Generator) -> None:
        given = store.generate(rng, CPU, "float32")
        if given["kv"].layout.dtype != dtype:
            return
        kv = device.alloc_kv(given["kv"].layout, len(given["kv"].keys[0]))
        call(device, store.name, given, kv)
        read = {"batch": given["batch"], "kv": given["kv"], "layer": 0, "width": given["x"].shape[1]}
        found = call(device, load.name, read, kv)
        store.reference(**given)
        np.testing.assert_array_equal(found, reference(load, read)[0])

    explore(check, 60)


@pytest.mark.parametrize("name", ["take_rows", "widen_logits", "correct_logits", "block_conv", "named_logprobs"])
def test_the_others_are_exact(device: Any, name: str) -> None:
    spec = SPECS[name]

    def check(rng: np.random.Generator) -> None:
        given = spec.generate(rng, CPU, "float32")
        np.testing.assert_array_equal(call(device, name, given), reference(spec, given)[0])

    explore(check, 20)


def test_a_tape_keeps_and_reads_features(device: Any) -> None:
    """One tape for steps of any size: rows of one step are read by the next."""
    ops: Any = bind(device)
    kv = device.alloc_kv(KVLayout((LayerKV(1, 16), LayerKV(2, 40)), 16, "float32"), 8)

    def keep(kv: Any, inputs: Any) -> Any:
        batch = batch_of(inputs)
        kept = ops.store_features(inputs["x"], batch, kv, 1)
        return kv, {"rows": ops.take_rows(kept, batch)}

    def read(kv: Any, inputs: Any) -> Any:
        batch = batch_of(inputs)
        return kv, {"x": ops.load_features(batch, kv, 1, WIDTH)}

    bucket = Bucket(TOKENS, 4, TOKENS, 8)
    writing, reading = device.compile(keep, bucket), device.compile(read, bucket)
    rng = np.random.default_rng(0)
    held = np.zeros((8 * 16, WIDTH), np.float32)
    for count in (5, TOKENS, 1, 17):
        slots = rng.permutation(np.arange(16, 128))[:count].astype(np.int32)
        x = rng.standard_normal((TOKENS, WIDTH), dtype=np.float32)
        held[slots] = x[:count]
        rows = np.sort(rng.integers(0, count, 3)).astype(np.int32)
        inputs = {name: device.put(array) for name, array in _arrays(slots, rows).items()}
        _, outputs = writing(kv, {**inputs, "x": device.put(x)})
        np.testing.assert_array_equal(device.get(outputs["rows"]).result()[:3], x[rows])
        every = np.arange(16, 16 + TOKENS, dtype=np.int32)
        inputs = {name: device.put(array) for name, array in _arrays(every, rows[:0]).items()}
        _, outputs = reading(kv, inputs)
        np.testing.assert_array_equal(device.get(outputs["x"]).result()[:TOKENS], held[every])


def _arrays(slots: Any, rows: Any) -> dict[str, Any]:
    count = len(slots)
    zeros, one = np.zeros(count, np.int32), np.ones(1, np.int32)
    return {
        "sizes": np.array([count, 1, len(rows)], np.int32),
        "token_ids": zeros,
        "positions": zeros,
        "slot_mapping": slots,
        "token_seq": zeros,
        "query_start": np.array([0, count], np.int32),
        "context_lens": one,
        "block_tables": np.zeros((1, 8), np.int32),
        "slots": zeros[:1],
        "rows": rows,
    }
