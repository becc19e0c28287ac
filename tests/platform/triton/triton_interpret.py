"""Kernels as numpy programs: Triton's interpreter, with the two number formats put right that it computes wrongly.

The interpreter keeps bfloat16 as uint16 and adds those as integers, and truncates where hardware rounds to nearest
even; its E4M3 encoding rounds wrongly. `repair` widens both to float32 for every operation and lets torch round the
result.

The interpreter also makes triton's language over again for each call of a device function, which took a third of the
time of a kernel, and a table of numpy's types for each operation. `patch_once` does the one once per launch, and the
other once per type.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

__all__ = ["interpreted", "patch_once", "repair"]


def interpreted() -> Any:
    """The triton module, imported while TRITON_INTERPRET is set, and repaired.

    One imported before (torch does) is left to its users.
    """
    if not getattr(sys.modules.get("triton"), "headrace_interpreted", False):
        for name in [n for n in sys.modules if n.split(".")[0] == "triton" and not n.startswith("triton._C")]:
            del sys.modules[name]
        for name in [
            n for n in sys.modules if n.startswith("headrace.kernels.") and n.endswith((".triton", ".device"))
        ]:
            del sys.modules[name]
        import triton
        import triton.runtime.interpreter

        repair(triton)
        patch_once(triton)
        triton.headrace_interpreted = True
    return sys.modules["triton"]


def repair(triton: Any) -> None:
    """Patch the InterpreterBuilder of this triton."""
    tl, interpreter = triton.language, triton.runtime.interpreter
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    narrow = {
        tl.bfloat16: torch.bfloat16, tl.float8e4nv: torch.float8_e4m3fn, tl.float8e4b8: torch.float8_e4m3fnuz,
        tl.float8e5: torch.float8_e5m2,
    }  # fmt: skip

    def widen(x: Any) -> Any:
        if not isinstance(x, handle) or x.dtype.scalar not in narrow:
            return x
        bits = torch.from_numpy(np.array(x.data, order="C"))
        signed = bits.view(torch.int16) if bits.dtype == torch.uint16 else bits
        return handle(signed.view(narrow[x.dtype.scalar]).float().numpy(), tl.float32)

    def shrink(x: Any, dtype: Any) -> Any:
        values = torch.from_numpy(np.array(x.data, dtype=np.float32, order="C")).to(narrow[dtype])
        size = np.uint16 if dtype == tl.bfloat16 else np.uint8
        return handle(values.view(torch.int16 if size is np.uint16 else torch.uint8).numpy().view(size), dtype)

    def cast(original: Callable[..., Any]) -> Callable[..., Any]:
        def convert(self: Any, src: Any, dst: Any, *rest: Any) -> Any:
            if src.dtype.scalar not in narrow and dst.scalar not in narrow:
                return builder_cast(self, src, dst)
            wide = builder_cast(self, widen(src), tl.float32)
            return shrink(wide, dst.scalar) if dst.scalar in narrow else builder_cast(self, wide, dst)

        return convert

    def compute(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, *args: Any) -> Any:
            narrowed = [a.dtype.scalar for a in args if isinstance(a, handle) and a.dtype.scalar in narrow]
            if not narrowed:
                return original(self, *args)
            out = original(self, *map(widen, args))
            return (
                shrink(out, narrowed[0]) if out.data.dtype == np.float32 and original.__name__ != "create_dot" else out
            )

        return run

    builder_cast = builder.cast_impl
    for name in ("cast_impl", "create_fp_to_fp"):
        setattr(builder, name, cast(getattr(builder, name)))
    for name in (
        "binary_op",
        "unary_op",
        "ternary_op",
        "create_fabs",
        "create_fma",
        "create_rsqrt",
        "create_clampf",
        "create_dot",
    ):
        setattr(builder, name, compute(getattr(builder, name)))


def patch_once(triton: Any) -> None:
    """Let device functions run in the language that the launch of their kernel, or the first of them, has patched."""
    interpreter, tl = triton.runtime.interpreter, triton.language
    patch, scope_type = interpreter._patch_lang, interpreter._LangPatchScope
    languages: dict[Any, frozenset[int]] = {}
    patched: set[int] = set()

    class LaunchScope(scope_type):  # type: ignore[misc, valid-type]
        def restore(self) -> None:
            patched.clear()
            super().restore()

    def patch_lang(fn: Any) -> Any:
        if fn not in languages:
            seen = (id(value) for value in fn.__globals__.values() if value is tl or value is tl.core)
            languages[fn] = frozenset(seen)
        # A launch's scope is the outermost, and the only one that is ever restored.
        scope = scope_type() if patched else LaunchScope()
        if not languages[fn] or languages[fn] - patched:
            scope._changes = patch(fn)._changes
            patched.update(languages[fn])
        return scope

    interpreter._patch_lang = patch_lang
    of_type = interpreter._get_np_dtype
    of_scalar = cache(of_type)  # Types of pointers and of blocks cannot be hashed.
    interpreter._get_np_dtype = lambda dtype: (of_scalar if type(dtype) is tl.dtype else of_type)(dtype)
