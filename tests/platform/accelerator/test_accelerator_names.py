"""The shared code and everything above the platforms contain no platform's name; and a platform is small."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
ABOVE = [
    "core", "models", "engine", "server", "llm.py", "plugins", "config.py", "types.py", "errors.py", "quant", "cli",
    "bench",
    "conformance",
]  # fmt: skip
SHARED = ["platforms/interface.py", "platforms/torch_device.py", "platforms/work_queue.py"]
PLATFORMS = ("cpu", "cuda", "rocm", "sim", "tpu", "xpu")
SMALL = 800
"""Lines of a platform's folder, which doesn't contain its kernels."""
ITS_OWN = {"bench/matmul_bench.py", "bench/machine_limits.py", "bench/verb_roofline.py"}
"""Measure the native library itself, kernel by kernel, below any operator of the contract."""
NAME = re.compile(r"(?i)(?<![a-z])(is_)?(cuda|rocm|hip|xpu|nvidia|amd|nccl|tpu)(?![a-z])")


def sources() -> list[Path]:
    found = [ROOT / name for name in (*ABOVE, *SHARED)] + sorted((ROOT / "platforms" / "accelerator").glob("*.py"))
    return [path for place in found for path in (place.rglob("*.py") if place.is_dir() else [place])]


def names_in(text: str) -> list[str]:
    return [match[0] for match in NAME.finditer(text)]


def test_the_search_finds_what_it_looks_for() -> None:
    branch = "if is_cuda(): x.is_cuda; torch.cuda; 'rocm'; on_xpu_device"
    assert names_in(branch) == ["is_cuda", "is_cuda", "cuda", "rocm", "xpu"]
    assert names_in("ship the cudagraph") == []
    assert len(sources()) > 60


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_platform_is_named(path: Path) -> None:
    assert names_in(path.read_text()) == []


def platforms_imported(text: str) -> set[str]:
    """Names of the platforms whose folder a module imports from, at its top or later."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{one.name}" for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    parts = [name.split(".") for name in found if name.startswith("headrace.platforms.")]
    return {part[2] for part in parts if part[2] in PLATFORMS}


def test_imports_are_found_in_every_form() -> None:
    forms = (
        "from headrace.platforms.cpu.native import load", "from headrace.platforms import cpu, work_queue",
        "import headrace.platforms.cpu.native as x", "def f():\n    from headrace.platforms.cpu import native",
    )  # fmt: skip
    assert [platforms_imported(form) for form in forms] == [{"cpu"}] * 4
    assert platforms_imported("from headrace.platforms.interface import Device\nimport torch.cuda") == set()


def test_nothing_outside_imports_a_platforms_folder() -> None:
    inside = [ROOT / "platforms" / name for name in PLATFORMS]
    paths = [path for path in ROOT.rglob("*.py") if not any(path.is_relative_to(folder) for folder in inside)]
    assert len(paths) > 200
    found = {str(path.relative_to(ROOT)) for path in paths if platforms_imported(path.read_text())}
    assert found == ITS_OWN


@pytest.mark.parametrize("name", PLATFORMS)
def test_siblings_do_not_know_each_other(name: str) -> None:
    for path in (ROOT / "platforms" / name).rglob("*.py"):
        assert platforms_imported(path.read_text()) <= {name}, path


@pytest.mark.parametrize("name", [name for name in PLATFORMS if name != "cpu"])
def test_a_platform_is_small(name: str) -> None:
    """But for the CPU's, which has no vendor's library, compiler or driver below it: the tape, its threads and shared
    memory between ranks are its own."""
    assert sum(len(path.read_text().splitlines()) for path in (ROOT / "platforms" / name).rglob("*.py")) < SMALL


def test_each_platform_is_a_plugin_that_is_never_imported() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]["headrace.plugins"]
    contracts = {c["name"]: c for c in project["tool"]["importlinter"]["contracts"]}
    for name in PLATFORMS:
        module = f"headrace.platforms.{name}"
        assert points[name] == module
        assert module in contracts["Nobody above the waist names a backend"]["forbidden_modules"]
        assert module in contracts["Platforms are siblings"]["modules"]
