"""Continue a text: `headrace generate [MODEL] PROMPT`. Without a PROMPT, or with `-`, it is read from stdin."""

from __future__ import annotations

import argparse
import contextlib
import sys

from headrace.cli.command_options import add_sampling_options, sampling
from headrace.cli.logs import set_up_logging
from headrace.cli.text_sources import add_source_options, open_source, warn_if_cut
from headrace.errors import ConfigError

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="[MODEL] PROMPT", help="the model (default: smollm2) and the text")
    add_sampling_options(parser, temperature=0.0, max_tokens=128)
    add_source_options(parser)


def run(args: argparse.Namespace) -> int:
    model, prompt = _model_and_prompt(args.words)
    set_up_logging(quiet=True)
    params = sampling(args)
    with open_source(args, model) as source, contextlib.closing(source.complete(prompt, params)) as pieces:
        for piece in pieces:
            print(piece, end="", flush=True)
        print(flush=True)
        warn_if_cut(source, params)
    return 0


def _model_and_prompt(words: list[str]) -> tuple[str | None, str]:
    if len(words) > 2:
        raise ConfigError(f"{len(words)} words: give a MODEL and a PROMPT, with the prompt in quotation marks")
    model = words[0] if len(words) == 2 else None
    prompt = words[-1] if words else "-"
    if prompt != "-":
        return model, prompt
    if sys.stdin.isatty():
        raise ConfigError("give a PROMPT, or pipe one in")
    text = sys.stdin.read()
    if not text:
        raise ConfigError("there is no prompt: standard input is empty; give a PROMPT, or pipe one in")
    return model, text
