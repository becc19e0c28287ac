"""Calls of the native kernels written to a file, with the results that the references give: `replay.cpp` runs it
anywhere.

Usage: native_cases.py FILE [share of the cases, 0 to 1]. Operators are called as ever, with a launcher that computes
nothing and takes down the kernel, its arguments and all memory that they point to. Little-endian, as every processor we
know.
"""

from __future__ import annotations

import copy
import ctypes
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import linear_weights as make
import numpy as np
import torch
from linear_weights import MAKERS

from headrace.kernels import registry
from headrace.kernels.linear.cpu_pack import Compute, PackedWeight
from headrace.kernels.linear.reference import product
from headrace.kernels.moe.generate import draw_routing
from headrace.kernels.ops import Batch, SampleInputs, SampleOutputs
from headrace.platforms.cpu.native_drafting import NativeDrafting
from headrace.platforms.cpu.native_kv import NativeKV
from headrace.platforms.cpu.native_launch import EagerLauncher
from headrace.platforms.cpu.native_linear import NativeLinear
from headrace.platforms.cpu.native_moe import NativeMoE
from headrace.platforms.cpu.native_ops import NativeOps
from headrace.quant.weights import stack

__all__ = ["Case", "cases", "write"]

Tensor = torch.Tensor
CPU = torch.device("cpu")
SPECS = {spec.name: spec for spec in (*registry.OPS, *registry.OPTIONAL)}
MAGIC = b"HRCASES1"
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3, torch.float8_e4m3fn: 4, torch.int32: 5}
EXACT, COARSE, STORED = 0.0, 5e-5, 1e-4
ACTIVATIONS = {
    "int8_token": "int8-g0", "int8_token_asymmetric": "int8-g0", "int8_tensor": "int4-g32", "fp8_token": "fp8-row",
    "fp8_tensor": "fp8-wide-blocks", "fp8_group128": "fp8-wide-blocks", "mxfp4": "mxfp4-container", "nvfp4": "nvfp4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One call of a kernel. `checks`: memory of the call, what it must hold afterwards, and the largest normalised mean
    squared error; 0 stands for the same bits."""

    label: str
    kernel: str
    args: ctypes.Structure
    sizes: tuple[int, ...]
    keep: Sequence[Any]
    checks: tuple[tuple[Tensor, Tensor, float], ...]


class Taker(EagerLauncher):
    """A launcher that takes down the one call of an operator."""

    def __init__(self) -> None:
        self.taken: tuple[str, ctypes.Structure, tuple[int, ...], Sequence[Any]] | None = None

    def call(self, kernel: str, args: ctypes.Structure, keep: Sequence[Any], sizes: Sequence[int] = ()) -> None:
        self.taken = kernel, args, tuple(sizes), keep


@dataclass
class Owner:
    launcher: Taker


def take(label: str, operator: Callable[[Taker], Any], checks: Callable[[Any, Sequence[Any]], Any]) -> Case:
    taker = Taker()
    found = operator(taker)
    assert taker.taken is not None
    kernel, args, sizes, keep = taker.taken
    return Case(label, kernel, args, sizes, keep, tuple(checks(found, keep)))


def operator_case(name: str, rng: np.random.Generator, dtype: str) -> Case:
    """The operator on its own random inputs. Activations are float32; `dtype` is that of the cache, if there is one."""
    mine = SPECS[name].generate(rng, CPU, dtype)
    mine = {k: v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in mine.items()}
    theirs = copy.deepcopy(mine)
    expected = SPECS[name].reference(**theirs)
    store = theirs["kv"].layout.dtype if "kv" in theirs else "float32"
    limit = max(SPECS[name].tolerance["float32"], COARSE if store != "float32" and name == "attention" else 0.0)

    def checks(found: Any, keep: Sequence[Any]) -> Iterator[tuple[Tensor, Tensor, float]]:
        for got, want in zip(_tensors(found), _tensors(expected), strict=True):
            yield got, want, limit if got.is_floating_point() else EXACT
        for native in keep:
            if isinstance(native, NativeKV):
                for got, want in zip(native.stores(), NativeKV.from_torch(theirs["kv"]).stores(), strict=True):
                    yield from ((mine, yours, STORED) for mine, yours in zip(got, want, strict=True))
        if "history" in mine:
            yield mine["history"], theirs["history"], EXACT

    def call(taker: Taker) -> Any:
        ops = NativeOps(taker)
        return {**ops.table(), **NativeDrafting(ops, lambda: None).table()}[name](**mine)

    return take(f"{name} {store}", call, checks)


def sample_case(rng: np.random.Generator) -> Case:
    mine = SPECS["sample"].generate(rng, CPU, "float32")
    theirs = copy.deepcopy(mine)
    expected = SPECS["sample"].reference(**theirs)

    def checks(found: SampleOutputs, keep: Sequence[Any]) -> Iterator[tuple[Tensor, Tensor, float]]:
        yield found.tokens, expected.tokens, EXACT
        yield mine["inputs"].history, theirs["inputs"].history, EXACT
        if mine["num_logprobs"] >= 0:
            yield found.ranks, expected.ranks, EXACT
            yield found.top_ids, expected.top_ids, EXACT
            yield found.logprobs, expected.logprobs, 1e-10
            yield found.top_logprobs, expected.top_logprobs, 1e-10

    return take("sample", lambda taker: NativeOps(taker).sample(**mine), checks)


def linear_case(
    rng: np.random.Generator, name: str, compute: Compute, rows: int, activation: str | None = None
) -> Case:
    weight = MAKERS[name](rng, int(rng.integers(1, 70)), int(rng.integers(1, 300)))
    weight.bias = make.normal(rng, weight.shape[0]) if rng.integers(2) else None
    x, limit = make.normal(rng, rows, weight.shape[1]), 1e-10
    if activation is not None:
        weight.activation, limit = activation, 1e-9
        weight.tensors |= {"input_scale": torch.tensor([0.02]), "input_global_scale": torch.tensor([500.0])}
        expected = product(x, weight).float()
    else:
        expected = (x.double() @ weight.dequantize().double().T).float()
        expected = expected if weight.bias is None else expected + weight.bias
        plain = weight.scheme in ("float32", "bfloat16", "float16", "fp8_e4m3")
        if compute == "int8" and not plain:
            limit = 2e-3
        elif compute != "float32" and weight.scheme in ("bfloat16", "float32", "fp8_e4m3"):
            limit = 1e-4
    label = f"linear {name} {compute} {activation or ''} M={rows}"
    return take(
        label,
        lambda taker: NativeLinear(Owner(taker), compute).linear(x, weight),
        lambda found, keep: [(found, expected, limit)],
    )


def gated_linear_case(rng: np.random.Generator, name: str, compute: Compute, rows: int) -> Case:
    half, columns = int(rng.integers(1, 70)), int(rng.integers(1, 300))
    weight = stack([MAKERS[name](rng, half, columns) for _ in range(2)], "gate and up")
    x, kind = make.normal(rng, rows, weight.shape[1]), str(rng.choice(["silu", "gelu", "gelu_tanh"]))
    both = (x.double() @ weight.dequantize().double().T).float()
    expected = SPECS["gated_activation"].reference(both, kind)
    return take(
        f"gated_linear {name} {compute} M={rows}",
        lambda taker: NativeLinear(Owner(taker), compute).gated_linear(x, weight, kind),
        lambda found, keep: [(found, expected, 1e-9 if compute == "float32" else 5e-3)],
    )


def moe_case(rng: np.random.Generator, name: str | None = None) -> Case:
    """On the operator's own random inputs, or with experts in a stored form and integer arithmetic."""
    mine, compute, limit = SPECS["moe"].generate(rng, CPU, "float32"), "float32", 1e-9
    if name is not None:
        experts, routing = draw_routing(rng)
        width, columns, tokens = (
            64 * int(rng.integers(1, 4)),
            64 * int(rng.integers(1, 4)),
            int(rng.choice((1, 7, 90))),
        )
        shapes = [(2 * experts, width, columns), (experts, columns, width)]
        halves = [stack([MAKERS[name](rng, n, k) for _ in range(count)], "experts") for count, n, k in shapes]
        mine |= {"x": make.normal(rng, tokens, columns), "router": make.normal(rng, tokens, experts), "bias": None}
        mine |= {"gate_up": halves[0], "down": halves[1], "routing": routing}
        compute, limit = "int8", 1e-2
    expected = SPECS["moe"].reference(**copy.deepcopy(mine))

    def moe(taker: Taker) -> Tensor:
        owner = Owner(taker)
        return NativeMoE(owner, NativeLinear(owner, compute)).moe(**mine)

    return take(f"moe {name or 'float32'}", moe, lambda found, keep: [(found, expected, limit)])


def head_cases(rng: np.random.Generator, name: str) -> Iterator[Case]:
    """The table read by rows, exactly, and multiplied as a head."""
    weight, ids = MAKERS[name](rng, 53, 200), torch.from_numpy(rng.integers(0, 53, 9, dtype=np.int32))
    rows = weight.dequantize()[ids.long()] * 1.5
    for packed in (False, True):
        matrices = NativeLinear(Owner(Taker()), "float32")
        if packed:
            matrices.pack(weight)

        def embedding(taker: Taker, matrices: NativeLinear = matrices) -> Tensor:
            matrices._owner.launcher = taker
            return matrices.embedding(ids, weight, 1.5)

        yield take(f"embedding {name}", embedding, lambda found, keep: [(found, rows, EXACT)])
    none, picked = torch.zeros(0, dtype=torch.int32), torch.tensor([4, 0, 4], dtype=torch.int32)
    batch = Batch(torch.tensor([5, 1, 3], dtype=torch.int32), *[none] * 6, none.view(0, 0), none, picked)
    x = make.normal(rng, 5, weight.shape[1])
    scores = 2.0 * torch.tanh((x.double()[picked.long()] @ weight.dequantize().double().T) / 2.0).float()
    yield take(
        f"logits {name}",
        lambda taker: NativeLinear(Owner(taker), "float32").logits(x, batch, weight, 2.0),
        lambda found, keep: [(found, scores, 1e-10)],
    )


def cases(share: float = 1.0) -> Iterator[Case]:
    """All operators, formats and arithmetics, each with its own inputs; with a share, evenly chosen ones."""
    rng = np.random.default_rng(1)
    at = 0.0
    for make_case in _makers(rng):
        at += share
        if at >= 1:
            at -= 1
            yield from make_case()


def _makers(rng: np.random.Generator) -> Iterator[Callable[[], Iterator[Case]]]:
    for name in ("resolve_tokens", "rms_norm", "add_rms_norm", "gated_activation"):
        for _ in range(12):
            yield lambda name=name: iter([operator_case(name, rng, "float32")])
    for name in ("rotary_cache", "attention"):
        for dtype in ("float32", "bfloat16", "float16"):
            for _ in range(16):
                yield lambda name=name, dtype=dtype: iter([operator_case(name, rng, dtype)])
    for _ in range(40):
        yield lambda: iter([sample_case(rng)])
    for name in MAKERS:
        for compute in ("float32", "bfloat16", "int8"):
            for rows in (1, 5, 40):
                yield lambda name=name, compute=compute, rows=rows: iter([linear_case(rng, name, compute, rows)])
        yield lambda name=name: head_cases(rng, name)
    for rows in (0, 600):  # none, and more than are prepared at a time
        yield lambda rows=rows: iter([linear_case(rng, "q4_1", "int8", rows)])
    yield from _mlp_makers(rng)
    for activation, name in ACTIVATIONS.items():
        for rows in (1, 13):
            yield lambda a=activation, n=name, rows=rows: iter([linear_case(rng, n, "int8", rows, a)])
    yield from _draft_makers(rng)


def _draft_makers(rng: np.random.Generator) -> Iterator[Callable[[], Iterator[Case]]]:
    for name in ("ngram", "place", "accept", "read_drafts", "shift"):
        for _ in range(12):
            yield lambda name=name: iter([operator_case(name, rng, "float32")])


def _mlp_makers(rng: np.random.Generator) -> Iterator[Callable[[], Iterator[Case]]]:
    for name in ("q4_1", "bfloat16", "int8-g0", "fp8-row"):
        for compute in ("float32", "int8"):
            for rows in (0, 1, 40, 200):
                yield lambda n=name, c=compute, rows=rows: iter([gated_linear_case(rng, n, c, rows)])
    for _ in range(16):
        yield lambda: iter([moe_case(rng)])
    for name in ("q4_1", "bfloat16", "int8-g0", "mxfp4"):
        for _ in range(4):
            yield lambda name=name: iter([moe_case(rng, name)])


def _tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)


def _pieces(value: Any) -> Iterator[tuple[int, int, Any]]:
    """(address, bytes, owner) of all memory that a kept object may be pointed into."""
    if isinstance(value, Tensor):
        assert value.is_contiguous()
        if value.numel():
            yield value.data_ptr(), value.numel() * value.element_size(), value
    elif isinstance(value, ctypes.Structure | ctypes.Array):
        yield ctypes.addressof(value), ctypes.sizeof(value), value
    elif isinstance(value, NativeKV):
        yield min(store.data_ptr() for store in value.stores()), value.num_blocks * value.stride, value
    elif isinstance(value, PackedWeight):
        assert value.address
        inner = [*value._alive, value.bias, *(x for part in value.parts for x in (part.panels, part.order))]
        for piece in inner:
            yield from _pieces(piece)
    elif isinstance(value, Batch | SampleInputs):
        for field in fields(value):
            yield from _pieces(getattr(value, field.name))


def _pointers(value: Any) -> Iterator[tuple[int, int]]:
    """(address of a pointer, its value) of each that isn't null."""
    if isinstance(value, ctypes.Array):
        for item in value:
            if isinstance(item, ctypes.Structure):
                yield from _pointers(item)
    elif isinstance(value, ctypes.Structure):
        for name, kind, *_ in value._fields_:
            if kind is ctypes.c_void_p and getattr(value, name):
                yield ctypes.addressof(value) + getattr(type(value), name).offset, getattr(value, name)
            elif issubclass(kind, ctypes.Structure):
                yield from _pointers(getattr(value, name))


def _merged(pieces: Sequence[tuple[int, int, Any]]) -> list[tuple[int, int]]:
    """Regions without overlap, ascending."""
    out: list[tuple[int, int]] = []
    for start, size, _ in sorted(pieces, key=lambda piece: piece[:2]):
        if out and start < sum(out[-1]):
            out[-1] = out[-1][0], max(sum(out[-1]), start + size) - out[-1][0]
        else:
            out.append((start, size))
    return out


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _put(to: BinaryIO, data: bytes) -> None:
    to.write(struct.pack("<q", len(data)) + data)


def write_case(to: BinaryIO, case: Case) -> None:
    pieces = [piece for value in (case.args, *case.keep) for piece in _pieces(value)]
    regions = _merged(pieces)

    def place(address: int) -> tuple[int, int]:
        index = next(i for i, (start, size) in enumerate(regions) if start <= address < start + size)
        return index, address - regions[index][0]

    _put(to, case.label.encode())
    _put(to, case.kernel.encode())
    to.write(struct.pack("<8i", *case.sizes, *[0] * (8 - len(case.sizes))))
    to.write(struct.pack("<3q", len(regions), place(ctypes.addressof(case.args))[0], ctypes.sizeof(case.args)))
    for start, size in regions:
        to.write(struct.pack("<q", start % 64))
        _put(to, ctypes.string_at(start, size))
    links = [(*place(at), *place(target)) for piece in pieces for at, target in _pointers(piece[2])]
    to.write(struct.pack("<q", len(links)) + b"".join(struct.pack("<4q", *link) for link in links))
    checks = [check for check in case.checks if check[0].numel()]
    to.write(struct.pack("<q", len(checks)))
    for found, expected, limit in checks:
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), case.label
        to.write(struct.pack("<3qd", DTYPES[found.dtype], *place(found.data_ptr()), limit))
        _put(to, _bytes(expected))


def write(path: Path, share: float = 1.0) -> int:
    """The number of cases written."""
    count = 0
    with path.open("wb") as to:
        to.write(MAGIC)
        for case in cases(share):
            write_case(to, case)
            count += 1
    return count


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), *map(float, sys.argv[2:])), "cases")
