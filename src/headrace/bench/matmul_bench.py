"""Measures the CPU's matrix products against the machine's limits: bytes and operations per second, by format and rows.

One row reads every weight once, so memory bandwidth is its limit; the limit of many rows is the arithmetic rate of the
type used.
"""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from headrace.bench.bench_report import ReportTable
from headrace.bench.machine_limits import COLD, MachineLimits, fastest
from headrace.errors import ConfigError
from headrace.kernels.linear.cpu_pack import Compute, PackedWeight, pack
from headrace.kernels.weight import Weight
from headrace.platforms.cpu.native_args import FIXED, Dim
from headrace.platforms.cpu.native_linear import LinearArgs
from headrace.platforms.cpu.native_team import Team
from headrace.platforms.cpu.weight_arena import WeightArena
from headrace.quant.containers import int8_weight, int_weight
from headrace.quant.gguf import GGUF_TYPES, gguf_weight
from headrace.quant.weights import dense

__all__ = ["FORMATS", "MatmulMeasurement", "chosen", "configure", "measure", "table"]

Tensor = torch.Tensor
_COPIES = 512
"""Copies of a weight, at most; smaller weights stay in a cache, as they do in a model."""


@dataclass(frozen=True, slots=True)
class MatmulMeasurement:
    """The result for one format and number of rows. `share` is of the limit that binds: the larger of both shares."""

    format: str
    shape: tuple[int, int]
    rows: int
    seconds: float
    bytes_per_second: float
    operations_per_second: float
    share: float


def _gguf(name: str) -> Callable[[int, int], Weight]:
    kind = next(kind for kind in GGUF_TYPES.values() if kind.name == name)

    def maker(rows: int, columns: int) -> Weight:
        columns = columns // kind.elements * kind.elements
        # Bytes below 48 are finite float16 values at any place, so every block has finite scales.
        return gguf_weight(kind, torch.randint(0, 48, (rows, columns // kind.elements * kind.bytes)).byte(), columns)

    return maker


def _int4(rows: int, columns: int) -> Weight:
    codes = torch.randint(0, 16, (rows, columns)).byte()
    zeros = torch.randint(0, 16, (rows, columns // 32)).byte()
    return int_weight(codes, 4, torch.full((rows, columns // 32), 0.01), zeros, None, "")


def _int8(rows: int, columns: int) -> Weight:
    codes = torch.randint(-127, 128, (rows, columns)).to(torch.int8)
    weight = int8_weight(codes, torch.full((rows, 1), 0.01), None, None, "")
    weight.activation = "int8_token"
    return weight


FORMATS: dict[str, tuple[str, Callable[[int, int], Weight]]] = {
    "float32": ("float32", lambda rows, columns: dense(torch.randn(rows, columns))),
    "float16": ("float32", lambda rows, columns: dense(torch.randn(rows, columns).half())),
    "bfloat16": ("bfloat16", lambda rows, columns: dense(torch.randn(rows, columns).bfloat16())),
    "int8 per channel": ("int8", _int8),
    "int4 groups of 32, zeros": ("int8", _int4),
    **{kind.name: ("int8", _gguf(kind.name)) for kind in GGUF_TYPES.values()},
}
"""By name: the type of the arithmetic, and a function that makes a random weight."""


def measure(
    team: Team, name: str, rows: int, shape: tuple[int, int], limits: MachineLimits, cold: int = COLD
) -> MatmulMeasurement:
    """The mean time of one product over so many copies of the weight that no cache holds them; the best of several
    runs."""
    arithmetic, make = FORMATS[name]
    weight = make(*shape)
    compute: Compute = "float32" if arithmetic == "float32" else "int8"
    first = pack(weight, compute)
    copies = min(max(1, cold // first.nbytes), _COPIES) if rows <= 32 else 1
    arena = WeightArena()
    packed = [pack(weight, compute, arena.take) for _ in range(copies)]
    seconds = _run(team, packed, rows) / copies
    operations = 2.0 * rows * weight.shape[0] * weight.shape[1] / seconds
    read = first.nbytes / seconds
    share = max(read / limits.read if copies > 1 else 0.0, operations / limits.arithmetic(arithmetic))
    return MatmulMeasurement(name, weight.shape, rows, seconds, read, operations, share)


def _run(team: Team, packed: Sequence[PackedWeight], rows: int) -> float:
    """Seconds of all products, one after the other, on one tape."""
    outputs, columns = packed[0].shape
    x, y = torch.randn(rows, columns), torch.zeros(rows, outputs)
    functions = team.library.functions
    tape, kernel = functions.hr_tape_new(), team.library.kernel("linear")
    for weight in packed:
        args = LinearArgs(x.data_ptr(), y.data_ptr(), weight.address, Dim(FIXED, rows), columns, outputs)
        functions.hr_tape_add(tape, kernel, ctypes.byref(args), ctypes.sizeof(args))
    sizes = (ctypes.c_int32 * 8)()
    seconds = fastest(lambda: team.wait(team.run_tape(tape, sizes, None, 0, None)))
    functions.hr_tape_free(tape)
    return seconds


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--formats", default="bfloat16,q4_0,q4_1,q8_0,q6_k", help=f"of {', '.join(FORMATS)}; or all")
    parser.add_argument("--rows", default="1,4,16,512", help="of the inputs")
    parser.add_argument("--shape", default="3072x1536", help="of the weight: outputs x inputs")
    parser.add_argument("--threads", type=int, metavar="N", help="of the kernels (default: one per core)")
    parser.add_argument("--isa", help="instruction set (default: the best)")


def chosen(args: argparse.Namespace) -> tuple[list[str], tuple[int, int]]:
    """Formats and shape. Raises ConfigError."""
    names = list(FORMATS) if args.formats == "all" else args.formats.split(",")
    for name in names:
        if name not in FORMATS:
            raise ConfigError(f"--formats: {name!r} is unknown: choose from {', '.join(FORMATS)}")
    outputs, _, inputs = args.shape.partition("x")
    return names, (int(outputs), int(inputs))


def table(limits: MachineLimits, found: Sequence[MatmulMeasurement]) -> ReportTable:
    """The results as a table, with the limits in its title."""
    read, *rates = (value / 1e9 for value in (limits.read, limits.float32, limits.bfloat16, limits.int8))
    title = "read {:.1f} GB/s; float32 {:.0f}, bfloat16 {:.0f}, int8 {:.0f} Gop/s in registers".format(read, *rates)
    rows = [
        (
            one.format, "x".join(map(str, one.shape)), str(one.rows), f"{one.seconds * 1e6:.1f}",
            f"{one.bytes_per_second / 1e9:.1f}", f"{one.operations_per_second / 1e9:.0f}", f"{one.share:.0%}",
        )
        for one in found
    ]  # fmt: skip
    return ReportTable(title, ("format", "shape", "rows", "µs", "GB/s", "Gop/s", "of the limit"), rows)
