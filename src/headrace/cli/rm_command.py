"""Remove a model from this machine: one that was pulled, or a repository in the hub's cache."""

from __future__ import annotations

import argparse
import sys

from headrace.errors import ConfigError

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="see `headrace list`")
    parser.add_argument("--yes", action="store_true", help="do not ask before the hub's cache is changed")


def run(args: argparse.Namespace) -> int:
    from headrace.hub.local_models import local_model

    for model in [local_model(name) for name in args.names]:
        if model.is_shared and not args.yes:
            _confirm(model.name)
        model.remove()
        print(f"{model.name}: {model.size / 1e6:.0f} MB removed")
    print("packed weights stay for later starts: `headrace cache --clear` removes them", file=sys.stderr)
    return 0


def _confirm(name: str) -> None:
    if not sys.stdin.isatty():
        raise ConfigError(f"{name} is in the hub's cache, which other programs share: give --yes to remove it there")
    print(f"{name} is in the hub's cache, which other programs share. Remove it? [y/N] ", end="", file=sys.stderr)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError(f"{name} was not removed")
