"""The cache of packed weights: one file per model, form and rank in the user's cache directory. The least recently used
file is evicted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.checkpoints.packed.content import Contents, checkpoint_files
from headrace.checkpoints.packed.file import Unsound, read, read_header, write
from headrace.checkpoints.packed.tree import Uncacheable, decode, encode
from headrace.config import Config
from headrace.environment import read_environment
from headrace.models import assemble, sharding
from headrace.models.sharding import WHOLE, Shard
from headrace.platforms.interface import PackedForms
from headrace.quant import column_split

__all__ = ["Kept", "PackedCache", "clear", "directory_of", "kept", "open_cache"]

_log = logging.getLogger(__name__)
_SUFFIX = ".packed"
_WORTH = 16 << 20
"""Smaller models are not cached: packing them is as fast as reading them. In bytes of packed weights."""
_ABANDONED = 3600.0
"""Seconds after which an unfinished file counts as abandoned."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One file of the cache."""

    path: Path
    size: int
    used: float
    """When it was last loaded or written; seconds since the epoch."""
    about: dict[str, Any]
    """`model`, `form`, `quantize` and, of one rank among several, `part`; empty for a file that cannot be read."""


class PackedCache:
    """The cache of one checkpoint in one form. `load` and `save` log faults of the cache and never raise for them."""

    def __init__(
        self,
        directory: Path,
        limit: int,
        model: Path,
        settings: dict[str, Any],
        forms: PackedForms,
        shard: Shard = WHOLE,
    ) -> None:
        """`settings`: everything except the files that the form of the weights depends on.

        `limit`: the bytes of all files together, for all ranks. `shard`: the part of the model.
        """
        self._directory, self._limit, self._forms, self._shard = directory, limit, forms, shard
        if shard.ranks > 1:
            settings = {**settings, "rank": shard.rank, "ranks": shard.size, "cut": _cutting()}
        if shard.stages > 1:
            settings |= {"stage": shard.stage, "stages": shard.stages}
        if shard.expert_parallel:
            settings = {**settings, "experts": "complete"}
        self._model, self._files = model, checkpoint_files(model)
        self._settings = {**settings, "form": forms.identity, "version": __version__}
        sizes = [[file.name, file.stat().st_size] for file in self._files]
        self._prefix = _short([self._settings, sizes], 12)
        self._contents = Contents(directory / "contents.json")
        self._thread: threading.Thread | None = None

    def load(self) -> Any:
        """The saved weights; None if they were not saved or are damaged."""
        path = None
        try:
            path = self._find()
            return None if path is None else self._read(path)
        except (Unsound, OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RuntimeError) as error:
            where = path or self._directory
            _log.warning("packed weights in %s are dropped: %s; they are packed again", where, error)
            if path is not None:
                with contextlib.suppress(OSError):
                    path.unlink()
            return None

    def save(self, weights: Any) -> None:
        """Save the weights in a separate thread, while the engine serves."""
        self._thread = threading.Thread(target=self._save, args=(weights,), name="packed cache", daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the weights given to `save` are on disk."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _find(self) -> Path | None:
        """The path of the entry. Files are hashed only if an entry may match them."""
        digest = self._contents.known(self._files)
        if digest is None and any(self._directory.glob(f"{self._prefix}-*{_SUFFIX}")):
            digest = self._contents.digest(self._files)
        path = None if digest is None else self._path(digest)
        return path if path is not None and path.exists() else None

    def _read(self, path: Path) -> Any:
        start = time.perf_counter()
        header, buffers = read(path, self._key(path), self._forms.take)
        weights = decode(header["tree"], buffers, self._forms)
        os.utime(path)
        _log.info(
            "packed weights: %.0f MB from %s in %.2f s", header["size"] / 1e6, path.name, time.perf_counter() - start
        )
        return weights

    def _save(self, weights: Any) -> None:
        try:
            self._try_to_save(weights)
        except Uncacheable as reason:
            _log.info("packed weights are not kept for the next start: %s", reason)
        except OSError as error:
            _log.warning("packed weights could not be kept in %s: %s", self._directory, error)

    def _try_to_save(self, weights: Any) -> None:
        tree, buffers = encode(weights, self._forms)
        size = sum(buffer.numel() * buffer.element_size() for buffer in buffers)
        if size < _WORTH:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        free, everything = shutil.disk_usage(self._directory).free, size * self._shard.ranks
        if everything > self._limit or 2 * everything > free:
            raise Uncacheable(f"they take {everything} bytes of {self._limit} allowed, and {free} are free on the disk")
        path = self._path(self._contents.digest(self._files))
        about = {"model": str(self._model), "form": self._forms.identity, "quantize": self._settings.get("quantize")}
        if self._shard.ranks > 1:
            complete = ", complete experts" if self._shard.expert_parallel else ""
            about["part"] = f"rank {self._shard.number} of {self._shard.ranks}{complete}"
        write(path, self._key(path), about, tree, buffers)
        _evict(self._directory, self._limit, path)

    def _path(self, digest: str) -> Path:
        return self._directory / f"{self._prefix}-{_short([self._settings, digest], 40)}{_SUFFIX}"

    @staticmethod
    def _key(path: Path) -> str:
        return path.name.removesuffix(_SUFFIX)


def open_cache(
    config: Config, model: Path, decoder: object, forms: PackedForms | None, shard: Shard = WHOLE
) -> PackedCache | None:
    """The cache for a checkpoint; None if the device has no packed forms, or if the user turned the cache off.

    `decoder`: the model's configuration, by its repr.
    """
    if forms is None or not config.model.packed_cache:
        return None
    settings = {"decoder": repr(decoder), "quantize": config.model.quantize}
    return PackedCache(directory_of(), config.model.packed_cache, model, settings, forms, shard)


def directory_of() -> Path:
    return read_environment().cache_dir / "packed"


def kept(directory: Path) -> list[Kept]:
    """The entries of the cache, the least recently used first."""
    return sorted(_kept(directory), key=lambda entry: entry.used)


def clear(directory: Path) -> list[Kept]:
    """Remove all entries, and what writers have abandoned; returns the entries. Running engines keep the weights they
    have loaded."""
    removed = []
    for entry in _kept(directory):
        with contextlib.suppress(FileNotFoundError):
            entry.path.unlink()
            removed.append(entry)
    _remove_abandoned(directory)
    (directory / "contents.json").unlink(missing_ok=True)
    return removed


def _kept(directory: Path) -> Iterator[Kept]:
    for path in _entries(directory):
        about: dict[str, Any] = {}
        with contextlib.suppress(Unsound, OSError, ValueError, KeyError, TypeError, RecursionError):
            told = read_header(path)[0]["about"]
            about = {**told, "model": str(told["model"]), "form": str(told["form"])}
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            yield Kept(path, status.st_size, status.st_mtime, about)


def _entries(directory: Path) -> Iterator[Path]:
    """Neither a folder nor a link to nothing is one, whatever its name."""
    return (path for path in directory.glob(f"*{_SUFFIX}") if path.is_file())


def _evict(directory: Path, limit: int, newest: Path) -> None:
    """Remove the least recently used files above the limit. Other processes may remove any file meanwhile."""
    total, others = 0, []
    for path in _entries(directory):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            if path == newest:
                total = status.st_size
            else:
                others.append((status.st_mtime, path, status.st_size))
    for _, path, size in sorted(others, reverse=True):
        total += size
        if total > limit:
            _log.info("packed weights: %s is evicted, the cache has %d bytes", path.name, limit)
            path.unlink(missing_ok=True)
    _remove_abandoned(directory)


def _remove_abandoned(directory: Path) -> None:
    """Remove the unfinished files of writers that have ended."""
    now = time.time()
    for path in directory.glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if now - path.stat().st_mtime > _ABANDONED:
                path.unlink()


def _cutting() -> str:
    """A hash of the code that splits a model, so that parts of another split are never used."""
    digest = hashlib.sha256()
    for module in (assemble, sharding, column_split):
        assert module.__file__ is not None
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()[:8]


def _short(value: Any, length: int) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:length]
