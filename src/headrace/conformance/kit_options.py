"""The options of `headrace conformance`. This module doesn't import pytest, so that `--help` works without it."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["configure"]


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("platform", metavar="NAME", help="a platform, as `headrace doctor` lists them")
    add("--index", type=int, default=0, metavar="N", help="which of its devices (default: 0)")
    add("--option", action="append", default=[], type=_option, metavar="NAME=VALUE", help="given to Platform.open")
    add("--examples", type=int, default=12, metavar="N", help="calls of each operator and type (default: 12)")
    add("--json", type=Path, metavar="FILE", help="write every outcome here")
    add("--junit", type=Path, metavar="FILE", help="write a report in JUnit's form here")
    add("--badge", type=Path, metavar="FILE", help="write the badge's text here")
    add("--verbose", action="store_true", help="show pytest's own output")


def _option(text: str) -> tuple[str, int | str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=VALUE")
    return name, int(value) if value.lstrip("-").isdigit() else value
