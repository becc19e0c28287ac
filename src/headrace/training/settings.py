"""What a training is: everything that its result depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.errors import CheckpointError, ConfigError

__all__ = ["METHODS", "TrainingSettings", "digest", "settle"]

METHODS = ("eagle3", "mtp", "dflash")
_FILE = "settings.json"


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
    folder = out / "training"
    file = folder / _FILE
    if resume:
        _compare(settings, _read(file, out))
        return folder
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: it is not an empty directory: choose another, or go on there with --resume")
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(settings), indent=1))
    return folder


def _read(file: Path, out: Path) -> dict[str, object]:
    if not file.exists():
        raise ConfigError(f"--resume: no training was begun in {out}: leave out --resume")
    try:
        found = json.loads(file.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{file}: not the settings of a training: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: not the settings of a training")
    return found


def _compare(settings: TrainingSettings, before: dict[str, object]) -> None:
    now, earlier = _flat(asdict(settings)), _flat(before)
    for name in {**now, **earlier}:
        value = now.get(name)
        if earlier.get(name) != value:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"--resume: {flag} was {earlier.get(name)!r} when the training was begun, and is {value!r} now: "
                "give the same, or begin anew with another --out"
            )


def _flat(settings: dict[str, object]) -> dict[str, object]:
    """With the engine's options among the others. None: not given."""
    engine = settings.get("engine")
    own = {name: value for name, value in settings.items() if name != "engine"}
    return {**own, **(engine if isinstance(engine, dict) else {})}
