"""Fetches a model for a verb: shows the terms, asks for consent, and shows progress."""

from __future__ import annotations

import sys
from pathlib import Path

from headrace.progress import fetching_bar

__all__ = ["fetch_model"]


def fetch_model(name_or_path: str, accept_terms: bool = False) -> Path:
    """The model's path; the model is fetched on first use. Raises as `catalogue.resolve_model` does, and ConfigError if
    the terms are not accepted."""
    from headrace.hub.catalogue import CATALOGUE, find_cached, pull, resolve_model, terms_of

    if name_or_path not in CATALOGUE:
        with fetching_bar() as progress:
            return resolve_model(name_or_path, progress)
    terms = terms_of(name_or_path)
    found = find_cached(name_or_path)
    if found is not None and terms is None:
        return found
    if terms is not None:
        accept_terms = _accepted(name_or_path, terms, accept_terms)
    with fetching_bar() as progress:
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
