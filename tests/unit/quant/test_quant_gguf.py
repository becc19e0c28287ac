"""Every GGUF block type against the format's own Python package, on blocks of random bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from headrace.kernels.weight import Weight
from headrace.quant.gguf import FLOAT_TYPES, GGUF_TYPES, gguf_weight
from headrace.quant.weights import dense, place, stack, take_rows


def random_weight(kind: int, rows: int = 6, blocks: int = 3) -> tuple[Weight, np.ndarray]:
    """A weight of random bytes, and the values that the package computes from them."""
    block = GGUF_TYPES[kind]
    raw = np.random.default_rng(kind).integers(0, 256, (rows, blocks * block.bytes), dtype=np.uint8)
    weight = gguf_weight(block, torch.from_numpy(raw), blocks * block.elements)
    with np.errstate(all="ignore"):
        return weight, gguf.dequantize(raw, gguf.GGMLQuantizationType(kind))


@pytest.mark.parametrize("kind", sorted(GGUF_TYPES), ids=lambda kind: GGUF_TYPES[kind].name)
def test_blocks_stand_for_the_packages_numbers_exactly(kind: int) -> None:
    weight, expected = random_weight(kind)
    np.testing.assert_array_equal(weight.dequantize().numpy(), expected)


@pytest.mark.parametrize("kind", sorted(GGUF_TYPES), ids=lambda kind: GGUF_TYPES[kind].name)
def test_sizes_and_names_are_the_packages(kind: int) -> None:
    known = gguf.GGMLQuantizationType(kind)
    block = GGUF_TYPES[kind]
    assert (block.elements, block.bytes) == gguf.GGML_QUANT_SIZES[known]
    assert block.name == known.name.lower()


def test_float_types_are_the_packages() -> None:
    names = {gguf.GGMLQuantizationType(kind).name for kind in FLOAT_TYPES}
    assert names == {"F32", "F16", "BF16"}


@pytest.mark.parametrize("kind", [3, 8, 12, 14], ids=lambda kind: GGUF_TYPES[kind].name)
def test_rows_are_taken_without_dequantizing(kind: int) -> None:
    weight, _ = random_weight(kind)
    weight.bias = torch.arange(6.0)
    index = torch.tensor([4, 0, 0, 5])
    taken = take_rows(weight, index)
    assert taken.scheme == weight.scheme
    assert taken.shape == (4, weight.shape[1])
    torch.testing.assert_close(taken.dequantize(), weight.dequantize()[index], rtol=0, atol=0, equal_nan=True)
    assert taken.bias is not None
    assert taken.bias.tolist() == [4, 0, 0, 5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dense_weights_keep_their_type(dtype: torch.dtype) -> None:
    matrix = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight = dense(matrix)
    assert weight.scheme == str(dtype).removeprefix("torch.")
    assert weight.tensors["weight"].data_ptr() == matrix.data_ptr()
    torch.testing.assert_close(weight.dequantize(), matrix.float(), rtol=0, atol=0)


def test_a_stack_mixes_schemes_and_collects_biases() -> None:
    first, _ = random_weight(8, rows=2, blocks=1)
    second = dense(torch.ones(3, 32))
    second.bias = torch.full((3,), 7.0)
    both = stack([first, second])
    assert both.shape == (5, 32)
    assert both.bias is not None
    assert both.bias.tolist() == [0, 0, 7, 7, 7]
    assert all(part.bias is None for part in both.parts)
    torch.testing.assert_close(both.dequantize(), torch.cat([first.dequantize(), torch.ones(3, 32)]), equal_nan=True)
    assert both.nbytes == 2 * 34 + 3 * 32 * 4


def test_a_stack_without_biases_has_none() -> None:
    assert stack([dense(torch.ones(1, 2)), dense(torch.ones(2, 2))]).bias is None


def test_place_moves_every_tensor_once() -> None:
    weight = stack([dense(torch.ones(1, 2)), dense(torch.ones(2, 2))])
    weight.bias = torch.zeros(3)
    moved: list[tuple[int, ...]] = []

    def move(tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tuple(tensor.shape))
        return tensor * 2

    placed = place(weight, move)
    assert sorted(moved) == [(1, 2), (2, 2), (3,)]
    assert placed.dequantize().sum() == 12
    assert weight.dequantize().sum() == 6
