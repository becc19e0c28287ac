"""A pytest plugin: `--native-library PATH` has the CPU platform load that library instead of the installed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.platforms.cpu import native


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--native-library", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    path: Path = config.getoption("--native-library").resolve()
    native.find = lambda: path
