"""List the models that are on this machine: those of the catalogue that were pulled, and those of the hub's cache."""

from __future__ import annotations

import argparse
import json
import sys

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def run(args: argparse.Namespace) -> int:
    from headrace.hub.local_models import local_models

    models = local_models()
    if args.json:
        print(json.dumps([{"name": one.name, "size": one.size, "path": str(one.path)} for one in models], indent=2))
        return 0
    if not models:
        print("no model is here yet: `headrace models` lists the catalogue, `headrace pull` fetches", file=sys.stderr)
    width = max((len(one.name) for one in models), default=0)
    for one in models:
        print(f"{one.name:<{width}}  {one.size / 1e6:>8.0f} MB  {one.path}")
    return 0
