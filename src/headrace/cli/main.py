"""`headrace`: finds the verb, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

from headrace import __version__
from headrace.argument_parser import USER_FAULT, ArgumentParser
from headrace.errors import HeadraceError, cut

__all__ = ["VERBS", "main"]

VERBS = {
    "serve": ("headrace.cli.serve", "answer OpenAI's API over HTTP"),
    "generate": ("headrace.cli.generate", "continue a text"),
    "chat": ("headrace.cli.chat", "talk with a model in the terminal"),
    "models": ("headrace.cli.models", "the catalogue, and what of it is here"),
    "pull": ("headrace.cli.pull", "fetch a model of the catalogue"),
    "cache": ("headrace.cli.cache", "what is kept of packed weights, and how to be rid of it"),
    "doctor": ("headrace.cli.doctor", "what this machine can run, and why not more"),
    "conformance": ("headrace.cli.conformance", "test a platform against the contract"),
    "plugin": ("headrace.cli.plugin_new", "write the skeleton of a platform of your own"),
    "bench": ("headrace.bench.cli", "measure a server, this process, or this machine"),
}
_INTERRUPTED = 130
_PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 2 for an error that has been told, 130 for Ctrl-C. `--help` and wrong options raise SystemExit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except HeadraceError as error:
        print(f"error: {_one_line(error)}", file=sys.stderr)
        return USER_FAULT
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Who read us has gone; what Python still wants to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except OSError as error:
        # Of a path that the user gave, or of the machine: nothing of ours is at fault.
        where = "" if error.filename is None else f"{cut(str(error.filename))}: "
        print(f"error: {where}{error.strerror or _one_line(error)}", file=sys.stderr)
        return USER_FAULT


def _run(arguments: list[str]) -> int:
    listing = "\n".join(f"  {verb:<13}{text}" for verb, (_, text) in VERBS.items())
    parser = ArgumentParser(
        prog="headrace",
        usage="headrace VERB [OPTION ...]",
        description="Serve large language models on any hardware.",
        epilog=f"verbs:\n{listing}\n\n`headrace VERB --help` tells more of each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    parser.add_argument("verb", choices=list(VERBS), metavar="VERB", help=argparse.SUPPRESS)
    verb = parser.parse_args(arguments[:1]).verb
    module = importlib.import_module(VERBS[verb][0])
    if verb == "bench":
        measured: int = module.main(arguments[1:])
        return measured
    with contextlib.ExitStack() as stack:
        inner = ArgumentParser(prog=f"headrace {verb}", description=module.__doc__)
        if hasattr(module, "prepare") and not {"-h", "--help"} & set(arguments):
            inner.set_defaults(prepared=stack.enter_context(module.prepare()))
        module.configure(inner)
        result: int = module.run(inner.parse_args(arguments[1:]))
        return result


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
