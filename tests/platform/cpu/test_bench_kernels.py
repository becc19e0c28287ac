"""The kernel benchmark on matrices too small to be worth measuring."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from headrace.bench import kernels as bench
from headrace.errors import ConfigError
from headrace.platforms.cpu import native
from headrace.platforms.cpu.native_team import Team


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    found = Team(native.load(), 1)
    yield found
    found.close()


def test_limits_are_plausible(team: Team) -> None:
    limits = bench.measure_team(team, cold=1 << 20)
    assert limits.read > 1e8
    assert limits.float32 > 1e8
    assert all(limits.arithmetic(kind) > 1e8 for kind in ("bfloat16", "int8"))


@pytest.mark.parametrize("name", bench.FORMATS)
def test_every_format_is_measured(team: Team, name: str) -> None:
    torch.manual_seed(0)
    limits = bench.Limits(read=1e9, float32=1e9, bfloat16=2e9, int8=4e9)
    for rows in (1, 40):
        found = bench.measure(team, name, rows, (32, 256), limits, cold=1 << 16)
        assert found.shape == (32, 256)
        assert found.operations_per_second == pytest.approx(2 * rows * 32 * 256 / found.seconds)
        rate = limits.arithmetic(bench.FORMATS[name][0])
        assert found.share >= found.operations_per_second / rate
        if rows == 1:
            assert found.share >= found.bytes_per_second / limits.read


def test_report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "measure_team", lambda team: bench.Limits(1e9, 1e9, 1e9, 1e9))
    options = ["--formats", "q4_0", "--rows", "1,3", "--shape", "16x64", "--threads", "1"]
    assert bench.main([*options, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [entry["rows"] for entry in report["kernels"]] == [1, 3]
    assert bench.main(options) == 0
    assert "q4_0" in capsys.readouterr().out


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(ConfigError, match="'q9'"):
        bench.main(["--formats", "q9"])
