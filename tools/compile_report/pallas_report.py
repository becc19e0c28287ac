"""The compile report of the Pallas kernels for each generation of TPU, without a TPU in the machine.

    PYTHONPATH=tools python -m compile_report.pallas_report [--chips v5e,v5p,v6e,7x] [--write FILE] [--baseline FILE]

Every kernel at shapes as they are served is lowered, and compiled by libtpu against a description of the chip: a kernel
that the chip's units or its vector memory cannot take is an error here. What is reported: code size, memory in HBM
beside arguments and results, and how much of the arguments the results reuse (a cache that is written must be reused
whole). Each generation is compiled in a process of its own under a time limit, since the compiler can hang on what
doesn't fit; 7x needs the libtpu of JAX 0.10. The last line is `N passed, N failed`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["CHIPS", "compare", "compiled", "main"]

CHIPS = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "7x": "tpu7x:2x2x1"}
_SECONDS = 480
_SLACK = 1.25
"""A kernel's code may grow by a quarter before it is a regression."""
Found = dict[str, dict[str, Any]]


def compiled(chip: str) -> Found:
    """Kernel → figures, or its `error`. To be called in a process of its own, before anything else has loaded JAX."""
    import jax
    from jax import export
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    from compile_report.pallas_shipped import shipped

    target = topologies.get_topology_desc(platform="tpu", topology_name=CHIPS[chip]).devices[0]
    place = SingleDeviceSharding(target)
    found: Found = {}
    for name, (function, arguments, donated) in shipped().items():
        shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in arguments]
        placed = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place) for x in shapes]
        try:
            # By way of an export, which keeps the kernel's form readable to a libtpu that is older than JAX.
            exported = export.export(jax.jit(function), platforms=["tpu"])(*shapes)
            made = jax.jit(exported.call, donate_argnums=donated).lower(*placed).compile()
        except Exception as error:
            found[name] = {"error": str(error).splitlines()[0][:300]}
            continue
        told = made.memory_analysis()
        found[name] = {
            "code_bytes": int(told.generated_code_size_in_bytes),
            "temporary_bytes": int(told.temp_size_in_bytes),
            "reused_bytes": int(told.alias_size_in_bytes),
            "donated_bytes": sum(_bytes(shapes[at]) for at in donated),
        }
    return found


def _bytes(x: Any) -> int:
    size: int = x.dtype.itemsize
    for length in x.shape:
        size *= length
    return size


def compare(found: dict[str, Found], baseline: dict[str, Found]) -> list[str]:
    """The faults: errors, caches that are copied, code that has grown, missing kernels."""
    wrong = []
    for chip, kernels in found.items():
        before = baseline.get(chip, {})
        wrong += [f"{chip}: {name} is gone" for name in before if name not in kernels]
        for name, figures in kernels.items():
            if "error" in figures:
                wrong.append(f"{chip}: {name}: {figures['error']}")
                continue
            if figures["reused_bytes"] < figures["donated_bytes"]:
                wrong.append(f"{chip}: {name} copies what it writes to")
            most = before.get(name, {}).get("code_bytes")
            if most is not None and figures["code_bytes"] > most * _SLACK:
                wrong.append(f"{chip}: {name}: {figures['code_bytes']} bytes of code, {most} before")
    return wrong


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="compile_report.pallas_report")
    parser.add_argument("--chips", default=",".join(CHIPS))
    parser.add_argument("--write", type=Path)
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--one", help="compile for this chip and print JSON")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(compiled(options.one)))
        return 0
    found = {chip: _in_a_process(chip) for chip in options.chips.split(",")}
    baseline = json.loads(options.baseline.read_text()) if options.baseline and options.baseline.exists() else {}
    wrong = compare(found, {chip: baseline.get(chip, {}) for chip in found})
    for chip, kernels in found.items():
        for name, figures in kernels.items():
            print(f"{chip:4} {name:32} " + " ".join(f"{key}={value}" for key, value in figures.items()))
    print("\n".join(wrong))
    if options.write:
        others = json.loads(options.write.read_text()) if options.write.exists() else {}
        options.write.write_text(json.dumps(others | found, indent=1, sort_keys=True) + "\n")
    print(f"{max(0, sum(len(kernels) for kernels in found.values()) - len(wrong))} passed, {len(wrong)} failed")
    return 1 if wrong else 0


def _in_a_process(chip: str) -> Found:
    command = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "--one", chip]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"every kernel": {"error": f"the compiler had not finished after {_SECONDS} s"}}
    if done.returncode:
        return {"every kernel": {"error": (done.stderr.splitlines() or ["no message"])[-1][:300]}}
    made: Found = json.loads(done.stdout.splitlines()[-1])
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
