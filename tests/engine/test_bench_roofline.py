"""`headrace bench roofline`: limits, matrix products and a model's operators, in the three forms of a report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from tiny_models import save

from headrace.bench import step_profile, verb_roofline
from headrace.bench.dispatch import main
from headrace.bench.machine_limits import MachineLimits
from headrace.bench.roofline_plot import Point, roofline
from headrace.errors import ConfigError
from headrace.platforms.cpu import native

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=f"no native kernels: {native.missing()}")
LIMITS = MachineLimits(1e10, 1e11, 2e11, 4e11)
SMALL = ["roofline", "--formats", "q4_0", "--rows", "1,3", "--shape", "16x64", "--threads", "1"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb_roofline, "measure_team", lambda team: LIMITS)
    monkeypatch.setattr(step_profile, "measure_limits", lambda threads: LIMITS)
    monkeypatch.setattr(step_profile, "_LEAST_SECONDS", 0.0)


def test_products_alone(tmp_path: Path) -> None:
    assert main([*SMALL, "--json", str(tmp_path / "out")]) == 0
    report = json.loads((tmp_path / "out").read_text())
    assert report["limits"] == {"read": 1e10, "float32": 1e11, "bfloat16": 2e11, "int8": 4e11}
    assert [one["rows"] for one in report["kernels"]] == [1, 3]
    assert report["steps"] == []


def test_a_models_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save("llama", tmp_path / "tiny", torch.bfloat16)
    page = tmp_path / "roofline.html"
    steps = ["--model", str(tmp_path / "tiny"), "--steps", "1:20,32:0"]
    out = tmp_path / "out"
    assert main([*SMALL, *steps, "--html", str(page), "--json", str(out)]) == 0
    said = capsys.readouterr().out
    assert "read 10.0 GB/s" in said
    assert "complete step" in said
    text = page.read_text()
    assert "int8 400 Gop/s" in text
    assert text.count("complete step</td>") == 2
    assert text.count("<polyline") == 3
    assert "attention" in text
    assert "32 after 0" in text
    assert not re.search(r"src=|href=", text), "it loads nothing"
    report = json.loads(out.read_text())
    assert [(one["tokens"], one["context"]) for one in report["steps"]] == [(1, 20), (32, 0)]
    assert all(one["share"] > 0 for one in report["steps"])


def test_points_are_placed_by_their_values() -> None:
    """On the bandwidth's slope, on a ceiling, and beyond the axes."""
    slope = Point("slope", "s", 1e10, 1e10, 1.0, 1.0)
    ceiling = Point("<b>ceiling", "s", 1e6, 1e11, 1.0, 1.0)
    nothing = Point("norm", "s", 1e6, 0.0, 1e-3, 0.1)
    text = roofline(LIMITS, [slope, ceiling, nothing]).svg
    assert "<b>" not in text
    (first, second) = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', text)
    roofs = [
        [tuple(map(float, pair.split(","))) for pair in line.split()] for line in re.findall(r'points="([^"]+)"', text)
    ]
    (left, low), (corner, high), (right, _) = roofs[0]
    x, y = map(float, first)
    assert y == pytest.approx(low + (high - low) * (x - left) / (corner - left), abs=0.2)
    assert tuple(map(float, second)) == pytest.approx((right, high), abs=0.2)


@pytest.mark.parametrize("steps", ["1", "1:2:3", "a:b", ""])
def test_invalid_steps_are_refused(steps: str) -> None:
    with pytest.raises(ConfigError, match="--steps"):
        main([*SMALL, "--model", "m", "--steps", steps])
