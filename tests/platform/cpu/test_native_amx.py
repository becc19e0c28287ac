"""Products on tiles, held to the vectors' bits and to the references: the sources with emulated tiles (amx_emulated.h),
and the library's own code, whose tile instructions are caught and emulated one by one (amx_trap.cpp)."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import linear_weights as make
import numpy as np
import pytest
import torch
from linear_weights import MAKERS

import headrace
from headrace.kernels.linear.cpu_pack import Compute
from headrace.kernels.weight import Weight
from headrace.platforms.cpu import native
from headrace.platforms.cpu.native_launch import EagerLauncher, Launcher
from headrace.platforms.cpu.native_linear import NativeLinear
from headrace.platforms.cpu.native_team import Team
from headrace.quant.weights import dense

Tensor = torch.Tensor
HERE, KERNELS = Path(__file__).parent, Path(headrace.__file__).parent / "kernels"
FLAGS = {
    "v4bf16": "-march=x86-64-v4 -mavx512vnni -mavx512vbmi -mavx512bf16",
    "v4": "-march=x86-64-v4 -mavx512vnni",
    "v3": "-march=x86-64-v3",
    "dotprod": "-march=armv8.2-a+dotprod",
    "generic": "",
}
# Emulated tiles stand beside the best vectors that run here.
BASE = next((isa for isa in native.usable() if isa in FLAGS), None)
FLOATS = ("float32", "bfloat16", "float16", "fp8-row", "fp8-blocks", "fp8-wide-blocks")
needs_compiler = pytest.mark.skipif(
    BASE is None or shutil.which("c++") is None, reason="needs the native library and a C++ compiler"
)


@dataclass
class Owner:
    launcher: Launcher


class Kernels:
    def __init__(self, library: native.Library, threads: int) -> None:
        self.team = Team(library, threads)
        self._owner = Owner(EagerLauncher(self.team))

    def linear(self, x: Tensor, weight: Weight, compute: Compute = "int8") -> Tensor:
        return NativeLinear(self._owner, compute).linear(x, weight)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> native.Library:
    """`linear` alone, with emulated tiles."""
    assert BASE is not None
    path = tmp_path_factory.mktemp("amx") / "emulated.so"
    flags = "-std=gnu++17 -O0 -w -shared -fPIC -fvisibility=hidden -ffp-contract=off -fno-strict-aliasing".split()
    flags += [*FLAGS[BASE].split(), "-DHR_ISA=amxemu", "-DHR_AMX_EMULATED", f"-I{HERE}", f"-I{KERNELS / 'native'}"]
    sources = [*sorted((KERNELS / "native").glob("*.cpp")), KERNELS / "linear/cpu.cpp"]
    subprocess.run(["c++", *flags, *map(str, sources), "-o", str(path), "-pthread", "-lm"], check=True)
    return native.Library(path, "amxemu", native._open(path))


@pytest.fixture(scope="module")
def trapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[native.Library]:
    """The library's own tiles, on a processor without."""
    path, installed = tmp_path_factory.mktemp("amx") / "trap.so", native.find()
    assert installed is not None
    functions = native._open(installed)
    if not hasattr(functions, "hr_linear_amx") or "amx" in native.usable() or BASE != "v4bf16":
        pytest.skip("needs a library with AMX, on a processor that has all but that")
    flags = f"-std=gnu++17 -O1 -w -shared -fPIC -I{HERE}".split()
    subprocess.run(["c++", *flags, str(HERE / "amx_trap.cpp"), "-o", str(path)], check=True)
    trap = ctypes.CDLL(str(path))
    trap.amx_trap()
    yield native.Library(installed, "amx", functions)
    trap.amx_untrap()
    assert trap.amx_trapped() > 1000


@pytest.fixture(scope="module", params=["library", "trapped"])
def tiles(request: pytest.FixtureRequest) -> Iterator[dict[int, Kernels]]:
    library = request.getfixturevalue(request.param)
    made = {threads: Kernels(library, threads) for threads in (1, 3)}
    yield made
    for kernels in made.values():
        kernels.team.close()


@pytest.fixture(scope="module")
def vectors() -> Iterator[Kernels]:
    found = Kernels(native.load(BASE), 2)
    yield found
    found.team.close()


def some(rng: np.random.Generator, name: str, columns: int = 400) -> Weight:
    weight = MAKERS[name](rng, int(rng.integers(1, 50)), int(rng.integers(1, columns)))
    weight.bias = make.normal(rng, weight.shape[0]) if rng.integers(2) else None
    return weight


def error(found: Tensor, x: Tensor, weight: Weight) -> float:
    exact = x.double() @ weight.dequantize().double().T
    exact = exact if weight.bias is None else exact + weight.bias.double()
    return float((found.double() - exact).square().sum() / exact.square().sum().clamp(min=1e-30))


@needs_compiler
@pytest.mark.parametrize("name", [name for name in MAKERS if name not in FLOATS])
def test_integer_products_have_the_bits_of_vectors(tiles: dict[int, Kernels], vectors: Kernels, name: str) -> None:
    """Of any number of rows: those below sixteen are on vectors, and a remainder is a short tile."""
    rng = np.random.default_rng(len(name))
    for rows, wide in ((3, False), (16, False), (23, True), (150, False)):
        weight = some(rng, name)
        weight.wide_inputs = wide
        x = make.normal(rng, rows, weight.shape[1])
        assert torch.equal(tiles[3].linear(x, weight), vectors.linear(x, weight)), (rows, weight.shape)


@needs_compiler
@pytest.mark.parametrize("activation", ["int8_token", "int8_token_asymmetric", "int8_tensor"])
@pytest.mark.parametrize("name", ["int8-g0", "int4-g0", "int8-g32"])
def test_rows_of_one_scale_have_the_bits_of_vectors(
    tiles: dict[int, Kernels], vectors: Kernels, name: str, activation: str
) -> None:
    rng = np.random.default_rng(len(activation))
    for rows, columns in ((17, 32), (64, 70), (140, 1100)):  # halves of a tile, and more than is expanded at a time
        weight = MAKERS[name](rng, 37, columns)
        weight.activation = activation
        weight.tensors["input_scale"] = torch.tensor([0.02])
        x = make.normal(rng, rows, weight.shape[1])
        assert torch.equal(tiles[3].linear(x, weight), vectors.linear(x, weight)), (rows, columns)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "activation"),
    [("bfloat16", None), ("float32", None)]
    + [(name, inputs) for name in ("fp8-row", "fp8-wide-blocks") for inputs in (None, "fp8_token", "fp8_group128")],
)
def test_bfloat16_products(tiles: dict[int, Kernels], vectors: Kernels, name: str, activation: str | None) -> None:
    """Close to the sums of the vectors; each row has the same bits independently of the other rows."""
    rng = np.random.default_rng(len(name))
    for rows in (1, 20, 130):
        weight = some(rng, name)
        weight.activation = activation
        x = make.normal(rng, rows, weight.shape[1])
        whole, other = tiles[1].linear(x, weight, "bfloat16"), vectors.linear(x, weight, "bfloat16")
        assert (whole - other).square().sum() <= 1e-10 * other.square().sum()
        assert activation is not None or error(whole, x, weight) < 1e-4
        order = torch.from_numpy(rng.permutation(rows))
        assert torch.equal(tiles[3].linear(x[order], weight, "bfloat16"), whole[order])
        for begin in {0, rows // 2, rows - 1}:
            end = min(rows, begin + int(rng.integers(1, 40)))
            assert torch.equal(tiles[3].linear(x[begin:end], weight, "bfloat16"), whole[begin:end])


@needs_compiler
def test_bfloat16_sums_have_the_order_of_tiles(tiles: dict[int, Kernels], vectors: Kernels) -> None:
    """Even columns, in which ones are lost beside 2^24, are summed separately from odd ones."""
    weight = dense(torch.ones(16, 32).bfloat16())
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 2], x[0, 4], x[0, 6] = 2.0**24, 1, 1, -(2.0**24)
    x[0, 1], x[0, 3], x[0, 5] = 1, 1, 1
    assert tiles[1].linear(x, weight).tolist() == [[3.0] * 16]
    assert BASE != "v4bf16" or vectors.linear(x, weight).tolist() != [[3.0] * 16]


@needs_compiler
def test_what_is_no_number_stays_in_its_row(tiles: dict[int, Kernels]) -> None:
    rng = np.random.default_rng(1)
    for name in ("bfloat16", "q4_1", "fp8-row"):
        weight = MAKERS[name](rng, 33, 256)
        x = make.normal(rng, 20, 256)
        clean = tiles[3].linear(x, weight)
        x[17, 40], x[3, 41] = float("nan"), float("inf")
        found = tiles[3].linear(x, weight)
        others = [r for r in range(20) if r not in (3, 17)]
        assert found[17].isnan().all()
        assert not found[3].isfinite().all()
        assert torch.equal(found[others], clean[others])


def test_real_tile_instructions_are_in_the_library() -> None:
    path = native.find()
    if path is None or not hasattr(ctypes.CDLL(str(path)), "hr_linear_amx") or shutil.which("objdump") is None:
        pytest.skip("needs objdump and a library with AMX")
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(path)], capture_output=True, text=True, check=True
    )
    found = set(re.findall(r"\b(tdp\w+|tile\w+|ldtilecfg)\b", listing.stdout))
    wanted = {"ldtilecfg", "tilerelease", "tileloadd", "tilestored", "tilezero", "tdpbf16ps", "tdpbssd", "tdpbsud"}
    assert found >= wanted


def test_tiles_run_where_processor_and_system_have_them() -> None:
    info = Path("/proc/cpuinfo")
    flags = set(re.findall(r"\w+", info.read_text())) if info.exists() else set()
    assert ("amx" not in native.usable()) or {"amx_tile", "amx_int8", "amx_bf16"} <= flags


def test_other_kernels_are_those_of_the_vectors() -> None:
    def function() -> None: ...

    one, two = (ctypes.CFUNCTYPE(None)(function) for _ in range(2))
    functions = SimpleNamespace(hr_linear_amx=one, hr_linear_v4bf16=two, hr_rms_norm_v4bf16=two)
    library = native.Library(Path("lib.so"), "amx", cast(Any, functions))
    addresses = tuple(ctypes.cast(f, ctypes.c_void_p).value for f in (one, two))
    assert (library.kernel("linear"), library.kernel("rms_norm")) == addresses
    with pytest.raises(native.PlatformError, match="has no hr_sample_v4bf16"):
        library.kernel("sample")
    assert native._holds(cast(Any, functions), "amx")
    del functions.hr_rms_norm_v4bf16
    assert not native._holds(cast(Any, functions), "amx")
