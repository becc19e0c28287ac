"""What a training is: everything that its result depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.errors import CheckpointError, ConfigError

__all__ = ["METHODS", "TrainingSettings", "difference", "digest", "folder_of", "read_settings", "settle"]

METHODS = ("eagle3", "mtp", "dflash")
_FOLDER, _FILE = "training", "settings.json"


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    model: str
    method: str
    text: str
    """A digest of the text."""
    answers: int
    answer_tokens: int
    epochs: int
    batch: int
    drafts: int
    draft_vocabulary: int
    layers: int
    rate: float
    seed: int
    engine: dict[str, str]
    """The engine's options that were given."""


def digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def settle(settings: TrainingSettings, out: Path, resume: bool) -> Path:
    """The folder of the training's own files, below `out`. A new training needs an empty `out`; a resumed one the
    settings that it was begun with.

    Raises ConfigError that says what differs, CheckpointError for a damaged file.
    """
    folder = folder_of(out)
    if resume:
        _compare(settings, out)
        return folder
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: it is not an empty directory: choose another, or go on there with --resume")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _FILE).write_text(json.dumps(asdict(settings), indent=1))
    return folder


def folder_of(out: Path) -> Path:
    """Where the training of the head in `out` keeps its files."""
    return out / _FOLDER


def read_settings(out: Path) -> dict[str, object] | None:
    """The settings of the training that was begun in `out`; None: there was none. Raises CheckpointError for a damaged
    file."""
    file = folder_of(out) / _FILE
    if not file.exists():
        return None
    try:
        found = json.loads(file.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{file}: not the settings of a training: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: not the settings of a training")
    return found


def difference(now: Mapping[str, object], earlier: Mapping[str, object]) -> tuple[str, object, object] | None:
    """(the flag, what it was earlier, what it is now) of the first setting that differs; None if all are equal."""
    later, before = _flat(now), _flat(earlier)
    for name in {**later, **before}:
        if before.get(name) != later.get(name):
            return f"--{name.replace('_', '-')}", before.get(name), later.get(name)
    return None


def _compare(settings: TrainingSettings, out: Path) -> None:
    before = read_settings(out)
    if before is None:
        raise ConfigError(f"--resume: no training was begun in {out}: leave out --resume")
    found = difference(asdict(settings), before)
    if found is not None:
        flag, earlier, value = found
        raise ConfigError(
            f"--resume: {flag} was {earlier!r} when the training was begun, and is {value!r} now: give the same, or "
            "begin anew with another --out"
        )


def _flat(settings: Mapping[str, object]) -> dict[str, object]:
    """With the engine's options among the others. None: not given."""
    engine = settings.get("engine")
    own = {name: value for name, value in settings.items() if name != "engine"}
    return {**own, **(engine if isinstance(engine, dict) else {})}
