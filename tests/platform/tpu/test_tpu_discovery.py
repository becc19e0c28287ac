"""TPUs are found by their PCI functions; what is missing is named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from fake_machines import machine, torch_folder

from headrace.platforms.accelerator.probe import MachineProbe
from headrace.platforms.tpu import TpuPlatform
from headrace.platforms.tpu.tpu_chips import CHIPS, HOST, capabilities
from headrace.types import QUANT_FORMATS

PCI = "sys/bus/pci/devices/0000:00"
TWO = {
    f"{PCI}:04.0/vendor": "0x1ae0", f"{PCI}:04.0/device": "0x006f",
    f"{PCI}:05.0/vendor": "0x1ae0", f"{PCI}:05.0/device": "0x006f",
    f"{PCI}:06.0/vendor": "0x1ae0", f"{PCI}:06.0/device": "0x0042",
    f"{PCI}:07.0/vendor": "0x10de", f"{PCI}:07.0/device": "0x006f",
}  # fmt: skip
NODES = {"dev/vfio/0": "", "dev/vfio/vfio": ""}


def found(root: Path, files: Mapping[str, str], torch: str = "", xla: str = "", **environ: str) -> MachineProbe:
    folder = torch_folder(root, torch) if torch else None
    if folder is not None and xla:
        (folder.parent / "torch_xla").mkdir()
        (folder.parent / "torch_xla" / "version.py").write_text(f"# made\n__version__ = '{xla}'\n")
    return machine(root, files, folder, **environ)


@pytest.mark.parametrize(
    ("files", "torch", "xla", "said"),
    [
        ({}, "", "", "no Google PCI device here: run on a TPU VM"),
        (TWO, "", "", "no permission on /dev/vfio or /dev/accel"),
        (TWO | NODES, "", "", "^torch is not installed: install headrace"),
        (TWO | NODES, "2.9.1", "", "torch-xla is not installed: install headrace"),
        (TWO | NODES, "2.13.0", "2.9.0", "torch-xla 2.9.0 does not fit torch 2.13.0"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, files: Mapping[str, str], torch: str, xla: str, said: str) -> None:
    score, reason = TpuPlatform(found(tmp_path, files, torch, xla)).probe()
    assert score == 0
    assert re.search(said, reason), reason


@pytest.mark.parametrize("node", ["dev/vfio/0", "dev/accel0"])
def test_a_usable_machine_reports_its_devices(tmp_path: Path, node: str) -> None:
    here = TpuPlatform(found(tmp_path, TWO | {node: ""}, "2.9.1", "2.9.0"))
    assert here.probe() == (50, "TPU v6e, TPU v6e; torch-xla 2.9.0")
    assert [(d.index, d.name, d.memory_bytes) for d in here.devices()] == [
        (0, "TPU v6e", 32 << 30),
        (1, "TPU v6e", 32 << 30),
    ]


def test_the_host_serves_only_where_it_is_named(tmp_path: Path) -> None:
    here = TpuPlatform(found(tmp_path, {}, "2.9.1", "2.9.0", PJRT_DEVICE="cpu"))
    score, reason = here.probe()
    assert 0 < score < 10
    assert reason == "XLA on the host (PJRT_DEVICE=CPU), for tests; torch-xla 2.9.0"
    assert here.devices()[0].name == "XLA on the host"
    assert TpuPlatform(found(tmp_path / "bare", {}, PJRT_DEVICE="CPU")).probe()[0] == 0


def test_generations() -> None:
    assert {chip.name for chip in CHIPS.values()} >= {"TPU v5e", "TPU v5p", "TPU v6e", "TPU 7x"}
    alone, many = capabilities(HOST, 1), capabilities(CHIPS["0x0063"], 4)
    assert (alone.static_shapes, alone.in_place_kv, alone.async_exec) == (True, False, True)
    assert not alone.collectives
    assert "all_reduce" in many.collectives
    assert alone.quant_formats == many.quant_formats == QUANT_FORMATS
