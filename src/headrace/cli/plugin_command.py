"""Create a new backend: `headrace plugin new NAME` writes a distribution that can be installed and serves models."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from string import Template
from types import MappingProxyType

from headrace import __version__
from headrace.errors import ConfigError

__all__ = ["configure", "run", "write"]

_FILES: Mapping[str, str] = MappingProxyType(
    {
        "pyproject.toml": "pyproject.toml.in",
        "README.md": "README.md.in",
        "src/headrace_$name/__init__.py": "platform.py.in",
        "src/headrace_$name/device.py": "device.py.in",
        "src/headrace_$name/operators.py": "operators.py.in",
        "tests/test_conformance.py": "test_conformance.py.in",
    }
)
"""Path in the distribution → template beside this module."""


def configure(parser: argparse.ArgumentParser) -> None:
    new = parser.add_subparsers(dest="action", required=True, metavar="new").add_parser(
        "new",
        help="write the skeleton of a platform",
        description="Write headrace-NAME: a package, its tests, a README.",
    )
    new.add_argument(
        "name", metavar="NAME", help="name of the platform: lower-case letters, digits and _, a letter first"
    )
    new.add_argument("--dir", type=Path, default=Path(), metavar="DIR", help="parent folder (default: here)")


def run(args: argparse.Namespace) -> int:
    made = write(args.name, args.dir)
    print(f"wrote {made}\n\nnext:\n  pip install -e '{made}[test]'\n  headrace conformance {args.name}")
    return 0


def write(name: str, directory: Path) -> Path:
    """Write the new distribution; returns its folder, `directory`/headrace-`name`. Raises ConfigError for a name that
    cannot be used, a folder that exists already, and one that cannot be written."""
    _check(name)
    target = directory / f"headrace-{name}"
    values = {
        "name": name,
        "title": name.title().replace("_", ""),
        "version": __version__,
        "api_version": _api_version(),
    }
    try:
        target.mkdir(parents=True)
        for path, template in _FILES.items():
            file = target / Template(path).substitute(values)
            file.parent.mkdir(parents=True, exist_ok=True)
            text = (files("headrace.cli") / "skeleton" / template).read_text(encoding="utf-8")
            file.write_text(Template(text).substitute(values), encoding="utf-8")
    except FileExistsError as error:
        raise ConfigError(f"{error.filename} exists already: choose another name or --dir, or move it away") from error
    except OSError as error:
        raise ConfigError(f"{error.filename or target}: {error.strerror}: choose another --dir") from error
    return target


def _check(name: str) -> None:
    if not re.fullmatch(r"[a-z]([a-z0-9_]{0,30}[a-z0-9])?", name) or "__" in name:
        raise ConfigError(
            f"{name!r} cannot name a platform: use up to 32 lower-case letters, digits and single _, with a letter "
            "first and no _ at the end"
        )
    for point in entry_points(group="headrace.plugins"):
        if point.name == name:
            owner = point.dist.name if point.dist is not None else point.value
            raise ConfigError(f"the name {name!r} is taken by a plugin of {owner}: choose another")


def _api_version() -> str:
    from headrace.types import API_VERSION

    return repr(API_VERSION)
