"""`mla` by interpreter: on its generator's inputs, over several splits, and with the same bits for every chunking."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from triton_support import BY_NAME, CPU, operator, rng, run

from headrace.kernels import random
from headrace.types import LayerKV

Tensor = torch.Tensor
SPEC = BY_NAME["mla"]
STORES = ("float32", "bfloat16", "float16", "int8", "float8_e4m3")
LONG = random.Shape((1, 2, 1, 3), (140, 70, 63, 0), 16)
"""Decodes and chunks over one, two and three splits of 64 keys."""


@pytest.fixture
def _short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    import headrace.kernels.mla.triton as module

    monkeypatch.setattr(module, "SPLIT", 64)


def _arguments(shape: random.Shape, store: str, dtype: str, heads: int = 5, rank: int = 40) -> dict[str, Any]:
    kv = random.cache(rng(), shape, LayerKV(1, rank + 8), CPU, store)
    return {
        "q": random.normal(rng(2), sum(shape.fresh), heads * (rank + 8), device=CPU, dtype=dtype),
        "batch": random.batch(rng(1), shape, CPU), "latents": kv.keys[0][:, 0],
        "scales": kv.key_scales[0][:, 0] if kv.key_scales else None, "rank": rank, "scale": 0.15,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", SPEC.tolerance)
def test_over_the_operators_generator(dtype: str) -> None:
    tested = 0
    for seed in range(200):
        arguments = SPEC.generate(rng(seed), CPU, dtype)
        if len(arguments["q"]) <= 12 and tested < 4:
            run(SPEC, arguments, SPEC.tolerance[dtype])
            tested += 1
    assert tested == 4


@pytest.mark.usefixtures("_short_splits")
@pytest.mark.parametrize("dtype", SPEC.tolerance)
@pytest.mark.parametrize("store", STORES)
def test_over_several_splits(store: str, dtype: str) -> None:
    run(SPEC, _arguments(LONG, store, dtype), SPEC.tolerance[dtype])


@pytest.mark.parametrize(("heads", "tile"), [(1, 64), (16, 32), (17, 64), (33, 32)])
def test_tiles_of_heads_that_are_not_full(heads: int, tile: int) -> None:
    arguments = _arguments(random.Shape((2, 1), (30, 17), 32), "float32", "float32", heads, 40)
    run(SPEC, arguments, SPEC.tolerance["float32"], tile=tile)


def test_no_sequence_at_all() -> None:
    _, found = run(SPEC, _arguments(random.Shape((), (), 16), "float32", "float32"), 0.0)
    assert found.shape == (0, 5 * 40)


@pytest.mark.usefixtures("_short_splits")
@pytest.mark.parametrize(("store", "dtype"), [("bfloat16", "bfloat16"), ("int8", "float16"), ("float32", "float32")])
def test_a_token_gets_the_same_bits_in_decodes_chunks_prompts_and_batches(store: str, dtype: str) -> None:
    shape = random.Shape((8, 1, 2), (130, 5, 64), 32)
    whole = _arguments(shape, store, dtype)
    function = operator("mla")
    want, batch = function(**whole), whole["batch"]
    for first, count in ((7, 1), (3, 3)):
        last = first + count
        part = replace(
            batch, sizes=torch.tensor([count, 1, 1], dtype=torch.int32), positions=batch.positions[first:last],
            token_seq=torch.zeros(count, dtype=torch.int32), query_start=torch.tensor([0, count], dtype=torch.int32),
            context_lens=torch.tensor([130 + last], dtype=torch.int32), block_tables=batch.block_tables[:1],
        )  # fmt: skip
        assert torch.equal(function(**{**whole, "batch": part, "q": whole["q"][first:last]}), want[first:last])


def test_padding_changes_nothing_and_unwritten_memory_is_not_read() -> None:
    arguments = _arguments(random.Shape((3, 1), (20, 40), 16), "float32", "float32")
    want, batch = operator("mla")(**arguments), arguments["batch"]
    padded = replace(
        batch, positions=torch.cat([batch.positions, torch.zeros(4, dtype=torch.int32)]),
        token_seq=torch.cat([batch.token_seq, torch.zeros(4, dtype=torch.int32)]),
        query_start=torch.cat([batch.query_start, batch.query_start[-1:].repeat(3)]),
        context_lens=torch.cat([batch.context_lens, torch.zeros(3, dtype=torch.int32)]),
        block_tables=torch.cat([batch.block_tables, torch.zeros(3, batch.block_tables.shape[1], dtype=torch.int32)]),
    )  # fmt: skip
    latents = torch.full_like(arguments["latents"], torch.nan)
    for table, length in zip(batch.block_tables.long(), batch.context_lens, strict=True):
        for position in range(int(length)):
            place = table[position // 16], position % 16
            latents[place] = arguments["latents"][place]
    q = torch.cat([arguments["q"], arguments["q"].new_zeros(4, arguments["q"].shape[1])])
    assert torch.equal(operator("mla")(**{**arguments, "latents": latents, "batch": padded, "q": q})[:4], want)
