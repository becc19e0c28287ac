"""Fetch a model of the catalogue into the cache (HEADRACE_CACHE). Fetching one that is there does nothing."""

from __future__ import annotations

import argparse

from headrace.cli.obtain import obtain
from headrace.errors import ModelNotFound

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="see `headrace models`")
    parser.add_argument("--accept-terms", action="store_true", help="accept the terms of a model that has some")


def run(args: argparse.Namespace) -> int:
    from headrace.hub.catalogue import CATALOGUE

    if args.name not in CATALOGUE:
        raise ModelNotFound(f"{args.name!r} is not in the catalogue: choose one of {', '.join(CATALOGUE)}")
    print(obtain(args.name, args.accept_terms))
    return 0
