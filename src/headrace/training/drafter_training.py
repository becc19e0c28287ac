"""Trains a head from a text to a directory: answers, hidden states, steps, files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from headrace.checkpoints.checkpoint import Checkpoint, open_checkpoint
from headrace.checkpoints.packed.cache import directory_of
from headrace.checkpoints.packed.content import Contents, checkpoint_files
from headrace.errors import ConfigError
from headrace.hub.catalogue import resolve_model
from headrace.llm import LLM
from headrace.options import make_config
from headrace.tokenization.tokenizer import load_tokenizer
from headrace.training.answers import ANSWERS, Answer, PromptMaker, load_answers, write_answers
from headrace.training.answers_from import check_source, take_answers
from headrace.training.head_files import round_weights, write_head
from headrace.training.make_head import make_head
from headrace.training.settings import TrainingSettings, check_sizes, settle
from headrace.training.target_reader import TargetReader
from headrace.training.text_pieces import cut_pieces
from headrace.training.trainer import Recipe, Trainer, Watcher
from headrace.training.training_head import TrainingHead
from headrace.wording import counted

__all__ = ["TrainingView", "model_files", "train_drafter"]

_PIECE = 600
"""Characters of a piece of text at most."""
_LEAST = 64
"""Tokens of the context that are left for a prompt."""


class TrainingView(Watcher, Protocol):
    """What a person sees."""

    def say(self, line: str) -> None: ...

    def loading(self, stage: str, done: float) -> None: ...

    def answers(self, done: int, total: int) -> None: ...


def model_files(path: Path) -> str:
    """A digest of the model's files, whatever the directory is called. Files that were read before and have not changed
    are not read again. Raises OSError."""
    return Contents(directory_of() / "contents.json").digest(checkpoint_files(path))


def train_drafter(
    settings: TrainingSettings,
    texts: Sequence[str],
    options: Mapping[str, Any],
    out: Path,
    resume: bool,
    view: TrainingView,
    source: Path | None = None,
) -> bool:
    """True at the end, False if the view has stopped it. `options`: the engine's, by name; `source`: the directory of
    another head, whose answers are taken.

    Raises ConfigError, and what loading the model and answering raise.
    """
    check_sizes(settings.answers, settings.answer_tokens, settings.drafts)
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if options.get(name, 1) > 1:
            raise ConfigError(f"a head is trained on one rank: leave out --{name.replace('_', '-')}")
    if options.get("threads") is not None:
        torch.set_num_threads(options["threads"])
    path = resolve_model(settings.model)
    checkpoint = open_checkpoint(path)
    maker = _prompt_maker(settings, texts, options, checkpoint)
    if source is not None:
        check_source(settings, source, maker, checkpoint.decoder_config.vocab)
    # After all checks: what is refused leaves no directory behind.
    folder = settle(settings, out, resume)
    if source is not None:
        take_answers(source, folder, settings.answers)
    answers = _answers(settings, maker, options, checkpoint, folder, view)
    tokens = sum(len(one.tokens) for one in answers)
    view.say(f"{counted(len(answers), 'answer')} with {counted(tokens, 'token')}")
    config = make_config(str(path), dict(options))
    head = _head(settings, checkpoint, answers)
    reader = TargetReader(config, head.points, max(len(one.prompt) + len(one.tokens) for one in answers))
    try:
        recipe = Recipe(settings.epochs, settings.batch, settings.rate, settings.seed)
        trainer = Trainer(head, reader, answers, recipe, folder / "state.pt")
        if not all(trainer.sizes):
            raise ConfigError(
                f"the answers are too short: {trainer.sizes[0]} of {len(answers)} can be trained on and "
                f"{trainer.sizes[1]} held out, since a draft has {counted(settings.drafts, 'token')}: give fewer "
                "--drafts, or a --text that asks for longer answers"
            )
        _begin(trainer, head, view)
        if not trainer.run(view):
            return False
        round_weights(head)
        found = trainer.measure()
    finally:
        reader.close()
    view.acceptance(trainer.steps, trainer.steps, found)
    facts = {"settings": asdict(settings), "tokens": tokens, "steps": trainer.steps, "acceptance": asdict(found)}
    write_head(head, out, facts)
    (folder / "state.pt").unlink()
    return True


def _begin(trainer: Trainer, head: TrainingHead, view: TrainingView) -> None:
    count = sum(parameter.numel() for parameter in head.parameters())
    train, held_out = trainer.sizes
    view.say(f"{head.method}: {count / 1e6:.2f} million parameters, {counted(train, 'answer')}, {held_out} held out")
    if trainer.done:
        view.say(f"goes on after step {trainer.done} of {trainer.steps}")
    else:
        view.acceptance(0, trainer.steps, trainer.measure(16))


def _prompt_maker(
    settings: TrainingSettings, texts: Sequence[str], options: Mapping[str, Any], checkpoint: Checkpoint
) -> PromptMaker:
    """Raises ConfigError if the text or the model's context is too short."""
    context = int(options.get("max_model_len") or checkpoint.decoder_config.max_position)
    room = context - settings.answer_tokens
    if room < _LEAST:
        raise ConfigError(
            f"--answer-tokens {settings.answer_tokens}: of the model's context of {context} tokens it leaves {room} "
            f"for a prompt, and {_LEAST} are needed: give fewer"
        )
    tokenizer = load_tokenizer(checkpoint.path, options.get("chat_template"))
    maker = PromptMaker(cut_pieces(list(texts), min(_PIECE, room // 2), settings.seed), tokenizer, settings.seed)
    maker.check(settings.answers)
    return maker


def _answers(
    settings: TrainingSettings,
    maker: PromptMaker,
    options: Mapping[str, Any],
    checkpoint: Checkpoint,
    folder: Path,
    view: TrainingView,
) -> list[Answer]:
    """The model's answers, from the file if it has all of them."""
    file = folder / ANSWERS
    found = load_answers(file) if file.exists() else []
    if len(found) >= settings.answers:
        return found[: settings.answers]
    view.answers(len(found), settings.answers)
    with LLM(str(checkpoint.path), progress=view.loading, **options) as llm:
        write_answers(llm, maker, file, settings.answers, settings.answer_tokens, _counting(view, settings.answers))
    return load_answers(file)


def _counting(view: TrainingView, total: int) -> Callable[[int, int], None]:
    return lambda done, tokens: view.answers(done, total)


def _head(settings: TrainingSettings, checkpoint: Checkpoint, answers: Sequence[Answer]) -> TrainingHead:
    # The operators are not called: the weights are read as they are stored.
    weights = checkpoint.build(_NoOps(), 1).weights
    return make_head(settings, checkpoint, weights, answers, load_tokenizer(checkpoint.path))


class _NoOps:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is called, but only weights are read")
