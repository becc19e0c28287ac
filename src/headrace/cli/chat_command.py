"""Chat with a model in the terminal, in this process or with a running server (--url). /help lists the commands."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from headrace.cli.answer_view import AnswerView, MarkdownView, PlainView
from headrace.cli.command_options import add_sampling_options, sampling
from headrace.cli.conversation import Conversation
from headrace.cli.line_input import LineInput
from headrace.cli.logs import set_up_logging
from headrace.cli.slash_commands import COMMANDS, SlashCommands
from headrace.cli.text_sources import TextSource, add_source_options, make_source, warn_if_cut
from headrace.errors import HeadraceError

__all__ = ["add_chat_options", "chat", "configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a directory, a .gguf file or a name (default: smollm2)"
    )
    add_chat_options(parser)


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--system", metavar="TEXT", help="system message at the start of the conversation (default: none)"
    )
    parser.add_argument("--plain", action="store_true", help="show answers as they come, without rendering markdown")
    parser.add_argument("--no-history", action="store_true", help="do not keep what is typed for the next chat")
    add_sampling_options(parser, temperature=None, max_tokens=1024)
    add_source_options(parser)


def run(args: argparse.Namespace) -> int:
    set_up_logging(quiet=True)
    if sys.stdin.isatty():
        return chat(args)
    return _answer_lines(args)


def _answer_lines(args: argparse.Namespace) -> int:
    """Take each line of a file or pipe as a question."""
    with contextlib.closing(make_source(args, args.model)) as source:
        params = sampling(args)
        conversation = Conversation(params, PlainView(sys.stdout), args.system, interactive=False)
        conversation.source = source
        commands = SlashCommands(conversation, _say, _cannot_change)
        for line in sys.stdin:
            text = line.strip()
            if text.startswith("/"):
                if not commands.run(text):
                    break
            elif text:
                conversation.ask(text)
                warn_if_cut(source, params)
    return 0


def _cannot_change(name: str | None) -> None:
    _say("the model of a chat whose lines are piped in is that of the command")


def chat(args: argparse.Namespace) -> int:
    """Chat on a terminal until the user ends it."""
    params = sampling(args)
    conversation = Conversation(params, _view(args.plain), args.system, interactive=True)
    models = _Models(args, conversation)
    commands = SlashCommands(conversation, _say, models.use)
    with _interrupts(), contextlib.closing(models):
        models.start(args.model)
        typed = LineInput({name.partition(" ")[0]: text for name, text in COMMANDS.items()}, _history_file(args))
        for text in typed.lines():
            if text.startswith("/"):
                if not commands.run(text):
                    break
            elif text.strip():
                conversation.ask(text.strip())
    return 0


def _view(plain: bool) -> AnswerView:
    if plain or not sys.stdout.isatty():
        return PlainView(sys.stdout, sys.stderr)
    from rich.console import Console

    return MarkdownView(Console())


def _history_file(args: argparse.Namespace) -> Path | None:
    from headrace.environment import read_environment

    return None if args.no_history else read_environment().cache_dir / "chat-history"


class _Models:
    """The model of a chat, which may change."""

    def __init__(self, args: argparse.Namespace, conversation: Conversation) -> None:
        self._args, self._conversation = args, conversation

    def start(self, name: str | None) -> None:
        """Open the first model. An interrupt leaves the chat without one; raises what opening raises."""
        try:
            self._open(name)
        except KeyboardInterrupt:
            _say("\nloading was stopped: /model NAME loads a model, /bye ends the chat")

    def use(self, name: str | None) -> None:
        """Open another model in place of the present one. An error is shown, and the present one stays if it can."""
        try:
            if name is None:
                self._show_choices()
            elif self._args.url is None:
                self._open_local(name)
            else:
                self._conversation.source = self._swap(make_source(self._args, name))
                self._greet()
        except HeadraceError as error:
            _say(f"error: {error}")
        except KeyboardInterrupt:
            _say("\nloading was stopped: /model NAME loads a model")

    def close(self) -> None:
        if self._conversation.source is not None:
            self._conversation.source.close()
            self._conversation.source = None

    def _open(self, name: str | None) -> None:
        self._conversation.source = make_source(self._args, name)
        self._greet()

    def _open_local(self, name: str) -> None:
        from headrace.cli.model_fetch import fetch_model

        # A name that doesn't exist costs nothing; two models at once may not fit into the memory.
        fetch_model(name, self._args.accept_terms)
        self.close()
        self._open(name)

    def _swap(self, source: TextSource) -> TextSource:
        self.close()
        return source

    def _show_choices(self) -> None:
        source = self._conversation.source
        names = source.models() if source is not None else []
        if not names:
            from headrace.hub.catalogue import CATALOGUE

            names = list(CATALOGUE)
        _say("\n".join(["/model NAME goes on with one of these, a directory or a .gguf file:", *names]))

    def _greet(self) -> None:
        source = self._conversation.source
        if source is not None:
            _say(f"{source.header}\n/help lists commands and keys")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt inside the block."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
