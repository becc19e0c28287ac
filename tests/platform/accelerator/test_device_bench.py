"""The benchmark that device-only tests run, on the platform that is always here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from device_bench import bench_offline, random_model


def test_measurements_are_stored_by_platform_and_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(tmp_path / "model", monkeypatch)
    found = bench_offline("cpu", "float32", model, tmp_path / "reports")
    (path,) = (tmp_path / "reports").iterdir()
    assert (path.name, json.loads(path.read_text())) == ("cpu-float32.json", found)
    assert (found["facts"]["platform"], found["facts"]["dtype"]) == ("cpu", "float32")
    assert [run["summary"]["requests"] for run in found["runs"]] == [4, 4]
    assert all(run["summary"]["errors"] == 0 for run in found["runs"])
