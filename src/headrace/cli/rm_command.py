"""Remove models from this machine: pulled ones, and ones in the cache of the Hugging Face hub."""

from __future__ import annotations

import argparse
import sys

from headrace.errors import ConfigError

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="a model, as `headrace list` names it")
    parser.add_argument(
        "--yes", action="store_true", help="do not ask before a model that other programs may use is removed"
    )


def run(args: argparse.Namespace) -> int:
    from headrace.hub.local_models import local_model

    for model in [local_model(name) for name in dict.fromkeys(args.names)]:
        if model.is_shared and not args.yes:
            _confirm(model.name)
        model.remove()
        print(f"removed {model.name} ({model.size / 1e6:.0f} MB)")
    print(
        "Weights that were packed for this machine's devices, if any, are still on the disk: `headrace cache` shows "
        "them, `headrace cache --clear` removes them.",
        file=sys.stderr,
    )
    return 0


def _confirm(name: str) -> None:
    shared = f"{name} is in the cache of the Hugging Face hub, so other programs may use it, too"
    if not sys.stdin.isatty():
        raise ConfigError(f"{shared}: give --yes to remove it")
    print(f"{shared}. Remove it? [y/N] ", end="", file=sys.stderr)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError(f"{name} was not removed")
