"""One endpoint before several engines: `headrace route URL ...`. A request goes where its prompt is cached, as far as
the load allows. Ctrl-C or SIGTERM drains."""

from __future__ import annotations

import argparse

from headrace.cli.logs import set_up_logging
from headrace.errors import ConfigError

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("urls", nargs="+", metavar="URL", help="an engine's address, as http://HOST:PORT")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8080, help="port to listen on; 0 takes a free one (default: 8080)")
    parser.add_argument("--api-key", help="key that every client must send; HEADRACE_API_KEY does the same")
    parser.add_argument("--api-keys-file", metavar="FILE", help="more keys, with names and limits (docs/server.md)")
    parser.add_argument("--engine-api-key", help="key of the engines (default: the same)")
    parser.add_argument(
        "--tokenizer",
        action="append",
        default=[],
        metavar="MODEL=PATH",
        help="the folder of a model's tokenizer, if this machine lacks the engine's own; may be given again",
    )
    parser.add_argument(
        "--health-interval", type=float, default=0.5, metavar="SECONDS", help="between two checks (default: 0.5)"
    )
    parser.add_argument(
        "--health-timeout",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="for the answer; two checks in a row without one eject an engine (default: 3)",
    )
    parser.add_argument(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="time for running requests after SIGTERM (default: 30)",
    )
    parser.add_argument(
        "--split",
        choices=("auto", "always", "never"),
        default="auto",
        help="let an engine of role prefill compute a prompt that another answers: where it is at least a tenth sooner "
        "(auto, the default), wherever 256 tokens or more are not cached (always), or never",
    )


def run(args: argparse.Namespace) -> int:
    set_up_logging()
    for name in ("health_interval", "health_timeout"):
        if getattr(args, name) <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be more than 0, got {getattr(args, name):g}")
    # Late: the server imports FastAPI, and a wrong option should be reported before that.
    from headrace.environment import read_environment
    from headrace.route.replica_watch import WatchTimes
    from headrace.route.router_run import RouterOptions, run_router

    return run_router(
        RouterOptions(
            args.urls,
            args.host,
            args.port,
            args.api_key or read_environment().api_key,
            args.api_keys_file,
            args.engine_api_key,
            args.drain_timeout,
            WatchTimes(args.health_interval, args.health_timeout),
            dict(map(_pair, args.tokenizer)),
            args.split,
        )
    )


def _pair(text: str) -> tuple[str, str]:
    model, sign, path = text.partition("=")
    if not sign or not model or not path:
        raise ConfigError(f"--tokenizer {text!r}: write it as MODEL=PATH")
    return model, path
