"""The command `headrace`: finds the verb, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from headrace.cli.signals import exit_on_signals
from headrace.cli.starting_line import starting_line

__all__ = ["VERBS", "main"]

VERBS = {
    "serve": ("headrace.cli.serve_command", "serve a model with OpenAI's API over HTTP"),
    "generate": ("headrace.cli.generate_command", "continue a text"),
    "chat": ("headrace.cli.chat_command", "chat with a model in the terminal"),
    "route": ("headrace.cli.route_command", "one endpoint before several engines"),
    "status": ("headrace.cli.status_command", "show the engines behind a router or a server"),
    "simulate": ("headrace.cli.simulate_command", "compare ways to place requests over simulated engines"),
    "run": ("headrace.cli.run_command", "ask a model one question; without one, chat with it"),
    "top": ("headrace.cli.top_command", "watch a running server"),
    "run-batch": ("headrace.cli.run_batch_command", "answer a file of requests"),
    "program": ("headrace.cli.program_command", "compile, check, draw and run programs of headrace.lang"),
    "train-drafter": ("headrace.cli.train_command", "train a head that drafts for a model"),
    "models": ("headrace.cli.models_command", "list the catalogue, and which models are here"),
    "pull": ("headrace.cli.pull_command", "fetch a model of the catalogue"),
    "list": ("headrace.cli.list_command", "list the models that are on this machine"),
    "rm": ("headrace.cli.rm_command", "remove a model from this machine"),
    "ps": ("headrace.cli.ps_command", "list the servers that run on this machine"),
    "cache": ("headrace.cli.cache_command", "show or clear the cache of packed weights"),
    "doctor": ("headrace.cli.doctor_command", "show what this machine can run, and why not more"),
    "conformance": ("headrace.cli.conformance_command", "test a platform against the contract"),
    "plugin": ("headrace.cli.plugin_command", "write the skeleton of a new platform"),
    "bench": ("headrace.bench.dispatch", "measure a server, this process, or this machine"),
    "completion": ("headrace.cli.completion_command", "print a script that completes words in a shell"),
}
_SLOW = frozenset({"serve", "chat", "run", "generate", "run-batch"})
"""Verbs whose imports and first work take longer than a person likes to wait for a sign of life."""
_USER_FAULT = 2
_INTERRUPTED = 130
_PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 2 for an error that has been shown, 130 for Ctrl-C. `--help` and wrong options raise
    SystemExit.

    Without `argv` this process is the command: it uses the process's arguments, repairs its standard streams, and lets
    signals end it.
    """
    if argv is None:
        _set_up_process()
    from headrace.errors import HeadraceError

    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except HeadraceError as error:
        return _report(_one_line(error))
    except MemoryError as error:
        return _report(f"out of memory: {error}".rstrip(": "))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe; what Python still flushes goes to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except OSError as error:
        return _report_system_error(error)


def _set_up_process() -> None:
    # First, before most imports: until then, Ctrl-C prints a traceback.
    exit_on_signals()
    from headrace.streams import open_missing_streams

    open_missing_streams(needs_stdout=True)
    # A character that the terminal's encoding lacks must not end the command.
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def _check_working_directory() -> None:
    """Raise ConfigError if the working directory doesn't exist: libraries would end the process with a misleading
    message."""
    from headrace.errors import ConfigError

    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(
            f"the working directory no longer exists ({error.strerror}): change to one that exists"
        ) from None


def _report_system_error(error: OSError) -> int:
    """Report an error of a path that the user gave, or of the machine."""
    if error.errno == errno.EBADF and error.filename is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _report("nothing can be written: standard output is closed")
    from headrace.errors import truncate

    where = "" if error.filename is None else f"{truncate(str(error.filename))}: "
    return _report(f"{where}{error.strerror or _one_line(error)}")


def _report(text: str) -> int:
    import contextlib

    with contextlib.suppress(OSError):  # stderr is closed.
        print(f"error: {text}", file=sys.stderr)
    return _USER_FAULT


def _run(arguments: list[str]) -> int:
    try:
        return _verb(arguments)
    finally:
        # Flushed here, since `main` handles a closed pipe.
        sys.stdout.flush()


def _verb(arguments: list[str]) -> int:
    import argparse
    import contextlib
    import importlib

    from headrace import __version__
    from headrace.argument_parser import ArgumentParser

    listing = "\n".join(f"  {verb:<15}{text}" for verb, (_, text) in VERBS.items())
    parser = ArgumentParser(
        prog="headrace",
        usage="headrace VERB [OPTION ...]",
        description="Serve large language models on any hardware.",
        epilog=f"verbs:\n{listing}\n\n`headrace VERB --help` describes a verb.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"headrace {__version__}")
    parser.add_argument("verb", choices=list(VERBS), metavar="VERB", help=argparse.SUPPRESS)
    verb = parser.parse_args(arguments[:1]).verb
    _check_working_directory()
    shown = verb in _SLOW and not {"-h", "--help"} & set(arguments)
    with starting_line("starting ...") if shown else contextlib.nullcontext():
        module = importlib.import_module(VERBS[verb][0])
    if verb == "bench":
        measured: int = module.main(arguments[1:])
        return measured
    with contextlib.ExitStack() as stack:
        inner = ArgumentParser(prog=f"headrace {verb}", description=module.__doc__)
        if hasattr(module, "prepare") and not {"-h", "--help"} & set(arguments):
            inner.set_defaults(prepared=stack.enter_context(module.prepare()))
        with starting_line("starting ...") if shown else contextlib.nullcontext():
            module.configure(inner)
        result: int = module.run(inner.parse_args(arguments[1:]))
        return result


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
