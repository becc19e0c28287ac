"""Answers of an earlier training, for another head of the same model and text.

Answer n depends on the model, the text, the seed, the tokens of an answer at most and the engine's options. So a
training of another method, or with another recipe, reads the same ones, and makes only those that are missing.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from headrace.errors import CheckpointError, ConfigError
from headrace.training.answers import ANSWERS, PromptMaker, complete_lines, parse_answers
from headrace.training.settings import TrainingSettings, difference, folder_of, read_settings

__all__ = ["check_source", "take_answers"]

_OF_ANSWERS = ("model", "files", "text", "answer_tokens", "seed", "engine")
"""The settings that an answer depends on."""


def check_source(settings: TrainingSettings, source: Path, maker: PromptMaker, vocab: int) -> None:
    """`source`: the directory of a head that was trained, or whose training was begun. `maker`: of the prompts that
    `settings` ask for; `vocab`: the number of the model's tokens.

    Raises ConfigError if its answers are not those that `settings` ask for, CheckpointError for a damaged file.
    """
    before = read_settings(source)
    file = folder_of(source) / ANSWERS
    if before is None or not file.is_file():
        raise ConfigError(f"--answers-from {source}: no head was trained there, so it has no answers: leave it out")
    now = asdict(settings)
    own, others = ({name: one.get(name) for name in _OF_ANSWERS} for one in (now, before))
    found = difference(own, others, "for these answers")
    if found is not None:
        raise ConfigError(f"--answers-from {source}: {found}: give the same, or leave out --answers-from")
    answers = parse_answers(complete_lines(file.read_bytes()), file)[: settings.answers]
    for number, one in enumerate(answers):
        asked = (maker.prompt(number), maker.temperature(number), maker.seed + number, maker.held_out(number))
        if asked != (one.prompt, one.temperature, one.seed, one.held_out):
            raise ConfigError(
                f"--answers-from {source}: answer {number} is not to the prompt that this training has there: the "
                "model's tokenizer or its chat template was another one, or the file was changed: leave out "
                "--answers-from"
            )
        if not all(0 <= token < vocab for token in one.tokens):
            raise CheckpointError(f"{file}: answer {number} has a token that the model does not have")


def take_answers(source: Path, folder: Path, count: int) -> None:
    """Copy the first `count` answers, or as many as there are, to the training's own `folder`, unless it has some. The
    other training may still be writing more."""
    target = folder / ANSWERS
    if not target.exists():
        lines = complete_lines((folder_of(source) / ANSWERS).read_bytes()).splitlines(keepends=True)
        target.write_bytes(b"".join(lines[:count]))
