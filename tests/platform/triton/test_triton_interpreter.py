"""The repaired interpreter against torch's own rounding, and against what it did before."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from triton_support import rng

Tensor = torch.Tensor
FP8 = {"float8e4nv": torch.float8_e4m3fn, "float8e4b8": torch.float8_e4m3fnuz, "float8e5": torch.float8_e5m2}


def _builder() -> tuple[object, object, object]:
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    return InterpreterBuilder(), TensorHandle, tl


def _handle(values: Tensor) -> object:
    _, handle, tl = _builder()
    if values.dtype == torch.bfloat16:
        return handle(values.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)
    return handle(values.numpy(), tl.float32)


def _bf16(handle: object) -> Tensor:
    return torch.from_numpy(handle.data.view(np.int16).copy()).view(torch.bfloat16)


def _draw(seed: int, count: int = 2000) -> Tensor:
    magnitude = torch.from_numpy(rng(seed).uniform(-12, 12, count)).exp2()
    return (torch.from_numpy(rng(seed + 1).standard_normal(count)) * magnitude).float()


def test_float32_to_bfloat16_rounds_to_nearest_even() -> None:
    builder, _, tl = _builder()
    x = torch.cat([_draw(0), torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, torch.inf, 0.0])])
    assert torch.equal(_bf16(builder.cast_impl(_handle(x), tl.bfloat16)), x.bfloat16())


@pytest.mark.parametrize("name", FP8)
def test_float32_to_8_bits_rounds_as_torch_does(name: str) -> None:
    builder, _, tl = _builder()
    x = torch.cat([_draw(0) / 16, torch.tensor([2.0**-10, 3 * 2.0**-10, 0.0, 100.0])])
    got = builder.create_fp_to_fp(_handle(x), getattr(tl, name), None)
    assert torch.equal(torch.from_numpy(got.data.copy()), x.to(FP8[name]).view(torch.uint8))
    back = builder.create_fp_to_fp(got, tl.float32, None)
    np.testing.assert_array_equal(back.data, x.to(FP8[name]).float().numpy())


def test_bfloat16_arithmetic_is_that_of_floats() -> None:
    builder, _, _ = _builder()
    a, b = _draw(0).bfloat16(), _draw(2).bfloat16()
    for operation, want in (
        ("create_fadd", a + b),
        ("create_fmul", a * b),
        ("create_fsub", a - b),
        ("create_fdiv", a / b),
    ):
        assert torch.equal(_bf16(getattr(builder, operation)(_handle(a), _handle(b))), want), operation
    assert torch.equal(_bf16(builder.create_fneg(_handle(a))), -a)
    assert torch.equal(_bf16(builder.create_fabs(_handle(a))), a.abs())


def test_bfloat16_comparisons_give_truth_values() -> None:
    builder, _, _ = _builder()
    a, b = _draw(0).bfloat16(), _draw(2).bfloat16()
    np.testing.assert_array_equal(builder.create_fcmpOLT(_handle(a), _handle(b)).data, (a < b).numpy())


def test_bfloat16_products_are_summed_in_float32() -> None:
    builder, handle, tl = _builder()
    a, b = _draw(0, 256).view(16, 16).bfloat16(), _draw(2, 256).view(16, 16).bfloat16()
    zero = handle(np.zeros((16, 16), np.float32), tl.float32)
    got = builder.create_dot(_handle(a), _handle(b), zero, None, 0)
    np.testing.assert_allclose(got.data, (a.float() @ b.float()).numpy(), rtol=1e-5)


def test_integers_to_bfloat16() -> None:
    builder, handle, tl = _builder()
    values = np.arange(-300, 300, dtype=np.int32)
    got = builder.create_si_to_fp(handle(values, tl.int32), tl.bfloat16)
    assert torch.equal(_bf16(got), torch.from_numpy(values).bfloat16())
