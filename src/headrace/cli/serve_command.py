"""Serve one or several models with OpenAI's API over HTTP. Ctrl-C or SIGTERM drains: running requests finish, new ones
get 503."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable

from headrace.arguments import add_engine_options, add_server_options
from headrace.cli.logs import set_up_logging
from headrace.cli.model_fetch import fetch_model
from headrace.cli.served_models import ServedModels, read_served
from headrace.engine.launch import EngineProcessHandle, launch
from headrace.errors import ConfigError, HeadraceError
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
        return _dry_run(args, served)
    set_up_logging()
    if served.config.server.log_format == "json":
        from headrace.log_format import use_json

        use_json()
    _check_replicas(args, served)
    plans = served.plans(
        lambda name: fetch_model(name, args.accept_terms),
        lambda name, is_model: resolve_drafter(name, is_model, lambda text: fetch_model(text, args.accept_terms)),
    )
    if served.config.scale.grouped:
        from headrace.cli.replica_serving import serve_replicas

        args.prepared.discard()  # Each replica starts one of its own.
        return serve_replicas(plans[0].config, plans[0].path)
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


def _check_replicas(args: argparse.Namespace, served: ServedModels) -> None:
    """Raises ConfigError for options that do not go with several engines of one model."""
    scale = served.config.scale
    idle = scale.without_effect()
    if idle is not None:
        raise ConfigError(idle)
    if not scale.grouped:
        return
    if args.prompt is not None:
        raise ConfigError(f"--prompt cannot be combined with {scale.why_grouped}: leave one of them out")
    if served.pooled_by is not None:
        raise ConfigError(
            f"{scale.why_grouped} is for one model that stays loaded: leave it out, or {served.pooled_by}"
        )
    from headrace.cli.replica_serving import check_replicas

    check_replicas(served.config)


def _dry_run(args: argparse.Namespace, served: ServedModels) -> int:
    """Print what would happen with each model."""
    from headrace.cli.serve_plan import show_serve_plan

    faults = _fault(lambda: _check_replicas(args, served)) + _fault(lambda: _check_together(served))
    several = len(served.entries) > 1
    names = served.names
    return max(
        show_serve_plan(served.shown_config(entry), name if several else "", faults)
        for entry, name in zip(served.entries, names, strict=True)
    )


def _fault(check: Callable[[], None]) -> list[str]:
    """What is wrong, if anything."""
    from headrace.cli.serve_plan import one_line

    try:
        check()
    except HeadraceError as error:
        return [one_line(error)]
    return []


def _check_together(served: ServedModels) -> None:
    """Raises what finding the models on this machine raises, and ConfigError for models that do not go together."""
    from headrace.hub.catalogue import find_local, resolve_drafter

    plans = served.plans(find_local, lambda name, is_model: resolve_drafter(name, is_model, find_local))
    if not served.plain:
        from headrace.server.several import check_plans

        check_plans(served.config, plans)
