"""Compiles one launch for a chip that need not be present, and reads the machine code. Requires triton."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from compile_report.chips import Chip
from compile_report.occupancy import resident_warps
from compile_report.shipped import Recorded

__all__ = ["Code", "compile_for", "specialise"]

_TYPES = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32", torch.int64: "i64",
    torch.int8: "i8", torch.uint8: "u8",
}  # fmt: skip
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True, slots=True)
class Code:
    """The resources that the machine code of one kernel uses."""

    registers: int
    """Vector registers per thread."""
    spills: int
    """Spilled registers: the number of spill instructions, or of registers if the assembler counts those."""
    shared: int
    """Bytes per block."""
    occupancy: int
    """Warps that a multiprocessor keeps at once, of `Chip.unit.most`."""
    matrix: str
    """The matrix instructions in it, sorted; empty: none."""


def compile_for(launch: Recorded, chip: Chip) -> Code:
    """Compile a launch, specialized like the real call.

    Raises triton's CompilationError where a type or size does not exist on the chip.
    """
    signature, constants, attributes = specialise(launch)
    source = ASTSource(launch.kernel, signature, constants, attributes)
    options = {"num_warps": launch.warps, "num_stages": launch.stages, "enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget(chip.backend, chip.arch, chip.lanes), options=options)
    if "cubin" in compiled.asm:
        registers, spills, matrix = _read_cubin(compiled.asm["cubin"])
    else:
        registers, spills, matrix = _read_assembly(compiled.asm["amdgcn"])
    shared, columns = int(compiled.metadata.shared), int(getattr(compiled.metadata, "tmem_size", 0) or 0)
    occupancy = resident_warps(chip.unit, int(compiled.metadata.num_warps), registers, shared, columns)
    return Code(registers, spills, shared, occupancy, matrix)


def specialise(launch: Recorded) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
    """Types, constants and divisibility, by the rules of triton's own dispatch: ints of 1 and None are constants, 16
    divides, but for ints that the kernel says vary."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for index, parameter in enumerate(launch.kernel.params):
        name, value = parameter.name, launch.args[parameter.name]
        fixed = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (fixed and type(value) is int and value == 1):
            signature[name], constants[name] = "constexpr", value
            continue
        signature[name] = _type(value)
        if fixed and _divides(value):
            attributes[(index,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + _TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def _divides(value: Any) -> bool:
    """Whether a tensor is aligned: device memory is, so only the offset of a view counts."""
    if isinstance(value, torch.Tensor):
        return value.storage_offset() * value.element_size() % 16 == 0
    return isinstance(value, int) and value % 16 == 0


def _read_cubin(cubin: bytes) -> tuple[int, int, str]:
    """(registers, spills, matrix instructions) of an NVIDIA binary."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _tool("cuobjdump", "--dump-resource-usage", path)
        code = _tool("nvdisasm", "-c", path)
    registers = max(map(int, re.findall(r"REG:(\d+)", usage)))
    spills = len(re.findall(r"\b(?:STL|LDL)\b", code))
    return registers, spills, _names(r"\b(UTC[HIQO]MMA|[HIQO]G?MMA)\b", code)


def _read_assembly(text: str) -> tuple[int, int, str]:
    """(registers, spills, matrix instructions) of an AMD assembly."""

    def number(name: str) -> int:
        return max(map(int, re.findall(rf"\.{name}:\s+(\d+)", text)), default=0)

    spills = number("vgpr_spill_count")  # scalar ones go to lanes of a vector register, not to memory
    return number("vgpr_count"), spills, _names(r"\b(v_(?:s?mfmac?|wmma)_\w+)", text)


def _names(pattern: str, text: str) -> str:
    return " ".join(sorted(set(re.findall(pattern, text))))


def _tool(name: str, *arguments: Any) -> str:
    command = [str(_TOOLS / name), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
