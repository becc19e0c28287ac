"""Fetch a model into the cache: a catalogue name, or org/name[@revision][:file.gguf] of a hub."""

from __future__ import annotations

import argparse

from headrace.cli.model_fetch import fetch_model
from headrace.errors import ModelNotFound
from headrace.suggestions import did_you_mean

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="see `headrace models`; or org/name")
    parser.add_argument("--accept-terms", action="store_true", help="accept the terms of a model that has some")


def run(args: argparse.Namespace) -> int:
    from headrace.hub.catalogue import CATALOGUE
    from headrace.hub.model_reference import parse_repository

    if args.name not in CATALOGUE and parse_repository(args.name) is None:
        raise ModelNotFound(
            f"{args.name!r} is neither in the catalogue nor org/name of a hub: choose one of {', '.join(CATALOGUE)}"
            + did_you_mean(args.name, CATALOGUE)
        )
    print(fetch_model(args.name, args.accept_terms))
    return 0
