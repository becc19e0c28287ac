"""The benchmark runs; its figures are not judged here."""

from __future__ import annotations

import argparse

import pytest

from headrace.bench.scheduler import configure, decode, queue, run


def test_figures_are_positive() -> None:
    for figure in (
        decode(2, 8, prompt=16),
        decode(2, 8, prompt=16, ahead=False),
        queue(20, running=4, prompt=16, output=4),
    ):
        assert figure.steps > 0
        assert figure.per_sequence > 0
        assert figure.per_step > 0


def test_the_verb_prints_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    assert run(parser.parse_args(["--steps", "4", "--waiting", "30"])) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all("µs/sequence/step" in line for line in lines)
