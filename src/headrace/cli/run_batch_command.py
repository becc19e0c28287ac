"""Answer a file of requests: `headrace run-batch INPUT OUTPUT`, both in the form of OpenAI's batches, a line of JSON
for each request."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.arguments import add_engine_options
from headrace.cli.command_options import build_config
from headrace.cli.logs import set_up_logging
from headrace.cli.model_fetch import fetch_model
from headrace.errors import ConfigError
from headrace.wording import counted

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="INPUT", help="lines with custom_id, method, url and body")
    parser.add_argument("output", metavar="OUTPUT", help="gets a line for each of the input, in any order")
    parser.add_argument("--model", default="smollm2", help="a directory, a .gguf file or a name (default: smollm2)")
    parser.add_argument("--resume", action="store_true", help="keep the answers that are in OUTPUT, add the others")
    parser.add_argument("--accept-terms", action="store_true", help="accept the terms of a model that has some")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    config = build_config(args)
    set_up_logging(quiet=True)
    source = Path(args.input)
    if not source.is_file():
        raise ConfigError(f"{source} is no file: give the INPUT of the batch")
    path = fetch_model(args.model, args.accept_terms)
    # Late: the server imports FastAPI, and a wrong option should be reported before that.
    from headrace.hub.model_reference import display_name
    from headrace.server.batch_file import run_batch

    server = config.server.model_copy(update={"served_model_name": display_name(args.model)})
    config = config.model_copy(update={"server": server})
    totals = run_batch(config, path, source, Path(args.output), args.resume)
    there = f", {totals.earlier} were there" if totals.earlier else ""
    print(f"{counted(totals.answered, 'line')} answered, {totals.refused} refused{there}: {args.output}")
    return 0
