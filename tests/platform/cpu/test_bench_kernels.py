"""The kernel benchmark on matrices too small to be worth measuring."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest
import torch

from headrace.bench import matmul_bench as bench
from headrace.bench.machine_limits import measure_team
from headrace.errors import ConfigError
from headrace.platforms.cpu import native
from headrace.platforms.cpu.native_team import Team


@pytest.fixture(scope="module")
def team() -> Iterator[Team]:
    found = Team(native.load(), 1)
    yield found
    found.close()


def test_limits_are_plausible(team: Team) -> None:
    limits = measure_team(team, cold=1 << 20)
    assert limits.read > 1e6
    assert limits.float32 > 1e6
    assert all(limits.arithmetic(kind) > 1e6 for kind in ("bfloat16", "int8"))


@pytest.mark.parametrize("name", bench.FORMATS)
def test_every_format_is_measured(team: Team, name: str) -> None:
    torch.manual_seed(0)
    limits = bench.MachineLimits(read=1e9, float32=1e9, bfloat16=2e9, int8=4e9)
    for rows in (1, 40):
        found = bench.measure(team, name, rows, (32, 256), limits, cold=1 << 16)
        assert found.shape == (32, 256)
        assert found.operations_per_second == pytest.approx(2 * rows * 32 * 256 / found.seconds)
        rate = limits.arithmetic(bench.FORMATS[name][0])
        assert found.share >= found.operations_per_second / rate
        if rows == 1:
            assert found.share >= found.bytes_per_second / limits.read


def test_a_row_each(team: Team) -> None:
    limits = bench.MachineLimits(1e9, 1e9, 1e9, 1e9)
    made = bench.table(limits, [bench.measure(team, "q4_0", rows, (16, 64), limits, cold=1 << 16) for rows in (1, 3)])
    assert made.title.startswith("read 1.0 GB/s; float32 1,")
    assert [row[:3] for row in made.rows] == [("q4_0", "16x64", "1"), ("q4_0", "16x64", "3")]


def test_unknown_formats_are_refused() -> None:
    parser = argparse.ArgumentParser()
    bench.configure(parser)
    assert bench.chosen(parser.parse_args(["--formats", "all"])) == (list(bench.FORMATS), (3072, 1536))
    with pytest.raises(ConfigError, match="'q9'"):
        bench.chosen(parser.parse_args(["--formats", "q9"]))
