"""`headrace`: finds the verb, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from headrace.cli.signals import exit_on_signals

__all__ = ["VERBS", "main"]

VERBS = {
    "serve": ("headrace.cli.serve_command", "answer OpenAI's API over HTTP"),
    "generate": ("headrace.cli.generate_command", "continue a text"),
    "chat": ("headrace.cli.chat_command", "talk with a model in the terminal"),
    "models": ("headrace.cli.models_command", "the catalogue, and what of it is here"),
    "pull": ("headrace.cli.pull_command", "fetch a model of the catalogue"),
    "cache": ("headrace.cli.cache_command", "what is kept of packed weights, and how to be rid of it"),
    "doctor": ("headrace.cli.doctor_command", "what this machine can run, and why not more"),
    "conformance": ("headrace.cli.conformance_command", "test a platform against the contract"),
    "plugin": ("headrace.cli.plugin_command", "write the skeleton of a platform of your own"),
    "bench": ("headrace.bench.dispatch", "measure a server, this process, or this machine"),
}
_USER_FAULT = 2
_INTERRUPTED = 130
_PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 2 for an error that has been told, 130 for Ctrl-C. `--help` and wrong options raise SystemExit.

    Without `argv` this process is the command: its arguments are taken, its standard streams are mended, and signals end it.
    """
    if argv is None:
        _be_the_command()
    from headrace.errors import HeadraceError, cut

    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except HeadraceError as error:
        return _tell(_one_line(error))
    except MemoryError as error:
        return _tell(f"out of memory: {error}".rstrip(": "))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Who read us has gone; what Python still wants to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except OSError as error:
        # Of a path that the user gave, or of the machine: nothing of ours is at fault.
        where = "" if error.filename is None else f"{cut(str(error.filename))}: "
        return _tell(f"{where}{error.strerror or _one_line(error)}")


def _be_the_command() -> None:
    # First, while as little as can be has been imported: before this, Ctrl-C is a traceback.
    exit_on_signals()
    from headrace.streams import open_missing_streams

    open_missing_streams()
    # A text that the terminal's encoding lacks is no reason to end.
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def _check_working_directory() -> None:
    """Libraries end the process where it is gone, with a message about something else."""
    from headrace.errors import ConfigError

    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(f"the working directory is gone ({error.strerror}): change to one that exists") from None


def _tell(text: str) -> int:
    import contextlib

    with contextlib.suppress(OSError):  # Nobody reads.
        print(f"error: {text}", file=sys.stderr)
    return _USER_FAULT


def _run(arguments: list[str]) -> int:
    try:
        return _verb(arguments)
    finally:
        # Here, where a reader that has gone is no error.
        sys.stdout.flush()


def _verb(arguments: list[str]) -> int:
    import argparse
    import contextlib
    import importlib

    from headrace import __version__
    from headrace.argument_parser import ArgumentParser

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
    _check_working_directory()
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
