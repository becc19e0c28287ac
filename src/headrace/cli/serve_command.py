"""Serve one or several models with OpenAI's API over HTTP. Ctrl-C or SIGTERM drains: running requests finish, new ones
get 503."""

from __future__ import annotations

import argparse
import logging

from headrace.arguments import add_engine_options, add_server_options
from headrace.cli.logs import set_up_logging
from headrace.cli.model_fetch import fetch_model
from headrace.cli.served_models import ServedModels, read_served
from headrace.engine.launch import EngineProcessHandle, launch
from headrace.errors import ConfigError
from headrace.progress import loading_bar

__all__ = ["configure", "prepare", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a directory, a .gguf file or a name (see models); several are loaded when they are asked for "
        "(default: smollm2)",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="a .yaml or .toml file with options and models; flags go first"
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

    served = read_served(args)
    if args.dry_run:
        set_up_logging(quiet=True)
        return _dry_run(served)
    set_up_logging()
    if served.config.server.log_format == "json":
        from headrace.log_format import use_json

        use_json()
    plans = served.plans(
        lambda name: fetch_model(name, args.accept_terms),
        lambda name, is_model: resolve_drafter(name, is_model, lambda text: fetch_model(text, args.accept_terms)),
    )
    if args.replicas != 1:
        if args.replicas < 1:
            raise ConfigError(f"--replicas must be at least 1, got {args.replicas}")
        if args.prompt is not None:
            raise ConfigError("--prompt cannot be combined with --replicas: leave one of them out")
        if not served.plain:
            raise ConfigError("--replicas is for one model that stays loaded: leave it out, or the other models")
        from headrace.cli.replica_serving import serve_replicas

        return serve_replicas(plans[0].config, plans[0].path, args.replicas)
    loaded = [plan.name for plan in plans if plan.preload]
    if loaded:
        logging.getLogger(__name__).info("loading %s", ", ".join(loaded))
    with loading_bar() as progress:
        # Late: the server imports FastAPI, and a wrong option should be reported before that.
        from headrace import server

        if served.plain:
            (plan,) = plans
            return server.run(plan.config, plan.path, args.prompt, args.prepared, progress)
        return server.run_several(served.config, plans, args.prompt, args.prepared, progress)


def _dry_run(served: ServedModels) -> int:
    """Print what would happen with each model. Raises ConfigError for models that do not go together."""
    from headrace.cli.serve_plan import show_serve_plan
    from headrace.hub.catalogue import find_local

    code = max(show_serve_plan(served.config_of(entry)) for entry in served.entries)
    if code == 0 and not served.plain:
        from headrace.server.several import check_plans

        check_plans(served.config, served.plans(find_local, lambda name, is_model: find_local(name)))
    return code
