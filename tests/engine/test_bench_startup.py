"""`headrace bench startup` on a tiny model, and its error for a server that does not start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench.dispatch import main
from headrace.errors import EngineDead


def test_starts_with_and_without_the_cache_are_measured(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    monkeypatch.setattr("headrace.bench.verb_startup._SAVED", 0.0)
    out, page = tmp_path / "figures", tmp_path / "page"
    arguments = ["startup", str(tiny_llama), "--runs", "1", "--options=--threads 1 --max-num-seqs 2"]
    assert main([*arguments, "--json", str(out), "--html", str(page)]) == 0
    assert "gain from cached weights" in capsys.readouterr().out
    report = json.loads(out.read_text())
    assert report["ratios"].keys() == {"port open", "first token", "the end, of processors"}
    assert page.read_text().count("<rect") == 6
    assert min(report["peak_bytes"].values()) > 50e6
    assert report["packed_bytes"] == 0, "a tiny model is packed as fast as it is read"
    found = report["seconds"]
    assert list(found) == ["with", "without"]
    for parts in found.values():
        assert 0 < parts["port open"][0] < parts["first token"][0]
        assert parts["the end, of processors"][0] > 0


def test_a_server_that_cannot_start_reports_why(tmp_path: Path) -> None:
    with pytest.raises(EngineDead, match=r"never ready: error: .*nowhere"):
        main(["startup", str(tmp_path / "nowhere")])
