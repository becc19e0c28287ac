"""Every Triton kernel to SPIR-V for Intel GPUs, by Intel's fork of Triton and without a GPU or its runtime.

Usage: xpu_spirv.py [FILE for the report]. Runs with the fork first on the path. Ends with `N passed, N refused`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from compile_report.chips import Chip
from compile_report.code import specialise
from compile_report.occupancy import Multiprocessor
from compile_report.shipped import Recorded, recorded
from headrace.platforms.xpu.xpu_chips import XpuProperties, triton_chip

DRIVER = {
    "architecture": 0,
    "sub_group_sizes": [16, 32],
    "has_fp64": True,
    "has_subgroup_matrix_multiply_accumulate": True,
    "has_subgroup_2d_block_io": True,
    "has_bfloat16_conversions": True,
}
"""The properties that the driver reports for a Data Center GPU Max."""
_UNKNOWN = Multiprocessor(8, 1)
"""SPIR-V has no registers yet: the driver assigns them, and nothing here reads this."""
MATRIX = re.compile(r"matrix_mad_k\d+\w*")


def chip() -> Chip:
    said = triton_chip(XpuProperties("Data Center GPU Max", (16, 32), 64, shared_memory=131072))
    return Chip("pvc", "xpu", "pvc", said.lanes, said.shared_memory, "", said.tile, said.stages, _UNKNOWN, {})


def compile_one(launch: Recorded, target: GPUTarget) -> tuple[int, int, str]:
    """(bytes of SPIR-V, bytes of local memory, the matrix instruction)."""
    options = {"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": False}
    made = triton.compile(ASTSource(launch.kernel, *specialise(launch)), target=target, options=options)
    assert made.asm["spv"][:4] == b"\x03\x02\x23\x07", "not SPIR-V"
    return len(made.asm["spv"]), int(made.metadata.shared), " ".join(sorted(set(MATRIX.findall(made.asm["llir"]))))


def line(launch: Recorded, target: GPUTarget, shared: int) -> tuple[bool, str]:
    try:
        size, local, matrix = compile_one(launch, target)
    except Exception as error:  # the compiler raises many types of errors
        said = " ".join(str(error).split())[-160:]
        return False, f"{launch.name:40} REFUSED {type(error).__name__}: {said}"
    trouble = f" REFUSED: {local} bytes of local memory, the chip has {shared}" if local > shared else ""
    trouble += " REFUSED: no matrix instruction" if launch.matrix and not matrix else ""
    return not trouble, f"{launch.name:40} {size:7} bytes {local:6} local {matrix}{trouble}"


def ask_no_runtime() -> None:
    """Replace the fork's call of the SYCL runtime for the architecture's name, which only its native code needs."""
    made: Any = backends["intel"].compiler.__init__
    made.__globals__["compile_module_from_src"] = lambda *_: SimpleNamespace(parse_device_arch=lambda number: "")


def main(report: str | None = None) -> None:
    ask_no_runtime()
    device = chip()
    lines = []
    for launch in recorded(device):
        lines.append(line(launch, GPUTarget("xpu", DRIVER, device.lanes), device.shared))
        print(lines[-1][1], flush=True)
    good = sum(sound for sound, _ in lines)
    lines.append((True, f"{good} passed, {len(lines) - good} refused"))
    print(lines[-1][1])
    if report:
        head = f"triton-xpu {triton.__version__}, {device.name}"
        Path(report).write_text("\n".join([head, *(text for _, text in lines)]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
