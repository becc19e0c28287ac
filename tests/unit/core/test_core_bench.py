"""The benchmark runs; its figures are not judged here."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from headrace.bench.verb_scheduler import configure, decode, queue, run


def test_measurements_are_positive() -> None:
    for figure in (
        decode(2, 8, prompt=16),
        decode(2, 8, prompt=16, ahead=False),
        queue(20, running=4, prompt=16, output=4),
    ):
        assert figure.steps > 0
        assert figure.per_sequence > 0
        assert figure.per_step > 0


def test_the_verb_reports_a_row_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    configure(parser)
    out, page = tmp_path / "figures", tmp_path / "page"
    options = ["--steps", "4", "--waiting", "30", "--json", str(out), "--html", str(page)]
    assert run(parser.parse_args(options)) == 0
    assert "µs/sequence/step" in capsys.readouterr().out
    names = [one["name"] for one in json.loads(out.read_text())["figures"]]
    assert names == ["decode, 16 running", "decode, 64 running", "30 waiting, 64 slots"]
    assert page.read_text().count("<rect") == 3
