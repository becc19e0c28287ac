"""The words of the command line: verbs with their options, and the values of those that have a few."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.argument_parser import ArgumentParser

__all__ = ["OptionWords", "VerbWords", "command_words"]


@dataclass(frozen=True, slots=True)
class OptionWords:
    flags: tuple[str, ...]
    takes_value: bool
    values: tuple[str, ...]
    """The only ones, if they are few."""
    help: str


@dataclass(frozen=True, slots=True)
class VerbWords:
    path: tuple[str, ...]
    """The verb, with what stands behind it: `bench`, `serve`."""
    help: str
    options: tuple[OptionWords, ...]
    words: tuple[str, ...]
    """For arguments that are no options: verbs below this one, or models of the catalogue."""


def command_words() -> list[VerbWords]:
    """Every verb; one with verbs below it stands before them. Imports what the verbs import."""
    from headrace.bench.dispatch import VERBS as BENCH_VERBS
    from headrace.cli.main import VERBS

    found: list[VerbWords] = []
    for verb, (module, text) in VERBS.items():
        if verb == "bench":
            found.append(VerbWords((verb,), text, (), tuple(BENCH_VERBS)))
            for name, (inner, about) in BENCH_VERBS.items():
                found.extend(_of_module((verb, name), inner, about))
        else:
            found.extend(_of_module((verb,), module, text))
    return found


def _of_module(path: tuple[str, ...], module: str, text: str) -> Iterator[VerbWords]:
    parser = ArgumentParser(prog="headrace " + " ".join(path))
    try:
        importlib.import_module(module).configure(parser)
    except ImportError:  # Of an extra that is not installed.
        return
    yield from _of_parser(path, parser, text)


def _of_parser(path: tuple[str, ...], parser: argparse.ArgumentParser, text: str) -> Iterator[VerbWords]:
    below: dict[str, argparse.ArgumentParser] = {}
    options, words = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below.update(action.choices)
            words += list(action.choices)
        elif action.option_strings:
            options.append(_option(action))
        else:
            words += _values(action) or _models(action)
    yield VerbWords(path, text, tuple(options), tuple(words))
    for name, inner in below.items():
        yield from _of_parser((*path, name), inner, inner.description or "")


def _option(action: argparse.Action) -> OptionWords:
    text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help).replace("%%", "%")
    return OptionWords(tuple(action.option_strings), action.nargs != 0, tuple(_values(action)), text)


def _values(action: argparse.Action) -> list[str]:
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    # Options of the configuration show the values of a literal in braces.
    shown = action.metavar if isinstance(action.metavar, str) else ""
    return shown[1:-1].split(",") if shown.startswith("{") else []


def _models(action: argparse.Action) -> list[str]:
    if action.dest not in ("model", "models", "name", "names"):
        return []
    from headrace.hub.catalogue import CATALOGUE

    return list(CATALOGUE)
