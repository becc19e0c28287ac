"""How Triton kernels are launched: grid, arguments, specialisation and cache, through Triton's own dispatch and a
driver without a device. Compiling needs a process of its own: in this one kernels may have been made for the
interpreter."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
TOOLS = HERE.parents[2] / "tools"
ROWS = ("rows 4 again", "rows 2", "rows 3", "rows 17", "rows 1", "rows 16")


def has_intel() -> bool:
    """Only Intel's fork of triton has a code generator for its GPUs."""
    found = importlib.util.find_spec("triton")
    return found is not None and any(
        (Path(folder) / "backends/intel").is_dir() for folder in found.submodule_search_locations or ()
    )


@pytest.fixture(scope="module", params=["cuda", "rocm", "xpu"])
def session(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if request.param == "xpu" and not has_intel():
        pytest.skip("this triton makes no code for Intel GPUs: ci/xpu.sh runs these with Intel's fork")
    if request.param != "xpu" and has_intel():
        pytest.skip("this triton is Intel's fork")
    folder = tmp_path_factory.mktemp(request.param)
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(TOOLS), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, "-W", "ignore", str(HERE / "launch_main.py"), request.param, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def launches(session: dict[str, Any]) -> list[dict[str, Any]]:
    return [launch for call in session["calls"].values() for launch in call["launches"]]


def test_every_launch_goes_to_the_compute_stream_in_code_for_the_chip(session: dict[str, Any]) -> None:
    assert {launch["stream"] for launch in launches(session)} == {"compute"}
    assert [launch["target"] for launch in launches(session)] == [session["target"]] * len(launches(session))
    assert not any(launch["enable_fp_fusion"] for launch in launches(session))


def test_a_row_is_a_program_and_none_is_no_launch(session: dict[str, Any]) -> None:
    for name in ("rows 4", *ROWS):
        (launch,) = session["calls"][name]["launches"]
        assert launch["grid"] == [int(name.split()[1]), 1, 1]
        assert launch["values"]["width"] == 512
        assert launch["values"]["eps"] == 1e-5
    assert session["calls"]["rows 0"] == {"launches": [], "compiled": []}


def test_a_kernel_is_compiled_once_for_all_batches(session: dict[str, Any]) -> None:
    assert session["calls"]["rows 4"]["compiled"] == ["norm_kernel"]
    assert all(session["calls"][name]["compiled"] == [] for name in ROWS)
    assert session["calls"]["attention again"]["compiled"] == []
    for name, kernel in (("linear", "dense_kernel"), ("coded", "coded_kernel")):
        compiled = [session["calls"][f"{name} {rows}"]["compiled"] for rows in (3, 1, 40, 64)]
        assert compiled == [[kernel], [], [], []]
    for name, kernels in (
        ("ngram", ["match_kernel", "draft_kernel"]),
        ("place", ["place_kernel"]),
        ("accept", ["accept_kernel"]),
        ("read_drafts", ["read_kernel"]),
        ("shift", ["shift_kernel"]),
    ):
        compiled = [session["calls"][f"{name} {number}"]["compiled"] for number in range(3)]
        assert compiled == [kernels, [], []]


def test_type_and_alignment_make_another_form(session: dict[str, Any]) -> None:
    for name in ("unaligned", "float16"):
        assert session["calls"][name]["compiled"] == ["norm_kernel"]
    (aligned,) = session["calls"]["rows 4"]["launches"]
    (unaligned,) = session["calls"]["unaligned"]["launches"]
    assert set(aligned["divisible"]) - set(unaligned["divisible"]) == {"x"}


def test_decodes_and_prompts_of_one_batch_have_a_kernel_each(session: dict[str, Any]) -> None:
    kernels = [launch["kernel"] for launch in session["calls"]["attention"]["launches"]]
    assert kernels == ["decode_kernel", "combine_kernel", "prefill_kernel"]
    first, again = session["calls"]["attention"], session["calls"]["attention again"]
    assert [launch["grid"] for launch in first["launches"]] == [launch["grid"] for launch in again["launches"]]


def test_the_compile_report_compiles_what_is_launched(session: dict[str, Any]) -> None:
    """Except integers that are 1, which it treats as constants."""
    for launch in launches(session):
        assert launch["reported_divisible"] == launch["divisible"]
        for name, (launched, reported) in launch["differs"].items():
            assert (launched, reported) == ("i32", "constexpr")
            assert launch["values"][name] == 1
