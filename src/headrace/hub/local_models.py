"""The models on this machine: pulled ones of the catalogue, and repositories in the hub's cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ModelNotFound
from headrace.hub.catalogue import CATALOGUE, find_cached
from headrace.suggestions import did_you_mean

__all__ = ["LocalModel", "local_model", "local_models"]


@dataclass(frozen=True, slots=True)
class LocalModel:
    name: str
    size: int
    """Bytes."""
    path: Path
    is_shared: bool
    """In the hub's cache, which other programs use too."""
    remove: Callable[[], None]
    """Delete its files. Raises OSError."""


def local_models() -> list[LocalModel]:
    """All models, by name."""
    return sorted([*_pulled(), *_of_hub()], key=lambda model: model.name)


def local_model(name: str) -> LocalModel:
    """Raises ModelNotFound that says what is here."""
    models = {model.name: model for model in local_models()}
    if name not in models:
        here = f"the models here are {', '.join(models)}" if models else "there is no model here"
        raise ModelNotFound(f"no model {name!r} is on this machine: {here}{did_you_mean(name, models)}")
    return models[name]


def _pulled() -> list[LocalModel]:
    found = []
    for entry in CATALOGUE.values():
        path = find_cached(entry.name)
        if path is not None:
            # The folder stays: it holds the lock of other processes, and the terms that were accepted.
            found.append(LocalModel(entry.name, entry.size, path, False, path.unlink))
    return found


def _of_hub() -> list[LocalModel]:
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    return [
        LocalModel(repo.repo_id, repo.size_on_disk, repo.repo_path, True, _removal(repo.repo_path))
        for repo in repositories
        if repo.repo_type == "model"
    ]


def _removal(path: Path) -> Callable[[], None]:
    return lambda: shutil.rmtree(path)
