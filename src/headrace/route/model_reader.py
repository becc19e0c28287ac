"""Which files the prompts of a model are read with: an update gives it others under its name, at another path or in
place."""

from __future__ import annotations

import os
from collections.abc import Mapping

from headrace.route.fleet import Fleet
from headrace.route.prompt_client import PromptClient, files_of
from headrace.route.replica import Facts
from headrace.tokenization.prompt_files import prompt_files_id

__all__ = ["keep_reader"]


def keep_reader(fleet: Fleet, model: str, tokenizers: Mapping[str, str]) -> None:
    """Start what reads a model's prompts; another one, if its engines have other files now. `tokenizers`: folders by
    model, for those that the engines' own paths do not lead to."""
    facts = [one.facts for one in fleet.replicas if one.facts is not None and one.facts.model == model]
    wanted = _newest([one for one in facts if one.path])
    if wanted is None:
        return
    path, reader = tokenizers.get(model, wanted.path), fleet.readers.get(model)
    if reader is not None:
        found = files_of(path)
        # Files that are gone give no better reader, and neither do others than those of the engines.
        if reader.path == path and (not found or reader.files == found or _are_others(wanted, path)):
            return
        reader.close()
    fleet.readers[model] = PromptClient(path, model, wanted.max_model_len)


def _are_others(facts: Facts, path: str) -> bool:
    """The engine has loaded other files than those that are there now: an update in place has begun, and its engines
    come later."""
    return path == facts.path and facts.files not in ("", prompt_files_id(path))


def _newest(facts: list[Facts]) -> Facts | None:
    """Of the engine that was added last; of those whose files are on this machine, too, if there are such."""
    # Not of `Path`: that raises for a folder of another user, which may well be a path of another machine.
    here = [one for one in facts if os.path.exists(one.path)]
    return next(reversed(here or facts), None)
