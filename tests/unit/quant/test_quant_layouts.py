"""AWQ and GPTQ: synthetic layers, packed here bit by bit after the papers, are read back exactly."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headrace.errors import CheckpointError, UnsupportedModel
from headrace.kernels.linear.activation import quantize_activation
from headrace.kernels.weight import Weight
from headrace.quant.awq import AWQ
from headrace.quant.bits import pack_nibbles, split_nibbles, unpack_stream
from headrace.quant.gptq import GPTQ
from headrace.quant.methods import scheme_of

Tensor = torch.Tensor
N, K = 32, 256
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


class Tensors:
    """A reader over a dictionary."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def has(self, name: str) -> bool:
        return name in self.tensors

    def get(self, name: str) -> Tensor:
        return self.tensors[name]

    def error(self, message: str, name: str) -> CheckpointError:
        return CheckpointError(message, "file", name)


def stream(codes: Tensor, bits: int) -> Tensor:
    """int32 [rows, words]: the codes of each row as one little-endian run of bits, by string."""
    words = []
    for row in codes.tolist():
        run = "".join(format(code, f"0{bits}b")[::-1] for code in row)
        run += "0" * (-len(run) % 32)
        pieces = [int(run[at : at + 32][::-1], 2) for at in range(0, len(run), 32)]
        words.append([piece - (1 << 32) if piece >= 1 << 31 else piece for piece in pieces])
    return torch.tensor(words, dtype=torch.int32)


def layer(bits: int, group: int, symmetric: bool, act_order: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Codes [N, K], zeros [N, G], scales [N, G], group of every input, and the matrix they stand for."""
    generator = torch.Generator().manual_seed(bits * 1000 + group + symmetric * 2 + act_order)
    size = K if group == -1 else group
    groups = K // size
    codes = torch.randint(0, 1 << bits, (N, K), generator=generator)
    zeros = torch.randint(0, 1 << bits, (N, groups), generator=generator)
    if symmetric:
        zeros = torch.full((N, groups), 1 << (bits - 1))
    scales = (torch.rand(N, groups, generator=generator) + 0.1).half()
    index = torch.arange(K) // size
    if act_order:
        index = index[torch.randperm(K, generator=generator)]
    matrix = (codes - zeros[:, index]).float() * scales.float()[:, index]
    return codes, zeros, scales, index, matrix


def gptq_tensors(
    bits: int, codes: Tensor, zeros: Tensor, scales: Tensor, index: Tensor, offset: int
) -> dict[str, Tensor]:
    return {
        "m.qweight": stream(codes, bits).T.contiguous(),
        "m.qzeros": stream((zeros.T - offset) % (1 << bits), bits),
        "m.scales": scales.T.contiguous(),
        "m.g_idx": index.int(),
    }


@pytest.mark.parametrize("act_order", [False, True], ids=["", "act-order"])
@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("group", [-1, 32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq_round_trip(bits: int, group: int, symmetric: bool, act_order: bool) -> None:
    codes, zeros, scales, index, matrix = layer(bits, group, symmetric, act_order)
    for layout, offset in (("gptq", 1), ("gptq_v2", 0)):
        reader = Tensors(gptq_tensors(bits, codes, zeros, scales, index, offset))
        scheme = GPTQ({"bits": bits, "group_size": group, "checkpoint_format": layout})
        assert scheme.covers("m", reader)
        weight = scheme.load("m", (N, K), reader)
        torch.testing.assert_close(weight.dequantize(), matrix, rtol=0, atol=0)
        assert weight.scheme == ("int8" if bits == 8 else "int4")
        assert ("group_index" in weight.tensors) == (act_order and group != -1)


def test_gptq_without_group_indices() -> None:
    codes, zeros, scales, index, matrix = layer(4, 64, False, False)
    tensors = gptq_tensors(4, codes, zeros, scales, index, 1)
    del tensors["m.g_idx"]
    torch.testing.assert_close(GPTQ({}).load("m", (N, K), Tensors(tensors)).dequantize(), matrix, rtol=0, atol=0)


@pytest.mark.parametrize("symmetric", [False, True], ids=["asymmetric", "symmetric"])
@pytest.mark.parametrize("group", [-1, 32, 64, 128])
def test_awq_round_trip(group: int, symmetric: bool) -> None:
    codes, zeros, scales, _, matrix = layer(4, group, symmetric, False)

    def interleaved(values: Tensor) -> Tensor:
        return stream(values.view(-1, N // 8, 8)[:, :, list(AWQ_ORDER)].reshape(-1, N), 4)

    tensors = {"m.qweight": interleaved(codes.T), "m.qzeros": interleaved(zeros.T), "m.scales": scales.T.contiguous()}
    weight = AWQ({"bits": 4, "version": "gemm"}).load("m", (N, K), Tensors(tensors))
    torch.testing.assert_close(weight.dequantize(), matrix, rtol=0, atol=0)


@pytest.mark.parametrize("act_order", [False, True])
def test_rows_of_a_container_keep_all_their_tensors(act_order: bool) -> None:
    codes, zeros, scales, index, matrix = layer(4, 32, False, act_order)
    weight = GPTQ({}).load("m", (N, K), Tensors(gptq_tensors(4, codes, zeros, scales, index, 1)))
    rows = torch.tensor([3, 30, 3])
    torch.testing.assert_close(weight.take(rows).dequantize(), matrix[rows], rtol=0, atol=0)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [1, 31, 32, 45])
def test_streams_of_every_width(bits: int, count: int) -> None:
    codes = torch.randint(0, 1 << bits, (3, count), generator=torch.Generator().manual_seed(bits))
    assert torch.equal(unpack_stream(stream(codes, bits), bits, count).long(), codes)


@pytest.mark.parametrize("columns", [1, 2, 7, 64])
def test_nibbles_round_trip(columns: int) -> None:
    codes = torch.randint(0, 16, (3, columns), generator=torch.Generator().manual_seed(columns), dtype=torch.uint8)
    assert torch.equal(split_nibbles(pack_nibbles(codes), columns), codes)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "marlin"),
        ({"quant_method": "awq", "version": "gemv"}, "gemv"),
        ({"quant_method": "awq", "bits": 8}, "8 bits"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:gguf"}, "auto_round:gguf"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:fp8_static"}, "auto_round:fp8_static"),
        ({"quant_method": "auto-round", "extra_config": {"m": {"act_bits": 4}}}, "inputs of 4 bits"),
        ({"quant_method": "fp8", "activation_scheme": "none"}, "activation_scheme 'none'"),
        ({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": [128, 128]}, "static inputs"),
        ({"quant_method": "torchao"}, "torchao"),
        ({"bits": 4}, "None"),
    ],
)
def test_an_unsupported_setting_is_refused_by_name(config: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        scheme_of({"quantization_config": config})


def test_no_configuration_means_plain_floats() -> None:
    assert scheme_of({}) is None
    assert scheme_of({"quantization_config": None}) is None


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("m.qweight", lambda t: t[:-1]),
        ("m.qweight", lambda t: t.long()),
        ("m.scales", lambda t: t[:, :-1]),
        ("m.qzeros", lambda t: t[:-1]),
        ("m.g_idx", lambda t: t + 1),
        ("m.g_idx", lambda t: t[:-1]),
    ],
)
def test_a_misshapen_tensor_is_named(name: str, change: Any) -> None:
    tensors = gptq_tensors(4, *layer(4, 64, False, True)[:4], offset=1)
    tensors[name] = change(tensors[name])
    with pytest.raises(CheckpointError) as caught:
        GPTQ({}).load("m", (N, K), Tensors(tensors))
    assert caught.value.tensor == name


def test_fp8_tiles_and_their_partial_edges() -> None:
    generator = torch.Generator().manual_seed(5)
    codes = torch.randn(200, 300, generator=generator).to(torch.float8_e4m3fn)
    tiles = torch.rand(2, 3, generator=generator)
    scheme = scheme_of({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})
    assert scheme is not None
    weight: Weight = scheme.load("m", (200, 300), Tensors({"m.weight": codes, "m.weight_scale_inv": tiles}))
    expected = codes.float() * tiles.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :300]
    torch.testing.assert_close(weight.dequantize(), expected, rtol=0, atol=0)
    assert weight.activation == "fp8_group128"


@pytest.mark.parametrize(
    "packing", ["auto_round", "auto_round:gptqmodel", "auto_round:auto_gptq", "auto_round:gptq", None]
)
def test_auto_rounds_names_of_gptqs_layout(packing: str | None) -> None:
    """`auto_round` and `gptqmodel` store zero points unmodified, `auto_gptq` stores them minus one."""
    codes, zeros, scales, index, matrix = layer(4, 64, False, False)
    offset = 0 if packing in ("auto_round", "auto_round:gptqmodel") else 1
    tensors = gptq_tensors(4, codes, zeros, scales, index, offset)
    found = scheme_of({"quantization_config": {"quant_method": "auto-round", "bits": 4, "packing_format": packing}})
    assert found is not None
    torch.testing.assert_close(found.load("m", (N, K), Tensors(tensors)).dequantize(), matrix, rtol=0, atol=0)


@pytest.mark.parametrize("packing", ["auto_round:auto_awq", "auto_round:awq"])
def test_auto_rounds_names_of_awqs_layout(packing: str) -> None:
    config = {"quant_method": "auto-round", "bits": 4, "packing_format": packing}
    assert isinstance(scheme_of({"quantization_config": config}), AWQ)


def test_a_scale_for_all_tokens_becomes_one_per_token(caplog: pytest.LogCaptureFixture) -> None:
    """A single token is rounded as the scheme requires, and other tokens in the step change nothing."""
    tensors = {"m.weight": torch.ones(4, 8).to(torch.float8_e4m3fn), "m.weight_scale": torch.tensor(0.5)}
    with caplog.at_level(logging.INFO, "headrace"):
        scheme = scheme_of({"quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}})
    assert "one scale per token" in caplog.text
    assert scheme is not None
    weight = scheme.load("m", (4, 8), Tensors(tensors))
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1)) * torch.tensor([[1.0], [100.0], [0.01]])
    rounded = quantize_activation(x, weight)
    for row, found in zip(x, rounded, strict=True):
        scale = row.abs().max() / 448
        assert torch.equal(found, (row / scale).to(torch.float8_e4m3fn).float() * scale)


def test_fp8_with_one_scale_and_static_inputs() -> None:
    codes = torch.ones(4, 8).to(torch.float8_e4m3fn)
    tensors = {"m.weight": codes, "m.weight_scale": torch.tensor(0.5), "m.input_scale": torch.tensor(2.0)}
    scheme = scheme_of({"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}})
    assert scheme is not None
    weight = scheme.load("m", (4, 8), Tensors(tensors))
    assert weight.activation == "fp8_tensor"
    assert weight.tensors["input_scale"].tolist() == [2.0]
    assert weight.dequantize().unique().tolist() == [0.5]


@pytest.mark.parametrize(("prefix", "scheme"), [("awq", AWQ({"bits": 4})), ("gptq", GPTQ({"bits": 4}))])
def test_a_layer_by_auto_round_is_within_half_a_step_of_its_original(prefix: str, scheme: Any) -> None:
    layer_file = Path(__file__).parents[2] / "data" / "layers" / "auto_round.safetensors"
    tensors = load_file(layer_file)
    base = tensors["base.weight"].float()
    weight = scheme.load(prefix, (base.shape[0], base.shape[1]), Tensors(tensors))
    group = base.shape[1] // weight.tensors["scales"].shape[1]
    steps = (weight.dequantize() - base).abs() / weight.tensors["scales"].repeat_interleave(group, 1)
    assert steps.mean() < 0.3
    # A symmetric range has one step less above zero than below: its largest values may differ by one step.
    assert steps.max() < (0.6 if prefix == "awq" else 1.1)
