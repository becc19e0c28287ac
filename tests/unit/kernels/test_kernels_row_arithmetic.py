"""The building blocks that fix the order of arithmetic."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.kernels.row_arithmetic import PIECE, ROWS, elementwise, matmul_rows, pad, tree_sum


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), max_size=70))
def test_tree_sum_adds_halves(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    terms = values + [0.0] * ((1 << max(len(values) - 1, 0).bit_length()) - len(values))
    terms_f32 = torch.tensor(terms, dtype=torch.float32)
    while len(terms_f32) > 1:
        half = len(terms_f32) // 2
        terms_f32 = torch.stack([terms_f32[i] + terms_f32[i + half] for i in range(half)])
    assert tree_sum(x) == (terms_f32[0] if len(terms_f32) else 0)


def test_elementwise_sees_pieces_of_one_size() -> None:
    sizes = []

    def double(piece: torch.Tensor) -> torch.Tensor:
        sizes.append(piece.shape)
        return piece * 2

    x = torch.randn(3, 1500, generator=torch.Generator().manual_seed(0))
    assert torch.equal(elementwise(double, x), 2 * x)
    assert sizes == [(PIECE,)] * 3
    assert elementwise(double, x[:0]).shape == (0, 1500)


def test_matmul_rows_pads_rows_and_columns() -> None:
    x, matrix = torch.ones(17, 5), torch.ones(3, 5)
    out = matmul_rows(x, matrix)
    assert out.shape == (32, ROWS)
    assert torch.equal(out[:17, :3], torch.full((17, 3), 5.0))
    assert not out[17:].any()


def test_pad_leaves_a_multiple_alone() -> None:
    x = torch.ones(4, 6)
    assert pad(x, 0, 4) is x
    assert pad(x, 1, 4).shape == (4, 8)
