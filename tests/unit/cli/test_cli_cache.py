"""`headrace cache`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from headrace.checkpoints.packed.file import write
from headrace.cli.main import main


def test_listing_and_clearing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"0 models, 0.0 MB in {tmp_path}/packed\n"
    (tmp_path / "packed").mkdir()
    about = {"model": "m.gguf", "form": "cpu int8", "quantize": "int4"}
    write(tmp_path / "packed" / "a.packed", "a", about, {}, [torch.zeros(300_000)])
    write(tmp_path / "packed" / "c.packed", "c", {**about, "part": "rank 1 of 2"}, {}, [torch.zeros(25_000)])
    (tmp_path / "packed" / "b.packed").write_bytes(b"?")
    assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("3 models, 1.3 MB in ")
    assert "1.2 MB  m.gguf (cpu int8), quantised to int4\n" in shown
    assert "0.1 MB  m.gguf (cpu int8), rank 1 of 2, quantised to int4\n" in shown
    assert "b.packed, which cannot be read\n" in shown
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out == f"1.3 MB freed: 3 models in {tmp_path}/packed\n"
    assert list((tmp_path / "packed").iterdir()) == []
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out == f"0.0 MB freed: 0 models in {tmp_path}/packed\n"


def test_unfinished_files_of_ended_writers_are_cleared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    (tmp_path / "packed").mkdir()
    abandoned, new = tmp_path / "packed" / ".a.tmp", tmp_path / "packed" / ".b.tmp"
    for file in (abandoned, new):
        file.write_bytes(b"?")
    os.utime(abandoned, (50, 50))
    assert main(["cache", "--clear"]) == 0
    assert list((tmp_path / "packed").iterdir()) == [new]
