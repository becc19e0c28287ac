"""Run the conformance kit on a platform: 0 when all that it declares holds, 1 when something fails."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from headrace.conformance.options import configure
from headrace.errors import ConfigError

__all__ = ["configure", "run"]


def run(args: argparse.Namespace) -> int:
    if find_spec("pytest") is None:
        raise ConfigError("the conformance kit runs on pytest, which is not installed: pip install pytest")
    from headrace.conformance.runner import report_on

    return report_on(args)
