"""Serve a model with OpenAI's API over HTTP. Ctrl-C or SIGTERM drains: running requests finish, new ones get 503."""

from __future__ import annotations

import argparse
import logging

from headrace.arguments import add_engine_options, add_server_options
from headrace.cli.command_options import build_config
from headrace.cli.logs import set_up_logging
from headrace.cli.model_fetch import fetch_model
from headrace.cli.replica_serving import serve_replicas
from headrace.engine.launch import EngineProcessHandle, launch
from headrace.errors import ConfigError
from headrace.progress import loading_bar

__all__ = ["configure", "prepare", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", default="smollm2", metavar="MODEL", help="a directory, a .gguf file or a name (see models)"
    )
    parser.add_argument("--prompt", metavar="TEXT", help="answer this in the terminal first, then go on serving")
    parser.add_argument(
        "--replicas", type=int, default=1, metavar="N", help="engines on this machine, behind one router (default: 1)"
    )
    parser.add_argument("--accept-terms", action="store_true", help="accept the terms of a model that has some")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print what would happen, without loading weights; exit with 2 if it would fail",
    )
    add_server_options(parser)
    add_engine_options(parser)


def prepare() -> EngineProcessHandle:
    """Start the engine's process, before the options are read: its imports take longer than everything that this
    process does until it is ready. The context ends a process that `run` did not take over."""
    return launch()


def run(args: argparse.Namespace) -> int:
    from headrace.hub.catalogue import resolve_drafter

    config = build_config(args)
    if args.dry_run:
        from headrace.cli.serve_plan import show_serve_plan

        set_up_logging(quiet=True)
        return show_serve_plan(config)
    set_up_logging()
    if config.server.log_format == "json":
        from headrace.log_format import use_json

        use_json()
    path = fetch_model(args.model, args.accept_terms)
    scheduler = config.scheduler.with_draft_model(
        lambda name, is_model: resolve_drafter(name, is_model, lambda text: fetch_model(text, args.accept_terms))
    )
    config = config.model_copy(update={"scheduler": scheduler})
    if args.replicas != 1:
        if args.replicas < 1:
            raise ConfigError(f"--replicas must be at least 1, got {args.replicas}")
        if args.prompt is not None:
            raise ConfigError("--prompt cannot be combined with --replicas: leave one of them out")
        return serve_replicas(config, path, args.replicas)
    logging.getLogger(__name__).info("loading %s", args.model)
    with loading_bar() as progress:
        # Late: the server imports FastAPI, and a wrong option should be reported before that.
        from headrace import server

        return server.run(config, path, args.prompt, args.prepared, progress)
