"""Every operator by interpreter over its own generator, in every type it takes, and what the generators do not
reach."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from triton_support import BY_NAME, CPU, cases, operator, outputs, rng, run

from headrace.conformance.operators_tier import nmse
from headrace.errors import PlatformError
from headrace.kernels import random
from headrace.kernels.registry import OPS, OPTIONAL
from headrace.kernels.tritonlib.launch_config import config_for
from headrace.kernels.tritonlib.operator_set import OPERATORS
from headrace.types import LayerKV

Tensor = torch.Tensor
DTYPES = ("float32", "bfloat16", "float16")
STORES = ("float32", "bfloat16", "float16", "int8", "float8_e4m3")
_GENERATED = [
    (spec.name, dtype) for spec in OPS for dtype in DTYPES if dtype in spec.tolerance and spec.name != "sample"
]


@pytest.mark.parametrize(("name", "dtype"), _GENERATED)
def test_over_the_operators_generator(name: str, dtype: str) -> None:
    spec = BY_NAME[name]
    for arguments in cases(spec, dtype, 4 if name != "rotary_cache" else 2):
        own, _ = run(spec, arguments, spec.tolerance[dtype])
        if "history" in arguments:
            assert torch.equal(own["history"], arguments["history"])
        if "kv" in arguments:
            _same_cache(own["kv"], arguments["kv"])


def _same_cache(found: Any, wanted: Any) -> None:
    for part in ("keys", "values", "key_scales", "value_scales"):
        for got, want in zip(getattr(found, part), getattr(wanted, part), strict=True):
            # A code may fall to the other side of a tie that the rotation's last bit decides.
            assert nmse(got.float().numpy(), want.float().numpy()) <= 1e-5


def _attention(
    shape: random.Shape, store: str = "float32", dtype: str = "float32", heads: tuple[int, int] = (4, 2), **given: Any
) -> dict[str, Any]:
    kv = random.cache(rng(), shape, LayerKV(heads[1], 16), CPU, store)
    q = random.normal(rng(2), sum(shape.fresh), heads[0] * 16, device=CPU, dtype=dtype)
    plain = {"window": None, "soft_cap": None, "sinks": None, "alibi": None}
    return {"q": q, "batch": random.batch(rng(1), shape, CPU), "kv": kv, "layer": 0, "scale": 0.25, **plain, **given}


LONG = random.Shape((1, 3, 1, 30), (140, 70, 63, 0), 16)
"""Decodes and chunks over one, two and three splits of 64 keys."""


@pytest.fixture
def _short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    import headrace.kernels.attention.triton as module

    monkeypatch.setattr(module, "SPLIT", 64)


@pytest.mark.usefixtures("_short_splits")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("store", STORES)
def test_attention_over_several_splits(store: str, dtype: str) -> None:
    run(BY_NAME["attention"], _attention(LONG, store, dtype), BY_NAME["attention"].tolerance[dtype])


@pytest.mark.usefixtures("_short_splits")
@pytest.mark.parametrize(("tile", "invariant"), [(64, True), (32, False)])
def test_attention_with_everything_at_once(tile: int, invariant: bool) -> None:
    sinks, alibi = random.normal(rng(3), 6, device=CPU), random.normal(rng(4), 6, device=CPU).abs() / 8
    for window in (None, 1, 30, 100):
        given = {"window": window, "soft_cap": 3.0, "sinks": sinks, "alibi": alibi, "heads": (6, 2)}
        run(BY_NAME["attention"], _attention(LONG, **given), 1e-9, tile=tile, batch_invariant=invariant)


def test_attention_with_one_key_head_for_many() -> None:
    run(BY_NAME["attention"], _attention(random.Shape((1, 5), (70, 3)), heads=(71, 1)), 1e-9)


@pytest.mark.usefixtures("_short_splits")
def test_a_token_gets_the_same_bits_decoded_chunked_and_whole() -> None:
    whole = _attention(random.Shape((70,), (100,), 32), "bfloat16", "bfloat16")
    attention = operator("attention")
    reference = attention(**whole)
    for first, count in ((69, 1), (40, 30), (10, 2)):
        batch, last = whole["batch"], first + count
        part = replace(
            batch, sizes=torch.tensor([count, 1, 1], dtype=torch.int32), positions=batch.positions[first:last],
            token_ids=batch.token_ids[first:last], query_start=torch.tensor([0, count], dtype=torch.int32),
            context_lens=torch.tensor([100 + last], dtype=torch.int32),
        )  # fmt: skip
        assert torch.equal(attention(**{**whole, "batch": part, "q": whole["q"][first:last]}), reference[first:last])


def test_padding_changes_nothing() -> None:
    """Tokens, sequences and rows past the true sizes, as a captured graph has them."""
    arguments = _attention(random.Shape((3, 1), (20, 40), 16))
    want, batch = operator("attention")(**arguments), arguments["batch"]
    padded = replace(
        batch, positions=torch.cat([batch.positions, torch.zeros(4, dtype=torch.int32)]),
        query_start=torch.cat([batch.query_start, batch.query_start[-1:].repeat(3)]),
        context_lens=torch.cat([batch.context_lens, torch.zeros(3, dtype=torch.int32)]),
        block_tables=torch.cat([batch.block_tables, torch.zeros(3, batch.block_tables.shape[1], dtype=torch.int32)]),
    )  # fmt: skip
    q = torch.cat([arguments["q"], arguments["q"].new_zeros(4, arguments["q"].shape[1])])
    got = operator("attention")(**{**arguments, "batch": padded, "q": q})
    assert torch.equal(got[:4], want)


def test_padding_writes_nothing() -> None:
    spec = BY_NAME["rotary_cache"]
    arguments = next(a for a in cases(spec, "float32", 20) if 2 < len(a["qkv"]) < 12)
    arguments["batch"] = replace(arguments["batch"], sizes=torch.tensor([1, 1, 1], dtype=torch.int32))
    own = copy.deepcopy(arguments)
    operator("rotary_cache")(**own)
    spec.reference(**arguments)
    _same_cache(own["kv"], arguments["kv"])


def _sample_cases(count: int) -> list[dict[str, Any]]:
    return [BY_NAME["sample"].generate(rng(seed), CPU, "float32") for seed in range(count)]


def _check_sample(arguments: dict[str, Any]) -> None:
    own = copy.deepcopy(arguments)
    found, wanted = operator("sample")(**own), BY_NAME["sample"].reference(**arguments)
    assert torch.equal(found.tokens, wanted.tokens)
    assert torch.equal(own["inputs"].history, arguments["inputs"].history)
    if arguments["num_logprobs"] >= 0:
        assert torch.equal(found.ranks, wanted.ranks)
        assert torch.equal(found.top_ids, wanted.top_ids)
        torch.testing.assert_close(found.logprobs, wanted.logprobs)
        torch.testing.assert_close(found.top_logprobs, wanted.top_logprobs)


def test_sampling_draws_the_references_tokens() -> None:
    for arguments in _sample_cases(10):
        _check_sample(arguments)


def _sampled(rows: int = 3, vocab: int = 40, **given: Any) -> dict[str, Any]:
    """Rows at temperature 1 with nothing else set, but for what is given."""
    arguments = next(a for a in _sample_cases(60) if len(a["logits"]) == rows)
    one, zero = torch.ones(rows), torch.zeros(rows)
    plain = {
        "temperature": one, "top_p": one, "top_k": zero.int(), "min_p": zero, "repetition_penalty": one,
        "presence_penalty": zero, "frequency_penalty": zero, "target": (zero - 1).int(),
        "allowed_row": (zero - 1).int(), "bias_row": torch.full((1,), -1, dtype=torch.int32),
        "bias_token": torch.zeros(1, dtype=torch.int32), "bias_value": torch.zeros(1),
        "history": torch.zeros(rows + 1, 64, dtype=torch.int32),
    }  # fmt: skip
    logits = given.pop("logits", 3 * random.normal(rng(1), rows, vocab, device=CPU))
    return {
        **arguments,
        "logits": logits,
        "inputs": replace(arguments["inputs"], **{**plain, **given}),
        "num_logprobs": 3,
    }


def test_sampling_among_ties_cuts_by_the_lower_id() -> None:
    flat = torch.zeros(3, 40)
    for top_k, top_p in ((7, 1.0), (0, 0.3), (11, 0.5), (40, 0.999), (1, 1.0), (0, 1e-9), (0, 0.0)):
        given = {"top_k": torch.full((3,), top_k, dtype=torch.int32), "top_p": torch.full((3,), top_p)}
        for seed in range(2):
            seeds = torch.tensor([seed, -seed, 1 << 40 | seed])
            _check_sample(_sampled(logits=flat.clone(), seed=seeds, **given))


def test_sampling_over_more_tokens_than_a_block() -> None:
    logits = 2 * random.normal(rng(5), 3, 9000, device=CPU)
    _check_sample(_sampled(logits=logits, top_p=torch.tensor([0.9, 0.2, 1.0]), top_k=torch.tensor([0, 500, 4000]).int(),
                           allowed=torch.full((1, 282), -1, dtype=torch.int32)))  # fmt: skip


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_sampling_survives_what_is_not_finite(value: float) -> None:
    logits = 3 * random.normal(rng(1), 3, 40, device=CPU)
    logits[0], logits[1, 3] = value if value != float("inf") else 1.0, value
    for heat in (0.0, 1.0):
        _check_sample(_sampled(logits=logits.clone(), temperature=torch.full((3,), heat)))


def test_sampling_where_bans_leave_nothing() -> None:
    masks = torch.zeros(1, 2, dtype=torch.int32)
    rows = torch.tensor([0, -1, 0], dtype=torch.int32)
    for heat in (0.0, 1.0):
        _check_sample(_sampled(allowed=masks, allowed_row=rows, temperature=torch.full((3,), heat)))


def test_e4m3_codes_are_torchs() -> None:
    """All 256 decoded, and a sweep encoded: by a kernel of their own, since operators only use them inside."""
    import triton.language as tl

    from headrace.kernels.tritonlib.device import decode_e4m3, encode_e4m3, jit

    @jit
    def kernel(codes: Any, floats: Any, x: Any, encoded: Any, BLOCK: tl.constexpr) -> None:
        at = tl.arange(0, BLOCK)
        tl.store(floats + at, decode_e4m3(tl.load(codes + at)).to(tl.float32))
        tl.store(encoded + at, encode_e4m3(tl.load(x + at)))

    kernel.fn.__globals__.update(tl=tl, decode_e4m3=decode_e4m3, encode_e4m3=encode_e4m3)
    count = 4096
    codes = (torch.arange(count) % 256).to(torch.uint8)
    x = torch.linspace(-500, 500, count) * torch.from_numpy(rng().uniform(-14, 0, count)).exp2().float()
    x[:6] = torch.tensor([0.0, 2.0**-10, 3 * 2.0**-10, 448.0, 465.0, 2.0**-6 - 2.0**-11])
    floats, encoded = torch.zeros(count), torch.zeros(count, dtype=torch.uint8)
    kernel[(1,)](codes, floats, x, encoded, BLOCK=count)
    numbers = codes & 0x7F != 0x7F
    assert torch.equal(floats[numbers], codes.view(torch.float8_e4m3fn).float()[numbers])
    assert torch.equal(encoded, x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))


def test_embedding_of_a_quantized_table_and_in_a_narrow_type() -> None:
    from headrace.quant.containers import int4_weight

    codes = torch.from_numpy(rng().integers(0, 256, (20, 16), dtype="uint8"))
    table = int4_weight(codes, 32, torch.rand(20, 1, generator=torch.Generator().manual_seed(0)), None, None, "t")
    ids = torch.tensor([3, 19, 3], dtype=torch.int32)
    got = operator("embedding", dtype="bfloat16")(ids, table, 2.0)
    assert torch.equal(got, (table.dequantize()[ids.long()] * 2).bfloat16())
    plain = random.weight(rng(), 20, 32, CPU, "bfloat16", False)
    assert operator("embedding", dtype="float16")(ids, plain, 1.0).dtype == torch.float16


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(PlatformError, match="kind 'relu': choose one of silu, gelu, gelu_tanh"):
        operator("gated_activation")(torch.zeros(1, 4), "relu")


def test_the_table_has_every_operator() -> None:
    assert {spec.name for spec in OPS} <= set(OPERATORS) <= {spec.name for spec in (*OPS, *OPTIONAL)}
    for name in OPERATORS:
        bound = operator(name)
        assert bound.tag == "triton"
        assert (bound.pack is not None) == (name in ("linear", "logits", "moe", "own_experts"))


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(PlatformError, match="dtype 'int3' of the Triton operators: choose one of float32"):
        config_for(dtype="int3")


def test_nothing_is_launched_for_nothing() -> None:
    launched: list[Any] = []
    from headrace.kernels.tritonlib.operator_set import operators

    bound = operators(config_for(launch=lambda kernel, grid, args, warps, stages: launched.append(grid)))
    bound["rms_norm"](torch.zeros(0, 8), torch.ones(8), 1e-5)
    assert launched == [(0,)]
    assert outputs(operator("rms_norm")(torch.zeros(0, 8), torch.ones(8), 1e-5))[0].shape == (0, 8)
