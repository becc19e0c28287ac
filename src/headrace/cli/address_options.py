"""The address of a server on the command line, as `URL` or as `--url URL`."""

from __future__ import annotations

import argparse

from headrace.errors import ConfigError

__all__ = ["add_address", "chosen_address"]

_DEFAULT = "http://127.0.0.1:8000"


def add_address(parser: argparse.ArgumentParser, what: str) -> None:
    """`what`: of what the address is, for the help."""
    parser.add_argument("url", nargs="?", metavar="URL", help=f"{what} (default: {_DEFAULT})")
    parser.add_argument("--url", dest="url_option", metavar="URL", help="the same, as other commands take it")


def chosen_address(args: argparse.Namespace) -> tuple[str, str]:
    """(The address that was given, or the default; the option that gave it, for messages: empty for an argument.)
    Raises ConfigError if it was given twice."""
    if args.url is not None and args.url_option is not None:
        raise ConfigError(f"give the address once: {args.url} or --url {args.url_option}")
    if args.url_option is not None:
        return args.url_option, "--url "
    return (_DEFAULT if args.url is None else args.url), ""
