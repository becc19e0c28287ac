"""References against torch's own functions, and against the definition written out in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from headrace.errors import PlatformError
from headrace.kernels import paged, random
from headrace.kernels.add_rms_norm.reference import add_rms_norm
from headrace.kernels.attention.reference import attention
from headrace.kernels.embedding.reference import embedding
from headrace.kernels.gated_activation.reference import gated_activation
from headrace.kernels.kv import TorchKV
from headrace.kernels.linear import reference as linear_reference
from headrace.kernels.linear.reference import linear
from headrace.kernels.logits.reference import logits
from headrace.kernels.ops import Batch
from headrace.kernels.registry import OPS
from headrace.kernels.resolve_tokens.reference import resolve_tokens
from headrace.kernels.rms_norm.reference import rms_norm
from headrace.kernels.rotary_cache.reference import rotary_cache
from headrace.kernels.weight import Weight
from headrace.types import KVLayout, LayerKV

CPU = torch.device("cpu")
Tensor = torch.Tensor


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.name)
def test_every_generated_input_is_accepted(spec: object) -> None:
    for seed in range(15):
        for dtype in ("float32", "bfloat16"):
            if dtype in spec.tolerance:
                spec.reference(**spec.generate(rng(seed), CPU, dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rms_norm(dtype: str) -> None:
    x, weight = random.normal(rng(), 5, 100, device=CPU, dtype=dtype), random.normal(rng(1), 100, device=CPU)
    expected = functional.rms_norm(x.double(), (100,), weight.double(), 1e-5)
    got = rms_norm(x, weight, 1e-5)
    assert got.dtype == x.dtype
    torch.testing.assert_close(got, expected.to(x.dtype))


def test_add_rms_norm_keeps_the_sum() -> None:
    x, residual = random.normal(rng(), 5, 40, device=CPU), random.normal(rng(1), 5, 40, device=CPU)
    weight = random.normal(rng(2), 40, device=CPU)
    normed, total = add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(normed, functional.rms_norm(x + residual, (40,), weight, 1e-6))


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_gated_activation(kind: str) -> None:
    x = random.normal(rng(), 7, 66, device=CPU)
    gate, up = x.double().chunk(2, -1)
    act = {
        "silu": functional.silu(gate),
        "gelu": functional.gelu(gate),
        "gelu_tanh": functional.gelu(gate, approximate="tanh"),
    }[kind]
    torch.testing.assert_close(gated_activation(x, kind), (act * up).float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rows", "columns", "tokens"), [(1, 1, 1), (7, 33, 5), (100, 64, 0), (64, 128, 40)])
def test_linear(rows: int, columns: int, tokens: int) -> None:
    weight = random.weight(rng(), rows, columns, CPU, "bfloat16", bias=True)
    x = random.normal(rng(1), tokens, columns, device=CPU)
    expected = functional.linear(x.double(), weight.dequantize().double(), weight.bias.double()).float()
    torch.testing.assert_close(linear(x, weight), expected, rtol=1e-5, atol=1e-6)


def test_linear_of_a_stack_and_its_bias() -> None:
    parts = tuple(random.weight(rng(n), n, 24, CPU, "float32", bias=False) for n in (3, 20))
    bias = random.normal(rng(9), 23, device=CPU)
    stack = Weight("stack", (23, 24), {}, Weight.dequantize, bias, parts=parts)
    x = random.normal(rng(1), 4, 24, device=CPU)
    torch.testing.assert_close(linear(x, stack), x @ stack.dequantize().T + bias)


def test_linear_dequantizes_a_chunk_of_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random.weight(rng(), 100, 32, CPU, "bfloat16", bias=True)
    x = random.normal(rng(1), 3, 32, device=CPU)
    whole, sizes = linear(x, weight), []

    def unpack(stored: Weight) -> Tensor:
        sizes.append(stored.shape)
        return stored.tensors["weight"].float()

    monkeypatch.setattr(linear_reference, "CHUNK", 32 * 32)
    assert torch.equal(linear(x, replace(weight, unpack=unpack)), whole)
    assert sizes == [(32, 32), (32, 32), (32, 32), (4, 32)]


def test_linear_quantizes_inputs_if_the_scheme_requires_it() -> None:
    weight = random.weight(rng(), 10, 32, CPU, "bfloat16", bias=False)
    x = random.normal(rng(1), 3, 32, device=CPU)
    rounded = linear(x, replace(weight, activation="int8_token"))
    assert not torch.equal(rounded, linear(x, weight))
    torch.testing.assert_close(rounded, linear(x, weight), atol=0.1, rtol=0.1)


def test_embedding_unpacks_the_requested_rows() -> None:
    table = random.weight(rng(), 50, 8, CPU, "bfloat16", bias=False)
    seen = []

    def unpack(stored: Weight) -> Tensor:
        seen.append(stored.shape)
        return stored.tensors["weight"].float()

    ids = torch.tensor([3, 49, 3], dtype=torch.int32)
    got = embedding(ids, replace(table, unpack=unpack), 2.0)
    assert torch.equal(got, 2 * table.dequantize()[[3, 49, 3]])
    assert seen == [(3, 8)]


def test_logits_of_the_requested_rows_with_soft_cap() -> None:
    batch = random.batch(rng(), random.Shape((4, 1), (0, 3)), CPU)
    head, x = random.weight(rng(), 30, 16, CPU, "float32", bias=False), random.normal(rng(1), 5, 16, device=CPU)
    expected = 3 * torch.tanh(x[batch.rows.long()] @ head.dequantize().T / 3)
    torch.testing.assert_close(logits(x, batch, head, 3.0), expected)


def test_resolve_tokens_reads_and_writes_the_history() -> None:
    batch = random.batch(rng(), random.Shape((2, 1), (0, 4)), CPU)
    batch = replace(
        batch,
        token_ids=torch.tensor([7, -5, -1, 99], dtype=torch.int32),
        slots=torch.tensor([2, 0], dtype=torch.int32),
    )
    history = torch.zeros(3, 8, dtype=torch.int32)
    history[0, 4], history[2, 1] = 42, 43
    assert resolve_tokens(batch, history).tolist() == [7, 43, 42, 0]
    assert history[2, :2].tolist() == [7, 43]
    assert history[0, 4] == 42


def _cached(kv: TorchKV, batch: Batch, sequence: int) -> tuple[Tensor, Tensor]:
    """float32 [context, Hk, d]: keys and values of one sequence, in order."""
    size = kv.layout.block_size
    positions = torch.arange(int(batch.context_lens[sequence]))
    block, offset = batch.block_tables[sequence].long()[positions // size], positions % size
    return (
        paged.gather(kv.keys, kv.key_scales, 0, block, offset),
        paged.gather(kv.values, kv.value_scales, 0, block, offset),
    )


@pytest.mark.parametrize("store", ["float32", "bfloat16", "float16", "int8", "float8_e4m3"])
@pytest.mark.parametrize("window", [None, 1, 20])
def test_attention_against_torch(store: str, window: int | None) -> None:
    shape = random.Shape((1, 40, 3, 1), (0, 0, 100, 200), 32)
    kv = random.cache(rng(), shape, LayerKV(2, 16), CPU, store)
    batch = random.batch(rng(1), shape, CPU)
    q = random.normal(rng(2), 45, 6 * 16, device=CPU)
    got = attention(q, batch, kv, 0, 0.3, window, None, None, None)
    for s, (first, last) in enumerate(
        zip(batch.query_start[:-1].tolist(), batch.query_start[1:].tolist(), strict=True)
    ):
        k, v = _cached(kv, batch, s)
        distance = batch.positions[first:last, None] - torch.arange(len(k))
        mask = (distance >= 0) & (distance < (window or 10**9))
        heads = q[first:last].view(-1, 6, 16).transpose(0, 1)
        expected = functional.scaled_dot_product_attention(
            heads[None].double(),
            k.transpose(0, 1)[None].double(),
            v.transpose(0, 1)[None].double(),
            attn_mask=mask,
            scale=0.3,
            enable_gqa=True,
        )[0]
        torch.testing.assert_close(got[first:last], expected.transpose(0, 1).flatten(1).float(), rtol=1e-4, atol=1e-5)


def test_attention_with_cap_sinks_and_slopes_by_definition() -> None:
    shape = random.Shape((5,), (90,), 16)
    kv = random.cache(rng(), shape, LayerKV(2, 8), CPU, "float32")
    batch = random.batch(rng(1), shape, CPU)
    q = random.normal(rng(2), 5, 4 * 8, device=CPU)
    sinks, alibi = random.normal(rng(3), 4, device=CPU), random.normal(rng(4), 4, device=CPU).abs()
    got = attention(q, batch, kv, 0, 0.5, None, 2.0, sinks, alibi).view(5, 4, 8)
    k, v = (x.double() for x in _cached(kv, batch, 0))
    for token in range(5):
        for head in range(4):
            position = 90 + token
            score = 2 * torch.tanh(k[: position + 1, head // 2] @ q[token].view(4, 8)[head].double() * 0.5 / 2)
            score += alibi[head] * (torch.arange(position + 1) - position)
            weight = torch.cat([score, sinks[head : head + 1]]).softmax(0)[:-1]
            expected = weight @ v[: position + 1, head // 2]
            torch.testing.assert_close(got[token, head].double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normed", [False, True])
def test_rotary_cache_rotates_and_stores(normed: bool) -> None:
    shape = random.Shape((3, 2), (0, 17), 16)
    layout = KVLayout((LayerKV(2, 8),), 16, "float32")
    kv, batch = paged.alloc(layout, 5, CPU), random.batch(rng(), shape, CPU)
    qkv = random.normal(rng(1), 5, (4 + 2 * 2) * 8, device=CPU)
    angle = torch.outer(torch.arange(32.0), torch.tensor([1.0, 0.1]))
    table = torch.cat([angle.cos(), angle.sin()], 1)
    norms = (random.normal(rng(2), 8, device=CPU), random.normal(rng(3), 8, device=CPU)) if normed else (None, None)
    q = rotary_cache(qkv, batch, kv, 0, table, 4, *norms, 1e-6).view(5, 4, 8)
    x = qkv.view(5, 8, 8)
    for token, position in enumerate(batch.positions.tolist()):
        place = int(batch.slot_mapping[token])
        block, offset = place // 16, place % 16
        assert torch.equal(kv.values[0][block, :, offset], x[token, 6:])
        for got, raw, norm in (
            (q[token], x[token, :4], norms[0]),
            (kv.keys[0][block, :, offset], x[token, 4:6], norms[1]),
        ):
            raw = raw if norm is None else functional.rms_norm(raw, (8,), norm, 1e-6)  # noqa: PLW2901
            turn = torch.polar(torch.ones(2), position * torch.tensor([1.0, 0.1]))
            turned = torch.complex(raw[:, :2], raw[:, 2:4]) * turn
            torch.testing.assert_close(got, torch.cat([turned.real, turned.imag, raw[:, 4:]], 1))


@pytest.mark.parametrize(("store", "limit"), [("int8", 0.5 / 127), ("float8_e4m3", 2.0**-4), ("bfloat16", 2.0**-8)])
def test_quantized_cache_round_trip(store: str, limit: float) -> None:
    kv = paged.alloc(KVLayout((LayerKV(2, 16),), 16, store), 3, CPU)
    k, v = (random.normal(rng(n), 32, 2, 16, device=CPU) for n in (0, 1))
    k[3] = 0
    places = torch.arange(16, 48, dtype=torch.int32)
    paged.write(kv, 0, places, k, v)
    back = paged.gather(kv.keys, kv.key_scales, 0, places.long() // 16, places.long() % 16)
    assert ((back - k).abs() <= 1.01 * limit * k.abs().amax(-1, keepdim=True)).all()
    assert torch.equal(back[3], k[3])
    if kv.key_scales:
        largest = 127 if store == "int8" else 448
        torch.testing.assert_close(kv.value_scales[0][1, :, 0], v[0].abs().amax(-1) / largest)


def test_cache_bytes_are_those_of_the_layout() -> None:
    for store in ("float32", "int8", "float8_e4m3"):
        layout = KVLayout((LayerKV(2, 16), LayerKV(1, 8)), 32, store)
        kv = paged.alloc(layout, 4, CPU)
        tensors = (*kv.keys, *kv.values, *kv.key_scales, *kv.value_scales)
        assert sum(t.nbytes for t in tensors) == 4 * layout.bytes_per_block


@pytest.mark.parametrize("store", ["float32", "int8", "float8_e4m3"])
@pytest.mark.parametrize("size", [16, 64, 128])
def test_a_span_is_64_positions_in_order(store: str, size: int) -> None:
    shape = random.Shape((1, 1), (149, 149), size)
    kv = random.cache(rng(), shape, LayerKV(2, 8), CPU, store)
    batch = random.batch(rng(1), shape, CPU)
    for index in range(3):
        got = paged.span(kv.keys, kv.key_scales, 0, batch.block_tables, index)
        assert got.shape == (2, 2, 64, 8)
        for sequence in range(2):
            expected = _cached(kv, batch, sequence)[0][64 * index : 64 * index + 64]
            assert torch.equal(got[sequence].transpose(0, 1)[: len(expected)], expected)


def test_a_block_size_that_does_not_divide_a_span_is_refused() -> None:
    with pytest.raises(PlatformError, match="block size 48: choose a divisor or a multiple of 64"):
        paged.alloc(KVLayout((LayerKV(1, 8),), 48, "float32"), 2, CPU)
