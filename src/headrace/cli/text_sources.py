"""Sources of answers: a model in this process, or a running server. Both stream text."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from headrace.arguments import add_engine_options, engine_options
from headrace.cli.pieces import Pieces

__all__ = ["TextSource", "add_source_options", "open_source"]


class TextSource(Protocol):
    """Generates text. Closing an answer before its end aborts the request. Errors of the engine or the server are
    HeadraceErrors."""

    def complete(self, prompt: str, params: Mapping[str, Any]) -> Pieces: ...

    def chat(self, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> Pieces: ...

    def close(self) -> None: ...


def add_source_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", help="use a running server, as http://127.0.0.1:8000")
    parser.add_argument("--api-key", metavar="KEY", help="API key for --url; default: HEADRACE_API_KEY")
    parser.add_argument("--accept-terms", action="store_true", help="accept the terms of a model that has some")
    add_engine_options(parser)


@contextlib.contextmanager
def open_source(args: argparse.Namespace, model: str | None) -> Iterator[TextSource]:
    """The server of `--url`; without it, `model` (or the default model) loaded in this process."""
    source: TextSource
    if args.url is not None:
        from headrace.cli.remote_source import RemoteSource
        from headrace.environment import read_environment

        source = RemoteSource(args.url, model, (args.api_key or read_environment().api_key or "").strip() or None)
    else:
        from headrace.cli.local_source import LocalSource
        from headrace.cli.model_fetch import fetch_model

        name = "smollm2" if model is None else model
        source = LocalSource(fetch_model(name, args.accept_terms), engine_options(args))
    with contextlib.closing(source):
        yield source
