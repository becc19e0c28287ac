"""Nothing above the waist, and nothing that platforms share, knows a platform's name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent
ABOVE = ["core", "models", "engine", "server", "llm.py", "plugins", "config.py", "types.py", "errors.py", "quant"]
SHARED = ["platforms/accelerator.py", "platforms/interface.py", "platforms/torch_device.py", "platforms/order.py"]
NAME = re.compile(r"(?i)(?<![a-z])(is_)?(cuda|rocm|hip|xpu|nvidia|amd|nccl|tpu)(?![a-z])")


def sources() -> list[Path]:
    found = [ROOT / name for name in (*ABOVE, *SHARED)] + sorted((ROOT / "platforms").glob("accel_*.py"))
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


@pytest.mark.parametrize("name", ["cuda", "rocm", "xpu"])
def test_siblings_do_not_know_each_other(name: str) -> None:
    others = {"cpu", "sim", "cuda", "rocm", "xpu"} - {name}
    for path in (ROOT / "platforms" / name).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            assert module.removeprefix("headrace.platforms.").split(".")[0] not in others, path


@pytest.mark.parametrize("name", ["cuda", "rocm", "xpu"])
def test_a_platform_is_small(name: str) -> None:
    assert sum(len(path.read_text().splitlines()) for path in (ROOT / "platforms" / name).glob("*.py")) < 800


def test_each_platform_is_a_plugin_that_nobody_imports() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]["headrace.plugins"]
    contracts = {c["name"]: c for c in project["tool"]["importlinter"]["contracts"]}
    for name in ("cuda", "rocm", "xpu"):
        module = f"headrace.platforms.{name}"
        assert points[name] == module
        assert module in contracts["Nobody above the waist names a backend"]["forbidden_modules"]
        assert module in contracts["Platforms are siblings"]["modules"]
