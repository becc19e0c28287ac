"""Every test of this folder runs kernels by interpreter; the compiler's tests start processes of their own."""

from __future__ import annotations

import importlib.util

import pytest
from triton_interpret import interpreted

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    interpreted()
