"""Sources of answers: a model in this process, or a running server. Both stream text."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import ModuleType
from typing import Any, Protocol

from headrace.arguments import add_engine_options, engine_options
from headrace.cli.pieces import Pieces

__all__ = ["TextSource", "add_source_options", "cut_form", "make_source", "open_source", "warn_if_cut"]


class TextSource(Protocol):
    """Generates text. Closing an answer before its end aborts the request. Errors of the engine or the server are
    HeadraceErrors."""

    is_remote: bool
    """A server, which may come back after an error."""

    @property
    def header(self) -> str:
        """The model and where it runs, on one line."""

    @property
    def tokens(self) -> int | None:
        """Tokens of the last answer so far; None if they are not known."""

    @property
    def finish_reason(self) -> str | None:
        """Why the last answer ended, as OpenAI's API says it; None if it is not known."""

    def models(self) -> Sequence[str]:
        """Names that could be asked for instead; empty if that is for others to know."""

    def complete(self, prompt: str, params: Mapping[str, Any]) -> Pieces: ...

    def chat(self, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> Pieces: ...

    def close(self) -> None: ...


def cut_form(source: TextSource, params: Mapping[str, Any]) -> str | None:
    """A remark if the last answer was to have a form (`--json-schema`, `--regex`, `--choice`) and was cut off before it
    was complete."""
    if "structured_outputs" not in params or source.finish_reason != "length":
        return None
    return "the answer was cut off before its form was complete: raise --max-tokens, or shorten the prompt"


def warn_if_cut(source: TextSource, params: Mapping[str, Any]) -> None:
    """Print the remark of `cut_form`, if there is one, to standard error."""
    if remark := cut_form(source, params):
        print(f"warning: {remark}", file=sys.stderr)


def add_source_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", metavar="URL", help="use a running server, as http://127.0.0.1:8000 (default: load MODEL here)"
    )
    parser.add_argument("--api-key", metavar="KEY", help="API key for --url (default: HEADRACE_API_KEY)")
    parser.add_argument("--accept-terms", action="store_true", help="accept the terms of a model that has some")
    add_engine_options(parser)


def make_source(args: argparse.Namespace, model: str | None) -> TextSource:
    """The server of `--url`; without it, `model` (or the default model) loaded in this process."""
    if args.url is not None:
        from headrace.cli.remote_source import RemoteSource
        from headrace.environment import read_environment

        return RemoteSource(args.url, model, (args.api_key or read_environment().api_key or "").strip() or None)
    from headrace.cli.model_fetch import fetch_model
    from headrace.progress import loading_bar

    name = "smollm2" if model is None else model
    path = fetch_model(name, args.accept_terms)
    with loading_bar() as progress:
        local: Any = _import("headrace.cli.local_source")
        source: TextSource = local.LocalSource(path, engine_options(args), progress, name)
        return source


def _import(name: str) -> ModuleType:
    """Import a module on another thread: an interrupt in the middle of torch's import would leave it unusable."""
    done: Future[ModuleType] = Future()

    def work() -> None:
        try:
            done.set_result(importlib.import_module(name))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name="imports", daemon=True).start()
    return done.result()


@contextlib.contextmanager
def open_source(args: argparse.Namespace, model: str | None) -> Iterator[TextSource]:
    """`make_source` as a context that closes it."""
    with contextlib.closing(make_source(args, model)) as source:
        yield source
