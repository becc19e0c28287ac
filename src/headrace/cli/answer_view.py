"""Shows an answer while it comes: as plain text, or as markdown on a terminal."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown

__all__ = ["AnswerView", "MarkdownView", "PlainView", "first_block"]

Show = Callable[[str], None]
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class AnswerView(Protocol):
    """Shows one answer after another."""

    def answer(self) -> AbstractContextManager[Show]:
        """A function that takes the pieces of an answer; leaving the block, by an exception too, completes it."""

    def note(self, text: str) -> None:
        """Show a remark under an answer."""


class PlainView:
    """Writes the pieces as they are."""

    def __init__(self, out: TextIO, notes: TextIO | None = None) -> None:
        """`notes`: where remarks go; None: nowhere."""
        self._out, self._notes = out, notes

    @contextlib.contextmanager
    def answer(self) -> Iterator[Show]:
        try:
            yield self._show
        finally:
            print(file=self._out, flush=True)

    def note(self, text: str) -> None:
        if self._notes is not None:
            print(f"({text})", file=self._notes, flush=True)

    def _show(self, piece: str) -> None:
        print(piece, end="", file=self._out, flush=True)


class MarkdownView:
    """Renders markdown with rich. Finished blocks are printed once and for all; only the block that still grows is
    drawn again with each piece."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextlib.contextmanager
    def answer(self) -> Iterator[Show]:
        from rich.live import Live
        from rich.spinner import Spinner

        text, printed = "", False

        def print_block(block: str) -> None:
            nonlocal printed
            if printed:
                self._console.print()
            self._console.print(_markdown(block))
            printed = True

        def show(piece: str) -> None:
            nonlocal text
            # A control character of the model would steer the terminal.
            text += _CONTROL.sub("\N{REPLACEMENT CHARACTER}", piece)
            while end := first_block(text):
                print_block(text[:end])
                text = text[end:].lstrip("\n")
            if text.strip():
                live.update(_Tail(text))

        live = Live(Spinner("dots"), console=self._console, transient=True, refresh_per_second=12)
        try:
            with live:
                yield show
        finally:
            if text.strip():
                print_block(text)

    def note(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False, highlight=False)


class _Tail:
    """The last lines of a block, as many as the terminal shows: what has scrolled away cannot be drawn again."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        lines = console.render_lines(_markdown(self._text), options, pad=False)
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()


def _markdown(text: str) -> Markdown:
    """The text as rich's markdown, with HTML shown as it is written: rich would leave it out."""
    from markdown_it import MarkdownIt
    from rich.markdown import Markdown

    rendered = Markdown("")
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    rendered.parsed = parser.parse(text)
    return rendered


def first_block(text: str) -> int:
    """Where the first block of a markdown text ends: at its first empty line outside of a fence; 0 if it may go on.

    A list goes on behind an empty line, and its items would lose their indentation alone, so what is indented stays
    with what is before it.
    """
    at, fence = 0, ""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
                fence = ""
        elif mark:
            fence = mark[1]
        elif not line.strip() and number + 1 < len(lines) and lines[number + 1][:1] not in (" ", "\t", "\n", "\r"):
            return at
        at += len(line)
    return 0
