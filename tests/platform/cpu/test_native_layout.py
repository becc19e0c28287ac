"""A library of other sources is refused when it is loaded, with what differs and what helps."""

from __future__ import annotations

import contextlib
import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import PlatformError
from headrace.platforms.cpu import CpuPlatform, native, native_device, native_layout
from headrace.platforms.cpu.native_layout import (
    BLOCK_TWINS,
    CHAIN_TWINS,
    DRAFTER_TWINS,
    EXPERT_TWINS,
    NAMED_TWINS,
    TWINS,
    check_layouts,
)
from headrace.platforms.interface import ChecksDrafting

KERNELS = Path(native.__file__).parents[2] / "kernels"
needs_library = pytest.mark.skipif(native.find() is None, reason="the native kernels are not built")


@needs_library
def test_every_structure_lies_as_the_library_has_it() -> None:
    check_layouts(native.load())
    check_layouts(native.load(), DRAFTER_TWINS)
    check_layouts(native.load(), EXPERT_TWINS)
    check_layouts(native.load(), CHAIN_TWINS)
    check_layouts(native.load(), NAMED_TWINS)


def test_every_structure_of_the_sources_has_a_twin() -> None:
    sources = [path.read_text() for path in KERNELS.rglob("*") if path.suffix in (".cpp", ".h")]
    described = {name for text in sources for name in re.findall(r"^HR_LAYOUT\((\w+),", text, re.MULTILINE)}
    arguments = {
        name for text in sources for name in re.findall(r"^(?:typedef )?struct (\w+_args) \{", text, re.MULTILINE)
    }
    assert described == {*TWINS, *BLOCK_TWINS, *CHAIN_TWINS, *DRAFTER_TWINS, *EXPERT_TWINS, *NAMED_TWINS}
    assert arguments <= described


def test_the_number_of_the_abi_is_that_of_the_sources() -> None:
    header = (KERNELS / "native" / "headrace.h").read_text()
    assert re.findall(r"#define HR_ABI (\d+)", header) == [str(native.ABI)]


class Longer(ctypes.Structure):
    _fields_ = (("dim", ctypes.c_int32), ("fixed", ctypes.c_int32), ("new", ctypes.c_int32))


class Moved(ctypes.Structure):
    _fields_ = (("dim", ctypes.c_int16), ("fixed", ctypes.c_int32))


@needs_library
@pytest.mark.parametrize(
    ("name", "twin", "detail"),
    [
        ("hr_dim", Longer, r"hr_dim lies as \[8, 0, 4, 4, 4\] there and as \[12, 0, 4, 4, 4, 8, 4\] here"),
        ("hr_dim", Moved, r"hr_dim lies as \[8, 0, 4, 4, 4\] there and as \[8, 0, 2, 4, 4\] here"),
        ("hr_new", Moved, "hr_new is not described"),
    ],
)
def test_a_structure_that_differs_is_named(
    name: str, twin: type[ctypes.Structure], detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(native_layout.TWINS, name, twin)  # type: ignore[arg-type]
    with pytest.raises(
        PlatformError, match=rf"built from other sources: {detail}: run `make` in the checkout, or"
    ) as caught:
        CpuPlatform().open(0, {})
    assert str(native.find()) in str(caught.value)


@pytest.fixture(params=[None, native.ABI + 1])
def stale(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The version of a library that is found: one before there were any, and one that is newer."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    source, library = tmp_path / "library.cpp", tmp_path / "libheadrace_cpu.so"
    body = "" if request.param is None else f'extern "C" int hr_abi() {{ return {request.param}; }}'
    source.write_text(body)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    monkeypatch.setattr(native, "find", lambda: library)
    yield request.param or 0
    native._open.cache_clear()


def test_a_library_of_another_version_is_refused_and_not_passed_over(stale: int) -> None:
    message = f"has version {stale} of the kernels' ABI, this headrace has {native.ABI}: run `make` in the checkout"
    with pytest.raises(PlatformError, match=re.escape(message)):
        CpuPlatform().open(0, {})
    ((key, problem),) = native.describe()
    assert key == "native_problem"
    assert message in problem


@needs_library
def test_operators_of_drafters_are_checked_when_a_model_with_a_drafter_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.closing(CpuPlatform().open(0, {"threads": 1})) as device:
        checks = device.extension(ChecksDrafting)
        assert checks is not None
        checks.check_drafting()
        monkeypatch.setattr(native_device, "DRAFTER_KERNELS", ("ngram", "of_tomorrow"))
        with pytest.raises(PlatformError, match=r"has no hr_of_tomorrow_\w+: .*run `make` in the checkout"):
            checks.check_drafting()
        monkeypatch.setitem(DRAFTER_TWINS, "hr_new", Moved)  # type: ignore[arg-type]
        with pytest.raises(PlatformError, match="hr_new is not described"):
            checks.check_drafting()
