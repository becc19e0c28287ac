"""Progress bars on a terminal's stderr, drawn by rich. Without a terminal no bar is drawn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Activity", "activity", "fetching_bar", "generating_bar", "loading_bar", "training_bar"]


@contextmanager
def loading_bar(out: TextIO | None = None) -> Iterator[Callable[[str, float], None] | None]:
    """A function that takes (stage, done from 0 to 1) and draws a bar; None if `out` (default: stderr) is no terminal.

    The bar is removed at the stage "first step", or when the block ends.
    """
    out = out or sys.stderr
    if not out.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=out), transient=True, refresh_per_second=4) as bar:
        # Without a total the bar moves to and fro: the imports of the first seconds report nothing.
        task = bar.add_task("starting", total=None)

        def show(stage: str, done: float) -> None:
            bar.update(task, description=f"loading: {stage}", completed=done, total=1.0 if done else None)
            if stage == "first step":
                bar.stop()

        yield show


class Activity:
    """What a command works on: a line with a bar that goes away. Without a terminal it shows nothing."""

    def __init__(self, bar: Progress | None, what: str) -> None:
        self._bar = bar
        self._task = None if bar is None else bar.add_task(what, total=None)

    def __call__(self, what: str, done: int = 0, total: int = 0) -> None:
        """Show a stage; without a total the bar moves to and fro."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=what, completed=done, total=total or None)

    def close(self) -> None:
        """Remove the line; what is called later shows nothing."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def activity(what: str, out: TextIO | None = None) -> Iterator[Activity]:
    """A line on `out` (default: stderr) from now until `close`, or until the block ends. It is drawn twice a second, so
    that it takes no time from what is measured meanwhile."""
    out = out or sys.stderr
    if not out.isatty():
        yield Activity(None, what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(file=out), transient=True, refresh_per_second=2, redirect_stdout=False)
    with bar:
        yield Activity(bar, what)


@contextmanager
def fetching_bar(out: TextIO | None = None) -> Iterator[Callable[[str, int, int], None]]:
    """A function that takes (file, bytes done, total bytes or 0 if unknown) and draws a bar per file. If `out`
    (default: stderr) is no terminal, it prints the name of each file once."""
    out = out or sys.stderr
    if not out.isatty():
        yield _name_printer(out)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(file=out), transient=True) as bar:
        tasks = {}
        # Until the first file is known: a hub may take its time.
        asking = bar.add_task("looking for the model's files", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(asking, visible=False)
            if what not in tasks:
                tasks[what] = bar.add_task(f"fetching {what}")
            bar.update(tasks[what], completed=done, total=total or None)

        yield show


@contextmanager
def generating_bar(total: int, shown: bool, out: TextIO | None = None) -> Iterator[Callable[[int], None] | None]:
    """A function that receives the tokens of each answer and draws a bar of `total` prompts; None if not `shown`, or if
    `out` (default: stderr) is no terminal."""
    out = out or sys.stderr
    if not shown or not out.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=out), transient=True) as bar:
        task = bar.add_task("generating", total=total)
        generated = 0

        def report(tokens: int) -> None:
            nonlocal generated
            generated += tokens
            bar.update(task, advance=1, description=f"generating ({generated} tokens)")

        yield report


@contextmanager
def training_bar(out: TextIO | None = None) -> Iterator[Callable[[str, float, float], None]]:
    """A function that takes (stage, done, total) and draws one bar. If `out` (default: stderr) is no terminal, nothing
    is drawn."""
    out = out or sys.stderr
    if not out.isatty():
        yield lambda stage, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=out), transient=True) as bar:
        task = bar.add_task("training")

        def show(stage: str, done: float, total: float) -> None:
            bar.update(task, description=stage, completed=done, total=total)

        yield show


def _name_printer(out: TextIO) -> Callable[[str, int, int], None]:
    named: set[str] = set()

    def show(what: str, done: int, total: int) -> None:
        if what not in named:
            named.add(what)
            print(f"fetching {what}", file=out, flush=True)

    return show
