"""`headrace doctor --tape`: every operator of a step, with what it reads and computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import save

from headrace.bench import step_profile
from headrace.bench.machine_limits import MachineLimits
from headrace.cli.main import main
from headrace.platforms.cpu import native

pytestmark = pytest.mark.skipif(native.missing() is not None, reason=f"no tapes: {native.missing()}")
HIDDEN, INNER, VOCAB, LAYERS, HEADS, HEAD = 64, 96, 160, 3, 4, 16
KV = 2 * HEAD
"""Values of the keys of one token and layer."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_profile, "measure_limits", lambda threads: MachineLimits(1e9, 1e9, 2e9, 4e9))
    monkeypatch.setattr(step_profile, "_LEAST_SECONDS", 0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("taped") / "tiny"
    save("llama", path, torch.bfloat16)
    return path


def report_of(model: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["doctor", "--tape", str(model), "--platform", "cpu", "--threads", "1", "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def calls(report: dict[str, Any], name: str) -> int:
    return sum(one["calls"] for one in report["operators"] if one["name"] == name)


def test_a_decode_step(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(model, capsys, "--context", "40")
    assert (report["tokens"], report["context"], report["model"]) == (1, 40, "tiny")
    wanted = {
        "linear": 3 * LAYERS,
        "gated_linear": LAYERS,
        "attention": LAYERS,
        "rotary_cache": LAYERS,
        "logits": 1,
        "sample": 1,
        "embedding": 1,
    }
    assert {name: calls(report, name) for name in wanted} == wanted
    (gated,) = (one for one in report["operators"] if one["name"] == "gated_linear")
    assert (gated["calls"], gated["operations"]) == (LAYERS, LAYERS * 2 * 2 * INNER * HIDDEN)
    down = next(one for one in report["operators"] if one["shapes"] == f"T×{INNER} T×{HIDDEN}")
    assert (down["calls"], down["operations"]) == (LAYERS, LAYERS * 2 * INNER * HIDDEN)
    assert down["bytes"] == LAYERS * (2 * INNER * HIDDEN + 4 * (INNER + HIDDEN))
    assert "bfloat16" in down["weight"]
    attention = next(one for one in report["operators"] if one["name"] == "attention")
    assert attention["operations"] == LAYERS * 4 * 41 * HEADS * HEAD
    assert attention["bytes"] == LAYERS * (2 * 4 * HEADS * HEAD + 41 * 2 * KV * 2)
    (embedding,) = (one for one in report["operators"] if one["name"] == "embedding")
    assert embedding["bytes"] < 1000, "a row, not the table"
    for total in ("bytes", "operations", "seconds"):
        assert report[total] == pytest.approx(sum(one[total] for one in report["operators"]))
    assert all(one["seconds"] > 0 for one in report["operators"])
    assert report["wall"] > 0


def test_the_share_is_of_the_limit_that_binds(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, many = report_of(model, capsys), report_of(model, capsys, "--tokens", "64")
    for report, binding in ((one, "read"), (many, "bfloat16")):
        for found in report["operators"]:
            if found["name"] == "linear":
                least = {"read": found["bytes"] / 1e9, "bfloat16": found["operations"] / 2e9}
                assert max(least, key=lambda name: least[name]) == binding
                assert found["share"] == pytest.approx(least[binding] / found["seconds"])
    assert many["operations"] > 30 * one["operations"]


def test_options_reach_the_weights(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, narrow = report_of(model, capsys), report_of(model, capsys, "--quantize", "int8")
    assert "8 bit" in next(one["weight"] for one in narrow["operators"] if one["name"] == "linear")
    assert narrow["bytes"] < plain["bytes"]


def test_the_text_table(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--tape", str(model), "--platform", "cpu", "--threads", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tiny: a step of 1 token of one sequence after 128, on a machine that reads 1.0 GB/s")
    assert lines[1].split()[0] == "operator"
    assert lines[-2].startswith("total")
    assert "100.0%" in lines[-2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tokens", "0"], "a step of 0 tokens"),
        (["--context", "256"], "the model has 256 positions"),
        (["--platform", "sim"], "sim records no tape"),
        (["--dtype", "float8"], "--dtype float8"),
    ],
)
def test_impossible_steps_are_refused(
    options: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--tape", str(model), *options]) == 2
    assert message in capsys.readouterr().err
