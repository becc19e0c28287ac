"""Train a head that drafts for a model, on the model's own answers to prompts made of a text. `headrace serve MODEL
--speculate METHOD:DIR` uses it."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.arguments import add_engine_options, engine_options
from headrace.cli.logs import set_up_logging
from headrace.errors import ConfigError
from headrace.training.settings import METHODS, TrainingSettings, check_out, check_sizes, digest

__all__ = ["configure", "run"]

_DRAFTS = {"eagle3": 3, "mtp": 3, "dflash": 7}
_OF_METHODS = {"draft_vocabulary": ("eagle3", "dflash"), "layers": ("dflash",)}
"""Options that only these methods have."""
_DRAFT_VOCABULARY, _LAYERS = 8192, 2
_INTERRUPTED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="a directory, a .gguf file or a catalogue name")
    add("--method", required=True, choices=METHODS, help="the kind of head")
    add("--text", required=True, type=Path, metavar="PATH", help="a UTF-8 file, or a directory of such files")
    add("--out", required=True, type=Path, metavar="DIR", help="where the head is written: an empty directory")
    add("--resume", action="store_true", help="go on with the training that was begun in --out")
    add(
        "--answers-from",
        type=Path,
        metavar="DIR",
        help="take the answers of another head of the same model and text, and make only those that are missing",
    )
    add("--accept-terms", action="store_true", help="accept the terms of a model that has some")
    group = parser.add_argument_group("training")
    add = group.add_argument
    add(
        "--answers",
        type=int,
        default=2000,
        metavar="N",
        help="answers of the model; one in 16 is held out (default: 2000)",
    )
    add("--answer-tokens", type=int, default=128, metavar="N", help="tokens of an answer at most (default: 128)")
    add("--epochs", type=int, default=2, metavar="N", help="times that each answer is trained on (default: 2)")
    add("--batch", type=int, default=4, metavar="N", help="answers of a step (default: 4)")
    add("--rate", type=float, default=6e-4, metavar="X", help="the highest learning rate (default: 6e-4)")
    add("--drafts", type=int, metavar="K", help="tokens of a draft (default: eagle3 and mtp: 3, dflash: 7)")
    add(
        "--draft-vocabulary",
        type=int,
        metavar="N",
        help="tokens that eagle3 and dflash can draft (default: 8192)",
    )
    add("--layers", type=int, metavar="N", help="layers of dflash (default: 2)")
    add("--seed", type=int, default=0, metavar="N", help="of everything that is drawn (default: 0)")
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    drafts = args.drafts or _DRAFTS[args.method]
    _check(args)
    check_sizes(args.answers, args.answer_tokens, drafts)
    check_out(args.out, args.resume)
    set_up_logging(quiet=True)
    from headrace.cli.model_fetch import fetch_model
    from headrace.cli.training_view import terminal_view
    from headrace.training.drafter_training import model_files, train_drafter
    from headrace.training.text_pieces import read_texts

    texts = read_texts(args.text)
    path = fetch_model(args.model, args.accept_terms)
    options = engine_options(args)
    settings = TrainingSettings(
        model=str(path.absolute()),
        method=args.method,
        text=digest(texts),
        answers=args.answers,
        answer_tokens=args.answer_tokens,
        epochs=args.epochs,
        batch=args.batch,
        drafts=drafts,
        draft_vocabulary=args.draft_vocabulary or _DRAFT_VOCABULARY,
        layers=args.layers or _LAYERS,
        rate=args.rate,
        seed=args.seed,
        engine={name: str(value) for name, value in options.items()},
        files=model_files(path),
    )
    with terminal_view(args.out) as view:
        finished = train_drafter(settings, texts, options, args.out, args.resume, view, args.answers_from)
    if not finished:
        print(f"stopped: the same command with --resume goes on in {args.out}")
        return _INTERRUPTED
    print(f"written: serve it with --speculate {args.method}:{args.out}")
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raises ConfigError for a number that is too small, and for an option that the method does not have."""
    for name in ("answers", "answer_tokens", "epochs", "batch", "drafts", "draft_vocabulary", "layers"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: at least 1")
        methods = _OF_METHODS.get(name, METHODS)
        if value is not None and args.method not in methods:
            raise ConfigError(
                f"--{name.replace('_', '-')}: --method {args.method} does not have it, only {' and '.join(methods)}: "
                "leave it out"
            )
    if not 0 < args.rate < 1:
        raise ConfigError(f"--rate {args.rate:g}: a number between 0 and 1")
    if args.seed < 0:
        raise ConfigError(f"--seed {args.seed}: at least 0")
