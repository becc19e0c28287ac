"""What a training is: everything that its result depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.errors import CheckpointError, ConfigError
from headrace.wording import counted

__all__ = [
    "FEWEST",
    "METHODS",
    "TrainingSettings",
    "check_out",
    "check_sizes",
    "difference",
    "digest",
    "folder_of",
    "least_tokens",
    "read_settings",
    "settle",
]

METHODS = ("eagle3", "mtp", "dflash")
FEWEST = 32
"""Answers, and pieces of text: of 32, two are held out."""
_FOLDER, _FILE = "training", "settings.json"


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    model: str
    """Its path, to be read by people: `files` tells models apart."""
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
    files: str = ""
    """A digest of the model's files; empty: not known, as of trainings by earlier versions."""


def digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def least_tokens(drafts: int) -> int:
    """Of an answer that a head with so many tokens of a draft can be trained on."""
    return drafts + 2


def check_sizes(answers: int, answer_tokens: int, drafts: int) -> None:
    """Raises ConfigError for too few answers, and for answers that are too short for a draft."""
    if answers < FEWEST:
        raise ConfigError(f"--answers {answers}: at least {FEWEST}, of which two are held out")
    least = least_tokens(drafts)
    if answer_tokens < least:
        raise ConfigError(
            f"--answer-tokens {answer_tokens}: at least {least}, since a draft has {counted(drafts, 'token')}: give "
            "more, or fewer --drafts"
        )


def check_out(out: Path, resume: bool) -> None:
    """Raises ConfigError for a directory that is not empty, or, if `resume`, without a training that was begun."""
    if resume:
        if not (folder_of(out) / _FILE).exists():
            raise ConfigError(f"--resume: no training was begun in {out}: leave out --resume")
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out {out}: it is not an empty directory: choose another, or go on there with --resume")


def settle(settings: TrainingSettings, out: Path, resume: bool) -> Path:
    """The folder of the training's own files, below `out`. A new training needs an empty `out`; a resumed one the
    settings that it was begun with.

    Raises ConfigError that says what differs, CheckpointError for a damaged file.
    """
    check_out(out, resume)
    folder = folder_of(out)
    if resume:
        _compare(settings, out)
        return folder
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


def difference(now: Mapping[str, object], earlier: Mapping[str, object], when: str) -> str | None:
    """The first setting that differs, as a clause; None if all are equal. `when`: of the earlier ones, in words.

    A model is the same if its files are, wherever they lie."""
    later, before = _flat(now), _flat(earlier)
    unused = "model" if later.get("files") and before.get("files") else "files"
    for name in {**later, **before}:
        old, new = before.get(name), later.get(name)
        if old != new and name != unused:
            return _clause(name, _words(old), _words(new), when)
    return None


def _clause(name: str, old: str, new: str, when: str) -> str:
    if name == "files":
        return f"the model had other files {when}"
    if name == "text":
        return f"--text was another text {when}"
    what = "the model" if name == "model" else f"--{name.replace('_', '-')}"
    return f"{what} was {old} {when}, and is {new} now"


def _words(value: object) -> str:
    return "not given" if value is None else str(value)


def _compare(settings: TrainingSettings, out: Path) -> None:
    found = difference(asdict(settings), read_settings(out) or {}, "when the training was begun")
    if found is not None:
        raise ConfigError(f"--resume: {found}: give the same, or begin anew with another --out")


def _flat(settings: Mapping[str, object]) -> dict[str, object]:
    """With the engine's options among the others. None: not given."""
    engine = settings.get("engine")
    own = {name: value for name, value in settings.items() if name != "engine"}
    return {**own, **(engine if isinstance(engine, dict) else {})}
