"""Answers of an earlier training, for another head of the same model and text.

Answer n depends on the model, the text, the seed, the tokens of an answer at most and the engine's options. So a
training of another method, or with another recipe, reads the same ones, and makes only those that are missing.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from headrace.errors import ConfigError
from headrace.training.answers import complete_lines, parse_answers
from headrace.training.settings import TrainingSettings, difference, read_settings

__all__ = ["check_source", "take_answers"]

_OF_ANSWERS = ("model", "text", "answer_tokens", "seed", "engine")
"""The settings that an answer depends on."""
_FILE = "answers.jsonl"


def check_source(settings: TrainingSettings, source: Path) -> None:
    """`source`: the directory of a head that was trained, or whose training was begun.

    Raises ConfigError if its answers are not those that `settings` ask for, CheckpointError for a damaged file.
    """
    before = read_settings(source)
    file = source / "training" / _FILE
    if before is None or not file.exists():
        raise ConfigError(f"--answers-from {source}: no head was trained there, so it has no answers: leave it out")
    now = asdict(settings)
    found = difference({name: now[name] for name in _OF_ANSWERS}, {name: before.get(name) for name in _OF_ANSWERS})
    if found is not None:
        flag, earlier, value = found
        raise ConfigError(
            f"--answers-from {source}: {flag} was {earlier!r} for these answers, and is {value!r} now: give the same, "
            "or leave out --answers-from"
        )
    parse_answers(complete_lines(file.read_bytes()), file)


def take_answers(source: Path, folder: Path, count: int) -> None:
    """Copy the first `count` answers, or as many as there are, to the training's own `folder`, unless it has some. The
    other training may still be writing more."""
    target = folder / _FILE
    if not target.exists():
        lines = complete_lines((source / "training" / _FILE).read_bytes()).splitlines(keepends=True)
        target.write_bytes(b"".join(lines[:count]))
