"""Vendors' libraries in place of Triton: what they are handed, what they compute with it, and who serves the rest."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import fake_accelerator as fake
import fake_libraries
import numpy as np
import pytest
import torch
from fake_machines import VENDORS
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.checkpoints.checkpoint import open_checkpoint
from headrace.cli.speculation_facts import add_depths
from headrace.engine.draft_depth import drafts_of
from headrace.errors import PlatformError
from headrace.kernels import random
from headrace.kernels.attention.reference import attention
from headrace.kernels.registry import OPS, OPTIONAL, bind, binding
from headrace.options import make_config
from headrace.platforms.cuda.flashinfer_attention import FlashInferAttention, pages_of
from headrace.platforms.xpu import ipex_operators
from headrace.types import LayerKV

CUDA, ROCM, XPU = VENDORS
HOST = torch.device("cpu")
IPEX = "intel_extension_for_pytorch"
SPEC = {spec.name: spec for spec in OPS}
TOLERANCE = SPEC["attention"].tolerance


def nmse(found: torch.Tensor, wanted: torch.Tensor) -> float:
    wanted = wanted.double()
    return float((found.double() - wanted).pow(2).sum() / wanted.pow(2).sum().clamp(min=1e-30))


class Refusing:
    tag = "triton"

    def __call__(self, *args: Any) -> Any:
        raise AssertionError("every call fits")


def drawn(rng: np.random.Generator, **fixed: Any) -> dict[str, Any]:
    """A call that fits FlashInfer, but for what is `fixed`."""
    decodes = rng.random() < 0.4
    shape = random.Shape.draw(rng)
    if decodes:
        shape = random.Shape((1,) * len(shape.fresh), shape.before, shape.block_size)
    dtype = str(rng.choice(["float16", "bfloat16"]))
    kv_heads, size = int(rng.integers(1, 4)), int(rng.choice([64, 128]))
    heads = kv_heads * int(rng.integers(1, 6))
    return {
        "q": random.normal(rng, sum(shape.fresh), heads * size, device=HOST, dtype=dtype),
        "batch": random.batch(rng, shape, HOST),
        "kv": random.cache(rng, shape, LayerKV(kv_heads, size), HOST, dtype),
        "layer": 0,
        "scale": float(rng.choice([size**-0.5, 0.2])),
        "window": int(rng.integers(1, 100)) if rng.random() < 0.4 else None,
        "soft_cap": 5.0 if rng.random() < 0.4 else None,
        "sinks": None,
        "alibi": None,
    } | fixed


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_flashinfer_computes_the_references_attention_from_what_it_is_handed(seed: int) -> None:
    library = fake_libraries.flashinfer()
    call = drawn(np.random.default_rng(seed))
    operator = FlashInferAttention(library, Refusing(), HOST)
    found, wanted = operator(**call), attention(**call)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert nmse(found, wanted) <= TOLERANCE[str(found.dtype).removeprefix("torch.")]
    # Where no sequence has more than one query: the wrapper for decodes, of tensor cores where heads share much.
    queries = call["batch"].query_start.diff()
    kinds = [type(wrapper).__name__ for wrapper in library.wrappers]
    assert kinds == ([] if not queries.any() else ["Decode"] if queries.max() == 1 else ["Prefill"])
    if kinds == ["Decode"]:
        plan = library.wrappers[0].plans[0]
        assert library.wrappers[0].cores is (plan["num_qo_heads"] // plan["num_kv_heads"] > 2)


def test_pages_are_one_list_with_the_fill_of_the_last() -> None:
    rng = np.random.default_rng(0)
    batch = random.batch(rng, random.Shape((1, 3, 2), (31, 14, 0), 16), HOST)
    pages = pages_of(batch, 16)
    assert pages.indptr.tolist() == [0, 2, 4, 5]
    assert pages.last_page_len.tolist() == [16, 1, 2]
    assert pages.query_start.tolist() == [0, 1, 4, 6]
    tables = batch.block_tables.tolist()
    assert pages.indices.tolist() == [*tables[0], *tables[1], tables[2][0]]
    assert not pages.decodes


def test_a_sequence_without_a_query_is_left_out() -> None:
    rng = np.random.default_rng(2)
    batch = random.batch(rng, random.Shape((0, 2, 0, 1), (5, 15, 0, 3), 16), HOST)
    pages = pages_of(batch, 16)
    assert pages.query_start.tolist() == [0, 2, 3]
    assert pages.indptr.tolist() == [0, 2, 3]
    assert pages.last_page_len.tolist() == [1, 4]
    tables = batch.block_tables.tolist()
    assert pages.indices.tolist() == [*tables[1][:2], tables[3][0]]


def test_what_is_padded_is_left_out() -> None:
    rng = np.random.default_rng(1)
    call = drawn(rng, batch=random.batch(rng, random.Shape((1, 1), (5, 20), 16), HOST), window=None)
    call["kv"] = random.cache(rng, random.Shape((1, 1), (5, 20), 16), LayerKV(1, 64), HOST, "float16")
    call["q"] = random.normal(rng, 2, 64, device=HOST, dtype="float16")
    operator = FlashInferAttention(fake_libraries.flashinfer(), Refusing(), HOST)
    whole = operator(**call)
    batch = call["batch"]
    wide = {name: torch.cat([getattr(batch, name), torch.zeros_like(getattr(batch, name)[:1])]) for name in PADDED}
    wide["query_start"] = torch.cat([batch.query_start, batch.query_start[-1:]])
    padded = type(batch)(**{name: wide.get(name, getattr(batch, name)) for name in batch.__slots__})
    found = operator(**call | {"batch": padded, "q": torch.cat([call["q"], torch.ones(3, 64, dtype=torch.float16)])})
    assert torch.equal(found[:2], whole)
    assert not found[2:].any()


PADDED = ("context_lens", "block_tables", "slots")


def test_layers_of_a_kind_share_a_plan_and_a_step_makes_new_ones() -> None:
    rng = np.random.default_rng(3)
    library = fake_libraries.flashinfer()
    shape = random.Shape((1, 1, 1), (4, 40, 17), 16)
    call = drawn(rng, batch=random.batch(rng, shape, HOST), soft_cap=None)
    call |= {"kv": random.cache(rng, shape, LayerKV(2, 64), HOST, "bfloat16")}
    call |= {"q": random.normal(rng, 3, 4 * 64, device=HOST, dtype="bfloat16")}
    operator = FlashInferAttention(library, Refusing(), HOST)
    for window in (None, 8, None, 8):
        assert nmse(operator(**call | {"window": window}), attention(**call | {"window": window})) < 1e-4
    assert [(len(w.plans), w.runs) for w in library.wrappers] == [(1, 2), (1, 2)]
    fresh = random.batch(np.random.default_rng(4), shape, HOST)
    assert (
        nmse(operator(**call | {"window": 8, "batch": fresh}), attention(**call | {"window": 8, "batch": fresh})) < 1e-4
    )
    assert [len(wrapper.plans) for wrapper in library.wrappers] == [1, 2]


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        ({"sinks": torch.zeros(2)}, "the model has attention sinks"),
        ({"alibi": torch.ones(2)}, "the model has ALiBi slopes"),
        ({"dtype": "float32"}, "queries are float32, but it computes in 16 bits"),
        ({"store": "int8"}, "the cache is int8 and the queries are bfloat16"),
        ({"store": "float8_e4m3"}, "the cache is float8_e4m3 and the queries are bfloat16"),
        ({"store": "float16"}, "the cache is float16 and the queries are bfloat16"),
        ({"size": 80}, "heads have 80 elements, but it has kernels for 64, 128, 256"),
    ],
)
def test_calls_that_do_not_fit_are_served_by_the_other_and_logged_once(
    fixed: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(5)
    dtype, size = fixed.pop("dtype", "bfloat16"), fixed.pop("size", 64)
    shape = random.Shape((2,), (3,), 16)
    call = drawn(rng, batch=random.batch(rng, shape, HOST))
    call["q"] = random.normal(rng, 2, 2 * size, device=HOST, dtype=dtype)
    call["kv"] = random.cache(rng, shape, LayerKV(1, size), HOST, fixed.pop("store", dtype))
    library = fake_libraries.flashinfer()
    operator = FlashInferAttention(library, attention, HOST)
    for _ in range(2):
        assert torch.equal(operator(**call | fixed), attention(**call | fixed))
    assert library.wrappers == []
    assert caplog.text.count(f"attention is not computed by flashinfer but by reference: {said}") == 1


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """FlashInfer and IPEX, as imports find them."""
    found = fake_libraries.flashinfer(), fake_libraries.ipex()
    monkeypatch.setitem(sys.modules, "flashinfer", found[0])
    for name in (IPEX, f"{IPEX}.llm"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, f"{IPEX}.llm.functional", found[1])
    return found


def test_a_device_binds_the_provider_that_was_asked_for(tmp_path: Path, installed: Any) -> None:
    device = CUDA.open(tmp_path)[0].open(0, {"operators": "flashinfer"})
    bound = binding(device)
    assert bound.tags == {spec.name: "recorded reference" for spec in OPS} | {"attention": "flashinfer"}
    assert bound.reasons["attention"] == (
        "float16 and bfloat16 with heads of 64, 128 or 256; by recorded reference: "
        "float32, other heads, int8 and float8 caches, attention sinks, ALiBi slopes"
    )
    assert device.why_uncaptured() == "FlashInfer plans every step on the host"
    assert not device.capabilities().static_shapes
    assert not device.capabilities().deterministic, "its sums are its own"
    device.close()
    plain = CUDA.open(tmp_path)[0].open(0, {})
    assert binding(plain).tags["attention"] == "recorded reference", "never unasked"
    assert plain.why_uncaptured() == ""
    plain.close()


def test_a_provider_that_reads_lengths_on_the_host_leaves_drafts_to_it(tmp_path: Path, installed: Any) -> None:
    """`place` changes lengths on the device. Without it steps with drafts do not overlap, and `doctor` says so."""
    platform = CUDA.open(tmp_path)[0]
    depths = {}
    for operators in ("triton", "flashinfer"):
        device = platform.open(0, {"operators": operators})
        bound = binding(device)
        facts = [{"name": "ngram", "chosen": False, "problem": None}, {"name": "mtp", "chosen": False, "problem": None}]
        optional = [
            {"name": spec.name, "implementation": getattr(bound.optional[spec.name], "tag", "own")} for spec in OPTIONAL
        ]
        add_depths(facts, {"optional": optional})
        config = make_config("m", {"speculate": "ngram"}), make_config("m", {"speculate": "mtp"})
        assert [drafts_of(one, device) > 0 for one in config] == [fact["depth"] == 2 for fact in facts]
        depths[operators] = [fact["depth"] for fact in facts]
        reason = bound.optional_reasons["place"]
        device.close()
    assert depths == {"triton": [2, 2], "flashinfer": [1, 1]}
    assert reason == "FlashInfer reads the lengths of a step on the host, before drafts could change them"


def test_a_models_layers_run_through_flashinfer(
    tmp_path: Path, installed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "engine"))
    tiny_models, harness = importlib.import_module("tiny_models"), importlib.import_module("model_harness")
    tiny_models.save("llama", tmp_path / "model", head_dim=64)

    def logits(options: dict[str, Any]) -> torch.Tensor:
        module = fake.FakeModule(fake.H200)
        table, why = fake.operators_of(module)(None, None, None)  # type: ignore[arg-type]
        narrow = {**table, "embedding": lambda *call, **more: table["embedding"](*call, **more).bfloat16()}
        device = CUDA.open(tmp_path, module=module, source=lambda able, chip, said: (narrow, why))[0].open(0, options)
        model = open_checkpoint(tmp_path / "model").build(bind(device), 64)
        found: torch.Tensor = harness.logits_of(model, tiny_models.prompt(11), 5, "bfloat16", device)
        device.close()
        return found

    wanted, found = logits({}), logits({"operators": "flashinfer"})
    assert not torch.equal(found, wanted), "another order of sums"
    assert nmse(found, wanted) < 1e-3
    # 11 tokens in chunks of 5: two chunks of a prompt and one token as a decode, of three layers each.
    assert [(type(w).__name__, len(w.plans), w.runs) for w in installed[0].wrappers] == [
        ("Prefill", 2, 6),
        ("Decode", 1, 3),
    ]


@pytest.mark.parametrize(
    ("vendor", "asked", "said"),
    [
        (
            CUDA,
            "flashinfer",
            "flashinfer-python is not installed: pip install flashinfer-python, or leave the option out",
        ),
        (
            XPU,
            "ipex",
            "intel-extension-for-pytorch is not installed: pip install intel-extension-for-pytorch from Intel's",
        ),
        (CUDA, "ipex", "cuda: option operators is 'ipex': choose one of triton, flashinfer"),
        (ROCM, "flashinfer", "rocm: option operators is 'flashinfer': choose one of triton$"),
        (XPU, "flashinfer", "xpu: option operators is 'flashinfer': choose one of triton, ipex"),
    ],
)
def test_a_provider_that_is_not_there_is_an_error_with_its_remedy(
    vendor: Any, asked: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(PlatformError, match=said):
        vendor.open(tmp_path)[0].open(0, {"operators": asked})


def test_a_provider_that_does_not_load_gives_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flashinfer.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PlatformError, match=r"flashinfer cannot be loaded: OSError: libcudart\.so\.12: .*: repair it"):
        CUDA.open(tmp_path)[0].open(0, {"operators": "flashinfer"})
    assert "flashinfer" not in sys.modules


def test_ipex_serves_norms_and_gates(tmp_path: Path, installed: Any) -> None:
    device = XPU.open(tmp_path)[0].open(0, {"operators": "ipex", "graph_tokens": 8})
    bound = binding(device)
    own = {"rms_norm", "add_rms_norm", "gated_activation"}
    assert {name for name, tag in bound.tags.items() if tag == "ipex"} == own
    assert bound.tags["attention"] == bound.tags["rotary_cache"] == "recorded reference"
    assert "needs pages of [token, head]" in bound.reasons["attention"]
    assert bound.reasons["gated_activation"] == "silu, gelu and gelu_tanh; by recorded reference: other kinds"
    assert device.why_uncaptured() == "", "nothing of it is read on the host"
    device.close()


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["float32", "bfloat16", "float16"]))
def test_ipex_computes_what_the_references_do(seed: int, dtype: str) -> None:
    library = fake_libraries.ipex()
    others = {spec.name: spec.reference for spec in OPS}
    table = ipex_operators.operators(library, others, HOST)
    for name, operator in table.items():
        call = SPEC[name].generate(np.random.default_rng(seed), HOST, dtype)
        kept = {key: value.clone() for key, value in call.items() if isinstance(value, torch.Tensor)}
        call = {key: value.to(call["x"].dtype) if key == "weight" else value for key, value in call.items()}
        found, wanted = operator(**call), SPEC[name].reference(**call)
        pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
        for one, other in pairs:
            assert one.dtype == other.dtype
            assert nmse(one, other) <= max(SPEC[name].tolerance[dtype], 1e-9)
        assert all(torch.equal(call[key].to(value.dtype), value) for key, value in kept.items() if key != "weight")
    assert len(library.calls) == 3


def test_ipex_leaves_what_does_not_fit_to_the_other(caplog: pytest.LogCaptureFixture) -> None:
    library = fake_libraries.ipex()
    table = ipex_operators.operators(library, {spec.name: spec.reference for spec in OPS}, HOST)
    x, weight = torch.ones(2, 4, dtype=torch.bfloat16), torch.full((4,), 1.5)
    assert torch.equal(table["rms_norm"](x, weight, 1e-6), SPEC["rms_norm"].reference(x, weight, 1e-6))
    total = table["add_rms_norm"](x, x.float(), weight.bfloat16(), 1e-6)[1]
    assert total.dtype == torch.float32
    assert library.calls == []
    assert "rms_norm is not computed by ipex but by reference: activations are bfloat16" in caplog.text
    with pytest.raises(KeyError, match="relu"):
        table["gated_activation"](x, "relu")
    assert "it has no relu" in caplog.text


def test_versions_of_providers_say_how_to_ask_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"flashinfer-python": "0.7.4"}[name])
    device = CUDA.open(tmp_path)[0].open(0, {})
    assert device.provider_versions() == {"FlashInfer": "0.7.4; option operators=flashinfer selects it"}
    device.close()
