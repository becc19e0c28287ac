"""Getting a model for a verb: shows the terms, asks, and shows how far the fetching is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

__all__ = ["ProgressLine", "obtain"]


def obtain(name_or_path: str, accept_terms: bool = False) -> Path:
    """The model's path, fetched on first use. Raises as `catalogue.resolve_model` does; ConfigError where terms are refused."""
    from headrace.hub.catalogue import CATALOGUE, find_cached, pull, resolve_model, terms_of

    if name_or_path not in CATALOGUE:
        return resolve_model(name_or_path)
    terms = terms_of(name_or_path)
    found = find_cached(name_or_path)
    if found is not None and terms is None:
        return found
    if terms is not None:
        accept_terms = _accepted(name_or_path, terms, accept_terms)
    with ProgressLine(sys.stderr) as progress:
        return pull(name_or_path, progress, accept_terms)


def _accepted(name: str, terms: str, accepted: bool) -> bool:
    from headrace.errors import ConfigError

    print(f"{name} comes under terms:\n\n{terms}\n", file=sys.stderr)
    if accepted:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(f"{name} comes under the terms above: accept them with `headrace pull {name} --accept-terms`")
    print("Do you accept them? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError(f"{name} is not used, since its terms were not accepted")
    return True


class ProgressLine:
    """One line that is written over on a terminal. Elsewhere what is fetched is named once, and nothing more."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._live = out.isatty()
        self._what = ""
        self._shown = ""

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        self._wipe()

    def __call__(self, what: str, done: int, total: int) -> None:
        """`catalogue.Progress`"""
        if not self._live and what != self._what:
            print(f"fetching {what}", file=self._out, flush=True)
        self._what = what
        size = f"{done / 1e6:7.1f} of {total / 1e6:.1f} MB {done / total:4.0%}" if total else ""
        self.show(f"fetching {what} {size}")

    def show(self, text: str) -> None:
        if self._live and text != self._shown:
            self._wipe()
            self._shown = text
            print(text, end="", file=self._out, flush=True)

    def _wipe(self) -> None:
        if self._shown:
            print("\r" + " " * len(self._shown) + "\r", end="", file=self._out, flush=True)
            self._shown = ""
