"""The Pallas kernels against the references, by interpreter: as plain XLA, and by one that watches copies for races."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

jax = pytest.importorskip("jax", reason="jax is not installed: ci/tpu.sh runs these where torch-xla is")

import jax.numpy as jnp  # noqa: E402
from jax._src.pallas.mosaic import interpret as interpreter  # noqa: E402
from jax.experimental.pallas import tpu as pltpu  # noqa: E402

from headrace.conformance.operators_tier import nmse  # noqa: E402
from headrace.kernels import paged, random  # noqa: E402
from headrace.kernels.attention.pallas import attention, tile_rows  # noqa: E402
from headrace.kernels.attention.reference import attention as attention_reference  # noqa: E402
from headrace.kernels.linear.pallas import UNIT, product  # noqa: E402
from headrace.kernels.pallaslib.work_lists import strips, tiles  # noqa: E402
from headrace.kernels.rotary_cache.pallas import strip_rows, write  # noqa: E402
from headrace.types import KVLayout, LayerKV  # noqa: E402

CPU = torch.device("cpu")
MIXED = random.Shape((1, 13, 1, 5), (40, 0, 3, 20), 16)
DECODES = random.Shape((1, 1, 1), (33, 0, 16), 16)
WATCHED = pltpu.InterpretParams(detect_races=True)


@pytest.fixture(autouse=True)
def no_races() -> Iterator[None]:
    yield
    found = interpreter.races
    assert found is None or not found.races_found


def array(x: torch.Tensor | None) -> Any:
    if x is None:
        return None
    return jnp.asarray(x.float().numpy()).astype(jnp.bfloat16) if x.dtype == torch.bfloat16 else jnp.asarray(x.numpy())


def padded(x: torch.Tensor, length: int, value: int = 0) -> Any:
    return array(torch.cat([x, x.new_full((length - len(x), *x.shape[1:]), value)]))


CASES: list[tuple[random.Shape, int, str, str, dict[str, Any]]] = [
    (MIXED, 8, "float32", "float32", {}),
    (MIXED, 8, "float32", "int8", {"window": 9, "soft_cap": 5.0}),
    (MIXED, 4, "bfloat16", "bfloat16", {"sinks": True, "alibi": True}),
    (DECODES, 1, "float32", "float32", {"window": 20, "alibi": True}),
    (DECODES, 1, "bfloat16", "int8", {"soft_cap": 5.0, "sinks": True}),
]


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(("shape", "tile", "dtype", "store", "features"), CASES)
def test_attention(
    shape: random.Shape, tile: int, dtype: str, store: str, features: dict[str, Any], watched: bool
) -> None:
    rng = np.random.default_rng(5)
    kv = random.cache(rng, shape, LayerKV(2, 16), CPU, store)
    batch = random.batch(rng, shape, CPU)
    given = {
        "window": features.get("window"), "soft_cap": features.get("soft_cap"),
        "sinks": random.normal(rng, 6, device=CPU) if features.get("sinks") else None,
        "alibi": random.normal(rng, 6, device=CPU).abs() / 8 if features.get("alibi") else None,
    }  # fmt: skip
    q = random.normal(rng, sum(shape.fresh), 6 * 16, device=CPU, dtype=dtype)
    wanted = attention_reference(q, batch, kv, 0, 0.25, **given).float().numpy()
    tokens, seqs = len(q) + 3, len(shape.fresh) + 2
    found = attention(
        padded(q, tokens), padded(batch.query_start, seqs + 1, len(q)), padded(batch.positions, tokens),
        padded(batch.block_tables, seqs),
        *(array(functional.pad(x[0], (0, 16 if watched else 0))) for x in (kv.keys, kv.values)),
        *(array(scales[0]) if scales else None for scales in (kv.key_scales, kv.value_scales)),
        array(given["sinks"]), array(given["alibi"]), scale=0.25, head_dim=16, window=given["window"],
        soft_cap=given["soft_cap"], tile=tile, interpret=WATCHED if watched else True,
    )  # fmt: skip
    assert found.dtype == dtype
    assert nmse(np.asarray(found.astype(jnp.float32))[: len(q)], wanted) < (1e-10 if dtype == "float32" else 1e-4)


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(("shape", "dtype"), [(MIXED, "float32"), (MIXED, "bfloat16"), (DECODES, "int8")])
def test_write(shape: random.Shape, dtype: str, watched: bool) -> None:
    rng = np.random.default_rng(6)
    batch = random.batch(rng, shape, CPU)
    kv = paged.alloc(KVLayout((LayerKV(2, 16),), 16, dtype), 1 + shape.blocks * len(shape.fresh), CPU)
    kv.keys[0] += 3
    before = array(kv.keys[0])
    rows = torch.from_numpy(rng.integers(-90, 90, (sum(shape.fresh), 2, 16))).to(kv.keys[0].dtype)
    block, offset = (f(batch.slot_mapping.long(), 16) for f in (torch.div, torch.remainder))
    kv.keys[0][block.floor().long(), :, offset] = rows
    slots, more = padded(batch.slot_mapping, len(rows) + 5), padded(rows, len(rows) + 5, 9)
    found = write(before, slots, more, sequences=len(shape.fresh) + 1, interpret=WATCHED if watched else True)
    assert found.dtype == before.dtype
    assert (found[1:] == array(kv.keys[0])[1:]).all()
    assert (found[0] == 3).all(), "padding is not written"


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize(
    ("bits", "dtype", "tokens", "units"), [(8, "float32", 5, 3), (8, "bfloat16", 1, 4), (4, "float32", 17, 4)]
)
def test_product(bits: int, dtype: str, tokens: int, units: int, watched: bool) -> None:
    rng = np.random.default_rng(7)
    rows, columns = 40, units * UNIT
    codes = rng.integers(*((-128, 128) if bits == 8 else (0, 16)), (rows, columns))
    scales = rng.uniform(0.5, 1, (units, rows)).astype(np.float32)
    zeros = rng.integers(0, 8, (units, rows)).astype(np.float32)
    x = array(random.normal(rng, tokens, columns, device=CPU, dtype=dtype))
    wide = (codes - np.repeat(zeros, UNIT, 0).T) * np.repeat(scales, UNIT, 0).T
    wanted = np.asarray(x.astype(jnp.float32), np.float64) @ wide.T
    if bits == 4:
        low, high = codes.reshape(rows, -1, 2, UNIT)[:, :, 0], codes.reshape(rows, -1, 2, UNIT)[:, :, 1]
        codes = (low | high << 4).reshape(rows, columns // 2).astype(np.uint8).view(np.int8)
    held = jnp.asarray(codes.astype(np.int8))
    found = product(x, held, jnp.asarray(scales), jnp.asarray(zeros), bits=bits, interpret=WATCHED if watched else True)
    assert found.shape == (tokens, rows)
    assert nmse(np.asarray(found), wanted) < 1e-9


def test_shapes_of_steps() -> None:
    assert tile_rows(8, 8, 4) == tile_rows(16, 8, 4) == 1
    assert tile_rows(512, 8, 4) == 32
    assert tile_rows(512, 8, 32) == 8
    assert [strip_rows(t, 64) for t in (jnp.float32, jnp.bfloat16, jnp.int8)] == [8, 16, 32]


@pytest.mark.parametrize("seed", range(6))
def test_every_token_has_one_place_in_the_tiles(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths, size = rng.integers(1, 30, 4), int(rng.choice([1, 4, 8]))
    tokens = int(lengths.sum())
    start = np.array([0, *np.cumsum(lengths), tokens, tokens], np.int32)
    positions = np.concatenate([np.arange(n) + 7 for n in lengths] + [np.zeros(3)]).astype(np.int32)
    work = tiles(jnp.asarray(start), jnp.asarray(positions), size)
    assert int(work.count.sum()) == tokens
    place = np.asarray(work.place)[:tokens]
    assert len(set(place.tolist())) == tokens
    rows, first = np.asarray(work.rows).reshape(-1), np.asarray(work.first)
    assert (rows[place] == np.arange(tokens)).all()
    assert (first[place // size] + place % size == positions[:tokens]).all()
    assert (np.repeat(np.arange(4), lengths) == np.asarray(work.sequence)[place // size]).all()


@pytest.mark.parametrize("seed", range(6))
def test_every_token_has_one_place_in_the_strips(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = random.Shape(
        tuple(int(n) for n in rng.integers(1, 50, 4)), tuple(int(n) for n in rng.integers(0, 50, 4)), 32
    )
    slots = random.batch(rng, shape, CPU).slot_mapping.numpy()
    more = np.concatenate([slots, np.zeros(int(rng.integers(0, 9)), np.int32)])
    work = strips(jnp.asarray(more), 32, 16, 4)
    found = {}
    for block, strip, low, high, token in zip(*(np.asarray(x).tolist() for x in work), strict=True):
        for row in range(low, high):
            assert row < 16
            found[block * 32 + strip * 16 + row] = token + row - low
    assert found == {int(slot): at for at, slot in enumerate(slots)}
