"""Launches through a platform's own device and Triton's own dispatch, down to a driver that writes them down.

Usage: launch_main.py cuda|rocm|xpu FOLDER. A process of its own: kernels here are compiled, not interpreted. Prints
JSON.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from fake_machines import VENDORS
from fake_triton import FakeDriver, Launch, divisible

from compile_report import code
from compile_report.shipped import Recorded
from headrace.kernels.attention.generate import generate as attention_inputs
from headrace.kernels.ngram.generate import PlacedStep, draw_step
from headrace.kernels.registry import binding
from headrace.kernels.weight import Weight
from headrace.platforms.accelerator.device import AcceleratorDevice
from headrace.platforms.accelerator.triton_operators import triton_operators


def told(launch: Launch) -> dict[str, Any]:
    """As JSON; `differs` and `reported_divisible`: the form that the compile report would have compiled."""
    names = [parameter.name for parameter in launch.source.fn.params]
    args = dict(zip(names, launch.args, strict=True))
    meta = launch.metadata
    recorded = Recorded("", launch.source.fn, args, meta.num_warps, meta.num_stages, None, False)
    signature, _constants, attributes = code.specialise(recorded)
    return {
        "kernel": launch.kernel,
        "grid": launch.grid,
        "stream": launch.stream,
        "target": [meta.target.backend, meta.target.arch, meta.target.warp_size],
        "divisible": divisible(launch.source.fn, launch.source.attrs),
        "reported_divisible": divisible(launch.source.fn, attributes),
        "constants": sorted(name for name, kind in launch.source.signature.items() if kind == "constexpr"),
        "differs": {
            name: (kind, signature[name]) for name, kind in launch.source.signature.items() if kind != signature[name]
        },
        "values": {name: value for name, value in args.items() if isinstance(value, int | float)},
        "enable_fp_fusion": meta.enable_fp_fusion,
    }


class Session:
    """Calls, each with the launches and the compilations that it made."""

    def __init__(self, device: AcceleratorDevice, driver: FakeDriver) -> None:
        self._device, self._driver, self.calls = device, driver, dict[str, Any]()
        self._ops = binding(device)

    def call(self, name: str, operator: str, **arguments: Any) -> None:
        launches, loaded = len(self._driver.launches), len(self._driver.loaded)
        self._device.submit(lambda: getattr(self._ops, operator)(**arguments)).result()
        self.calls[name] = {
            "launches": [told(launch) for launch in self._driver.launches[launches:]],
            "compiled": self._driver.loaded[loaded:],
        }


def placed_steps(count: int) -> list[PlacedStep]:
    """Of other numbers of sequences, tokens and rows, with as many drafts at most and blocks of one size."""
    drawn = (draw_step(np.random.default_rng(seed), torch.device("cpu")) for seed in range(999))
    fitting = (step for step in drawn if (step.most, step.block_size) == (5, 16) and len(step.batch.rows))
    by_size = {len(step.lengths): step for step in itertools.islice(fitting, 20)}
    return list(by_size.values())[:count]


def intel_target(lanes: int) -> tuple[str, Any, int]:
    """For Intel's fork of triton, which uses the driver's properties as the chip's name and calls nothing else of the
    runtime."""
    sys.path.append(str(Path(__file__).parents[3] / "ci"))
    import xpu_spirv

    xpu_spirv.ask_no_runtime()
    return "xpu", xpu_spirv.DRIVER, lanes


def main(vendor: str, folder: str) -> None:
    (chosen,) = (v for v in VENDORS if v.name == vendor)
    platform, module = chosen.open(Path(folder), source=triton_operators)
    device = platform.open(0, {"graph_tokens": 0, "dtype": "bfloat16"})
    assert isinstance(device, AcceleratorDevice)
    home = importlib.import_module(f"headrace.platforms.{vendor}.device")
    chip = home.triton_chip(home.read_properties(device.runtime, 0))
    target = intel_target(chip.lanes) if vendor == "xpu" else chip.target
    driver = FakeDriver(module, target, chip.shared_memory)
    triton.runtime.driver.set_active(driver)
    session = Session(device, driver)
    wide, norm = torch.zeros(64, 512, dtype=torch.bfloat16), torch.ones(512)
    for rows in (4, 4, 2, 3, 17, 1, 16, 0):
        name = f"rows {rows}" if f"rows {rows}" not in session.calls else f"rows {rows} again"
        session.call(name, "rms_norm", x=wide[:rows], weight=norm, eps=1e-5)
    odd = torch.zeros(4 * 512 + 1, dtype=torch.bfloat16)[1:].view(4, 512)
    session.call("unaligned", "rms_norm", x=odd, weight=norm, eps=1e-5)
    session.call("float16", "rms_norm", x=wide[:4].half(), weight=norm, eps=1e-5)
    weight = Weight("bfloat16", (256, 512), {"weight": torch.zeros(256, 512, dtype=torch.bfloat16)}, Weight.dequantize)
    codes = {"codes": torch.zeros(256, 512, dtype=torch.int8), "scales": torch.ones(256, 16)}
    coded = Weight("int8", (256, 512), codes, Weight.dequantize)
    for rows in (3, 1, 40, 64):
        session.call(f"linear {rows}", "linear", x=wide[:rows], weight=weight)
        session.call(f"coded {rows}", "linear", x=wide[:rows], weight=coded)
    arguments = attention_inputs(np.random.default_rng(3), torch.device("cpu"), "bfloat16")
    session.call("attention", "attention", **arguments)
    session.call("attention again", "attention", **arguments)
    for number, step in enumerate(placed_steps(3)):
        given = {"batch": step.batch, "lengths": step.lengths, "history": step.history}
        session.call(f"ngram {number}", "ngram", **given, most=step.most)
        session.call(f"read_drafts {number}", "read_drafts", **given, most=step.most)
        moving = {"batch": step.batch, "bounds": step.lengths, "history": step.history}
        session.call(f"shift {number}", "shift", **moving, position=step.position, size=step.block_size)
        given |= {"drafts": torch.zeros(len(step.lengths), step.most, dtype=torch.int32)}
        session.call(f"place {number}", "place", **given, position=step.position, size=step.block_size)
        session.call(f"accept {number}", "accept", **given, tokens=step.batch.rows)
    device.close()
    print(json.dumps({"target": target, "calls": session.calls}))


if __name__ == "__main__":
    main(*sys.argv[1:])
