"""Run the conformance kit on a platform: exit code 0 if all checks pass, 1 if one fails."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from headrace.conformance.kit_options import configure
from headrace.errors import ConfigError

__all__ = ["configure", "run"]


def run(args: argparse.Namespace) -> int:
    missing = [name for name in ("pytest", "hypothesis") if find_spec(name) is None]
    if missing:
        what = " and ".join(missing)
        raise ConfigError(f"the conformance kit needs {what}, not installed here: pip install {' '.join(missing)}")
    from headrace.conformance.kit_runner import report_on

    return report_on(args)
