"""The forms for compilers of whole steps against the references: over each operator's generator, and with padding."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from headrace.conformance.operators_tier import nmse
from headrace.kernels import random
from headrace.kernels.attention.static import attention
from headrace.kernels.gated_activation.static import gated_activation
from headrace.kernels.linear.static import embedding, linear, logits, pack
from headrace.kernels.registry import OPS
from headrace.kernels.resolve_tokens.static import resolve_tokens
from headrace.kernels.rms_norm.static import add_rms_norm, rms_norm
from headrace.kernels.rotary_cache.static import rotary_cache
from headrace.kernels.sample.static import sample
from headrace.kernels.weight import Weight
from headrace.quant.online import quantize_weight
from headrace.types import LayerKV

CPU = torch.device("cpu")
F32 = torch.float32
BY_NAME = {spec.name: spec for spec in OPS}
FORMS: dict[str, Callable[..., Any]] = {
    "resolve_tokens": resolve_tokens,
    "embedding": partial(embedding, dtype=F32),
    "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "linear": partial(linear, dtype=F32),
    "rotary_cache": rotary_cache,
    "attention": attention,
    "gated_activation": gated_activation,
    "logits": partial(logits, dtype=F32),
    "sample": sample,
}


def tensors(found: Any) -> list[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        return [found]
    return list(found) if isinstance(found, tuple) else [getattr(found, field.name) for field in fields(found)]


def stored(kv: Any) -> list[torch.Tensor]:
    return [*kv.keys, *kv.values, *kv.key_scales, *kv.value_scales]


@pytest.mark.parametrize("case", range(12))
@pytest.mark.parametrize("name", sorted(FORMS))
def test_over_the_operators_generator(name: str, case: int) -> None:
    spec = BY_NAME[name]
    given = spec.generate(np.random.default_rng([case, len(name)]), CPU, "float32")
    if "kv" in given and given["kv"].layout.dtype == "float8_e4m3":
        pytest.skip("these forms store no 8-bit floats")
    mine = copy.deepcopy(given) if name not in ("linear", "embedding", "logits") else given
    wanted, found = spec.reference(**given), FORMS[name](**mine)
    for got, want in zip(tensors(found), tensors(wanted), strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        if got.dtype == F32:
            assert nmse(got.numpy(), want.numpy()) < 1e-9
        else:
            assert torch.equal(got, want)
    if "kv" in given:
        for got, want in zip(stored(mine["kv"]), stored(given["kv"]), strict=True):
            assert nmse(got.float().numpy(), want.float().numpy()) < 1e-5, "a code may fall to the other side of a tie"
    for holder in ("history", "inputs"):
        if holder in given:
            mine_, given_ = (x[holder] if holder == "history" else x[holder].history for x in (mine, given))
            assert torch.equal(mine_, given_)


def padded(batch: Any, tokens: int, seqs: int, spare: int) -> Any:
    """As `inputs.pad_arrays` does it."""

    def longer(x: torch.Tensor, length: int, value: int = 0) -> torch.Tensor:
        return torch.cat([x, x.new_full((length - len(x), *x.shape[1:]), value)])

    per_token = {
        name: longer(getattr(batch, name), tokens) for name in ("token_ids", "positions", "slot_mapping", "token_seq")
    }
    ends = longer(batch.query_start, seqs + 1, int(batch.query_start[-1]))
    return replace(
        batch, **per_token, query_start=ends, context_lens=longer(batch.context_lens, seqs),
        block_tables=longer(batch.block_tables, seqs), slots=longer(batch.slots, seqs, spare),
    )  # fmt: skip


SHAPE = random.Shape((1, 5, 1), (20, 3, 0), 16)


def test_padding_writes_nothing_to_the_history() -> None:
    batch = random.batch(np.random.default_rng(3), SHAPE, CPU)
    batch = replace(batch, positions=batch.positions.clone())
    history = torch.arange(6 * 32, dtype=torch.int32).view(6, 32)
    wanted, found = history.clone(), history.clone()
    ids = BY_NAME["resolve_tokens"].reference(batch, wanted)
    more = resolve_tokens(padded(batch, 16, 8, 5), found)
    assert torch.equal(found, wanted)
    assert torch.equal(more[:7], ids)
    assert not more[7:].any()


def test_padding_changes_no_block_but_the_first() -> None:
    rng = np.random.default_rng(4)
    batch = random.batch(rng, SHAPE, CPU)
    kv = random.cache(rng, SHAPE, LayerKV(2, 16), CPU, "int8")
    qkv = random.normal(rng, 7, 6 * 16, device=CPU)
    table = torch.cat([torch.ones(64, 8), torch.zeros(64, 8)], 1)
    wanted, found = copy.deepcopy(kv), copy.deepcopy(kv)
    q = BY_NAME["rotary_cache"].reference(qkv, batch, wanted, 0, table, 2, None, None, 1e-6)
    wide = torch.cat([qkv, torch.ones(9, 96)])
    more = rotary_cache(wide, padded(batch, 16, 8, 5), found, 0, table, 2, None, None, 1e-6)
    assert torch.allclose(more[:7], q)
    for got, want in zip(stored(found), stored(wanted), strict=True):
        assert torch.equal(got[1:], want[1:])
    out = attention(more, padded(batch, 16, 8, 5), found, 0, 0.25, None, None, None, None)
    assert out.isfinite().all()
    assert torch.allclose(
        out[:7], BY_NAME["attention"].reference(q, batch, wanted, 0, 0.25, None, None, None, None), atol=1e-5
    )


def test_rows_of_padding_are_not_remembered() -> None:
    given = BY_NAME["sample"].generate(np.random.default_rng([0, 6]), CPU, "float32")
    inputs, batch = given["inputs"], given["batch"]
    assert len(given["logits"]) > 2
    before = inputs.history.clone()
    sample(given["logits"], inputs, replace(batch, sizes=torch.tensor([1, 1, 1], dtype=torch.int32)), 0)
    changed = (inputs.history != before).any(1).nonzero()[:, 0].tolist()
    assert set(changed) <= {int(inputs.slot[0])}


def test_memory_that_was_never_written_is_not_read() -> None:
    rng = np.random.default_rng(6)
    kv = random.cache(rng, SHAPE, LayerKV(1, 16), CPU, "float32")
    batch = random.batch(rng, random.Shape((1,), (4,), 16), CPU)
    block = int(batch.block_tables[0, 0])
    kv.keys[0][block, :, 5:], kv.values[0][block, :, 5:] = torch.nan, torch.nan
    q = random.normal(rng, 1, 16, device=CPU)
    assert attention(q, batch, kv, 0, 0.25, None, None, None, None).isfinite().all()


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantized_weights_are_made_dense_once(kind: str) -> None:
    rng = np.random.default_rng(7)
    wide = [random.weight(rng, rows, 64, CPU, "float32", bias=False) for rows in (32, 16)]
    parts = tuple(quantize_weight(weight, kind) for weight in wide)
    stack = Weight("stack", (48, 64), {}, lambda w: w.dequantize(), bias=torch.arange(48.0), parts=parts)
    x = random.normal(rng, 3, 64, device=CPU)
    pack(stack, F32)
    made = [part.prepared.copy() for part in parts]
    assert torch.allclose(linear(x, stack, F32), BY_NAME["linear"].reference(x, stack), atol=1e-4)
    assert all(part.prepared == before for part, before in zip(parts, made, strict=True))


def test_an_embedding_follows_its_table() -> None:
    rng = np.random.default_rng(8)
    ids = torch.tensor([1, 0])
    for stored_as, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        assert embedding(ids, random.weight(rng, 4, 8, CPU, stored_as, False), 1.0, None).dtype == dtype
    table = random.weight(rng, 4, 8, CPU, "float32", False)
    assert embedding(ids, table, 1.0, torch.bfloat16).dtype == torch.bfloat16
    assert torch.equal(
        embedding(ids, Weight("stack", (4, 8), {}, table.unpack, parts=(table,)), 2.0, F32), 2 * table.dequantize()[ids]
    )


def test_a_maximum_that_is_never_infinite_changes_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch-xla's is, which begins at the least finite number: rows whose tokens are all forbidden choose among
    all."""
    draws = (BY_NAME["sample"].generate(np.random.default_rng(seed), CPU, "float32") for seed in range(100))
    given = next(draw for draw in draws if len(draw["logits"]) > 2)
    given["logits"][0] = -torch.inf
    none, rows = torch.zeros(1, -(-given["logits"].shape[1] // 32), dtype=torch.int32), len(given["logits"])
    given["inputs"] = replace(given["inputs"], allowed=none, allowed_row=torch.zeros(rows, dtype=torch.int32))
    mine = copy.deepcopy(given)
    wanted = BY_NAME["sample"].reference(**given).tokens
    largest = torch.Tensor.amax
    monkeypatch.setattr(torch.Tensor, "amax", lambda x, *a, **k: largest(x, *a, **k).clamp(min=torch.finfo(F32).min))
    assert torch.equal(sample(**mine).tokens, wanted)
