"""Chat with a model in the terminal. /reset clears the conversation, /quit ends it, Ctrl-C stops an answer."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from headrace.cli.command_options import add_sampling_options, sampling
from headrace.cli.logs import set_up_logging
from headrace.cli.text_sources import TextSource, add_source_options, open_source
from headrace.errors import ContextOverflow, HeadraceError, InvalidRequest

__all__ = ["Conversation", "configure", "run"]

_HELP = "/reset clears the conversation, /quit ends it; Ctrl-C stops an answer"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a directory, a .gguf file or a name (default: smollm2)"
    )
    parser.add_argument("--system", metavar="TEXT", help="system message at the start of the conversation")
    add_sampling_options(parser, temperature=0.7, max_tokens=1024)
    add_source_options(parser)


def run(args: argparse.Namespace) -> int:
    set_up_logging(quiet=True)
    interactive = sys.stdin.isatty()
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(open_source(args, args.model))
        if interactive:
            print(_HELP, file=sys.stderr)
            stack.enter_context(_interrupts())
        Conversation(source, args.system, sampling(args), sys.stdout, interactive).run(_lines(interactive))
    return 0


def _lines(interactive: bool) -> Iterator[str]:
    if not interactive:
        yield from sys.stdin
        return
    import readline  # noqa: F401  (gives `input` its history and editing)

    with contextlib.suppress(EOFError):
        while True:
            yield input("> ")
    print()


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    """Let Ctrl-C raise KeyboardInterrupt inside the block."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Conversation:
    """A conversation: the messages so far, and the handling of input lines."""

    def __init__(
        self, source: TextSource, system: str | None, params: Mapping[str, Any], out: TextIO, interactive: bool
    ) -> None:
        self._source = source
        self._params = params
        self._out = out
        self._interactive = interactive
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self.messages = list(self._start)

    def run(self, lines: Iterator[str]) -> None:
        """Handle lines until they or the user end the conversation. Raises a HeadraceError if it is not interactive."""
        for line in lines:
            text = line.strip()
            if text == "/quit":
                return
            if text.startswith("/"):
                self._command(text)
            elif text:
                self._answer(text)

    def _command(self, text: str) -> None:
        if text == "/reset":
            self.messages = list(self._start)
        print("the conversation starts again" if text == "/reset" else _HELP, file=sys.stderr)

    def _answer(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        answer: list[str] = []
        try:
            with contextlib.closing(self._source.chat(self.messages, self._params)) as pieces:
                for piece in pieces:
                    answer.append(piece)
                    print(piece, end="", file=self._out, flush=True)
        except KeyboardInterrupt:
            # An interrupt stops the answer; the part that was shown stays in the conversation.
            if not self._interactive:
                raise
        except HeadraceError as error:
            self.messages.pop()
            self._report(error)
            return
        print(file=self._out, flush=True)
        if answer:
            self.messages.append({"role": "assistant", "content": "".join(answer)})
        else:
            self.messages.pop()

    def _report(self, error: HeadraceError) -> None:
        """Show an error that another message can avoid; raise any other."""
        if not self._interactive or not isinstance(error, InvalidRequest) or error.code == "no_chat_template":
            raise error
        hint = "; /reset starts again" if isinstance(error, ContextOverflow) else ""
        print(f"\nerror: {error}{hint}", file=sys.stderr)
