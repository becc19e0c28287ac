"""What every Triton kernel takes on every chip: compiled without the chip, read from its machine code, held to a
baseline.

    PYTHONPATH=tools python -m compile_report.triton_report [--chips sm_90,gfx942] [--core]
        [--baseline FILE] [--write FILE] [--known FILE]

Ends with `N passed, M failed`. Always held: no spills, shared memory within the chip's limit, the expected matrix
instruction. With a baseline made by the same triton also: not more registers or fewer warps at once than there, no
matrix instruction lost, and, without --core, no kernel gone. With --known, what that file knows of the very same
source, launch, chip and triton is taken from there, the rest is compiled and added to it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compile_report.chips import CHIPS, Chip
from compile_report.known import Known

__all__ = ["faults_of", "gone", "main", "measure", "render", "write"]

Row = dict[str, Any]
"""registers, spills, shared, occupancy, matrix (as `code.Code`) and `wants`, the operands whose instruction is
expected; or error."""
SLACK = 8
"""Registers a kernel may grow by before it counts as a regression: the allocator moves that much by itself."""


def measure(
    chip: Chip,
    core_only: bool = False,
    told: Callable[[str, Row], None] = lambda name, row: None,
    known: Known | None = None,
) -> dict[str, Row]:
    """Rows by kernel.

    Imports triton, not for interpretation; a kernel that does not compile is a row with its error.
    """
    from compile_report.code import compile_for
    from compile_report.shipped import recorded

    rows: dict[str, Row] = {}
    for launch in recorded(chip, core_only):
        assert launch.name not in rows, launch.name
        row = None if known is None else known.find(chip, launch)
        if row is None:
            try:
                row = {**asdict(compile_for(launch, chip)), "wants": launch.matrix or ""}
            except Exception as error:  # the compiler raises many types of errors
                row = {"error": f"{type(error).__name__}: {str(error)[-300:]}"}
            if known is not None and "error" not in row:
                known.add(chip, launch, row)
        rows[launch.name] = row
        told(launch.name, row)
    return rows


def faults_of(chip: Chip, row: Row, before: Row | None) -> list[str]:
    """The faults of one kernel; `before` is its row in the baseline, None if there is none."""
    if "error" in row:
        return [row["error"]]
    found = []
    if row["spills"]:
        found.append(f"{row['spills']} spills")
    if row["shared"] > chip.shared:
        found.append(f"{row['shared']} bytes of shared memory, the chip has {chip.shared}")
    if row["wants"] and not re.search(chip.matrix[row["wants"]], row["matrix"]):
        found.append(f"no {chip.matrix[row['wants']]}, only {row['matrix'] or 'no matrix instruction'}")
    if before and "error" not in before:
        if row["registers"] > before["registers"] + SLACK:
            found.append(f"{row['registers']} registers, {before['registers']} before")
        if row["occupancy"] < before["occupancy"]:
            found.append(f"{row['occupancy']} warps at once, {before['occupancy']} before")
        if before["matrix"] and not row["matrix"]:
            found.append(f"no matrix instruction, {before['matrix']} before")
    return found


def gone(known: Iterable[str], found: Mapping[str, Row], core_only: bool) -> list[str]:
    """Kernels of the baseline that nothing compiles any more.

    A quick report, which leaves most of them out, misses none.
    """
    return [] if core_only else [kernel for kernel in known if kernel not in found]


def render(chip: Chip, name: str, row: Row, faults: Iterable[str]) -> str:
    """One line of the table."""
    trouble = "; ".join(faults)
    if "error" in row:
        return f"{chip.name:8} {name:46} FAILED: {trouble}"
    share, warps = f"{row['shared']:6} of {chip.shared} bytes", f"{row['occupancy']:2} of {chip.unit.most} warps"
    line = (
        f"{chip.name:8} {name:46} {row['registers']:3} regs {row['spills']:3} spills {share:22} {warps} {row['matrix']}"
    )
    return f"{line} FAILED: {trouble}" if trouble else line


def write(path: Path, results: Mapping[str, Mapping[str, Row]]) -> None:
    """The rows as JSON, one kernel per line."""
    chips = []
    for name, rows in results.items():
        lines = ",\n".join(f"    {json.dumps(kernel)}: {json.dumps(row)}" for kernel, row in rows.items())
        chips.append(f"  {json.dumps(name)}: {{\n{lines}\n  }}")
    text = ",\n".join(chips)
    path.write_text(f'{{"triton": "{version("triton")}",\n"chips": {{\n{text}\n}}}}\n')


def main(argv: Sequence[str]) -> int:
    """0: nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m compile_report.triton_report", description=__doc__)
    parser.add_argument("--chips", default=",".join(CHIPS), help="out of " + ", ".join(CHIPS))
    parser.add_argument("--core", action="store_true", help="every kernel once, not every case")
    parser.add_argument("--baseline", type=Path, help="a file that --write made")
    parser.add_argument("--write", type=Path, help="where to put the result")
    parser.add_argument("--known", type=Path, help="rows of earlier runs, to be read and added to")
    options = parser.parse_args(argv)
    memory = None if options.known is None else Known(options.known)
    baseline: dict[str, Any] = (
        json.loads(options.baseline.read_text()) if options.baseline else {"triton": "", "chips": {}}
    )
    same = baseline["triton"] == version("triton")
    results, passed, failed = {}, 0, 0
    for name in options.chips.split(","):
        chip, known = CHIPS[name], baseline["chips"].get(name, {}) if same else {}

        def tell(kernel: str, row: Row, chip: Chip = chip, known: Mapping[str, Row] = known) -> None:
            nonlocal passed, failed
            faults = faults_of(chip, row, known.get(kernel))
            passed, failed = passed + (not faults), failed + bool(faults)
            print(render(chip, kernel, row, faults), flush=True)

        results[name] = measure(chip, options.core, tell, memory)
        for kernel in gone(known, results[name], options.core):
            failed += 1
            print(f"{name:8} {kernel:46} FAILED: is gone", flush=True)
    if options.write:
        write(options.write, results)
    if memory is not None:
        memory.write()
        print(f"{memory.compiled} compiled, the others were known")
    if options.baseline and not same:
        print(f"registers are not compared: the baseline was made by triton {baseline['triton']}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
