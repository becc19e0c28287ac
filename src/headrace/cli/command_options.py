"""What the options of a verb make: a `Config`, and sampling parameters."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.config import Config

__all__ = ["add_sampling_options", "build_config", "sampling"]


def add_sampling_options(parser: argparse.ArgumentParser, temperature: float, max_tokens: int) -> None:
    group = parser.add_argument_group("sampling")
    add = group.add_argument
    add("--max-tokens", type=int, default=max_tokens, metavar="N", help=f"of an answer (default: {max_tokens})")
    add("--temperature", type=float, default=temperature, metavar="T", help=f"default: {temperature:g}; 0 is greedy")
    add("--top-p", type=float, default=1.0, metavar="P")
    add("--top-k", type=int, default=0, metavar="K")
    add("--min-p", type=float, default=0.0, metavar="P")
    add("--seed", type=int, default=None, metavar="N")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given again")


def sampling(args: argparse.Namespace) -> dict[str, Any]:
    """Named as OpenAI's API and `SamplingParams` name them."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed")
    return {name: getattr(args, name) for name in names} | {"stop": tuple(args.stop)}


def build_config(args: argparse.Namespace) -> Config:
    """What the user gave over the defaults, the key from the environment too. Raises ConfigError naming the option."""
    from headrace.config import read_environment
    from headrace.options import ENGINE, SERVER, make_config

    given = {name: getattr(args, name) for name in (*ENGINE, *SERVER) if hasattr(args, name)}
    key = read_environment().api_key
    if key is not None:
        given.setdefault("api_key", key)
    return make_config(args.model, given, flags=True)
