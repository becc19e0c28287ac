"""Builds a `Config` and sampling parameters from the options of a verb."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.config import Config

__all__ = ["CHAT_TEMPERATURE", "add_sampling_options", "build_config", "positive", "sampling", "with_whitespace"]

CHAT_TEMPERATURE = 0.7
"""Of a chat with a model in this process, if neither the user nor the checkpoint states one."""
_WHITESPACE = "compact"
"""Between the parts of JSON, if the user does not say: a model may otherwise write blank lines to its last token."""


def positive(text: str) -> int:
    """A whole number above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def add_sampling_options(parser: argparse.ArgumentParser, temperature: float | None, max_tokens: int) -> None:
    """`temperature`: the default; None: the model's, or that of a chat."""
    group = parser.add_argument_group("sampling")
    add = group.add_argument
    add(
        "--max-tokens",
        type=positive,
        default=max_tokens,
        metavar="N",
        help=f"tokens of an answer (default: {max_tokens})",
    )
    model = "the model's, else "
    usual = f"{model}{CHAT_TEMPERATURE:g}" if temperature is None else f"{temperature:g}"
    add("--temperature", type=float, default=temperature, metavar="T", help=f"0 is greedy (default: {usual})")
    share = "keep the most likely tokens that make up this share"
    add("--top-p", type=float, metavar="P", help=f"{share} (default: {model}1, all)")
    add("--top-k", type=int, metavar="K", help=f"keep so many of the most likely tokens (default: {model}0, all)")
    least = "keep tokens with at least this share of the likeliest one's probability"
    add("--min-p", type=float, metavar="P", help=f"{least} (default: {model}0)")
    add("--seed", type=int, metavar="N", help="of the random draws (default: another each time)")
    add("--stop", action="append", metavar="TEXT", help="end before this text; may be given again (default: none)")
    title = "form of the answer, one of these (default: any text)"
    forms = parser.add_argument_group(title)
    form = forms.add_mutually_exclusive_group()
    form.add_argument("--json-schema", metavar="FILE", help="JSON that fits the schema in this file")
    form.add_argument("--regex", metavar="EXPRESSION", help="a text that matches completely")
    form.add_argument("--choice", action="append", metavar="TEXT", help="one of these texts; may be given again")
    forms.add_argument(
        "--whitespace",
        choices=("compact", "flexible"),
        help="between the parts of the JSON of --json-schema: none, or up to 32 characters as the model likes "
        f"(default: {_WHITESPACE})",
    )


def sampling(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters that were given, by the names of OpenAI's API and `SamplingParams`, and `max_tokens`.
    Raises ConfigError for a schema that cannot be read, and for options that do not go together."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.stop:
        given["stop"] = tuple(args.stop)
    if form := _form(args):
        given["structured_outputs"] = form
    return given


def _form(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `structured_outputs` that were given, if any."""
    if args.json_schema is not None:
        asked = {} if args.whitespace is None else {"whitespace": args.whitespace}
        return {"json": _read_schema(args.json_schema), **asked}
    if args.whitespace is not None:
        raise ConfigError(f"--whitespace {args.whitespace}: it goes with --json-schema: give a schema, or leave it out")
    return {name: value for name in ("regex", "choice") if (value := getattr(args, name)) is not None}


def with_whitespace(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters with the form of JSON that holds if the user has asked for none: for engines of ours, since others
    may not know the field."""
    form = params.get("structured_outputs")
    if not form or "json" not in form:
        return params
    return {**params, "structured_outputs": {"whitespace": _WHITESPACE, **form}}


def _read_schema(path: str) -> dict[str, Any]:
    try:
        schema = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"--json-schema {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--json-schema {path}: is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise ConfigError(f"--json-schema {path}: a schema is an object, not {type(schema).__name__}")
    return schema


def build_config(args: argparse.Namespace) -> Config:
    """The configuration: the user's options, the API key from the environment, and defaults. Raises ConfigError that
    names the option."""
    from headrace.environment import read_environment
    from headrace.options import ENGINE, SERVER, make_config

    given = {name: getattr(args, name) for name in (*ENGINE, *SERVER) if hasattr(args, name)}
    key = read_environment().api_key
    if key is not None:
        given.setdefault("api_key", key)
    return make_config(args.model, given, flags=True)
