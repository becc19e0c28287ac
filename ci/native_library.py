"""A pytest plugin: `--native-library PATH` has the CPU platform load that library instead of the installed one.

`--emulated-amx-on ISA`: and from it emulated tiles, beside the kernels of ISA, and nothing else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.platforms.cpu import native


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--native-library", type=Path)
    parser.addoption("--emulated-amx-on")


def pytest_configure(config: pytest.Config) -> None:
    path: Path = config.getoption("--native-library").resolve()
    native.find = lambda: path
    base = config.getoption("--emulated-amx-on")
    if base:
        native.ISAS = ("amxemu",)
        native._LEVEL["amxemu"], native._UNDER["amxemu"] = native._LEVEL[base], base
