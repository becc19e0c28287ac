"""What a person at a terminal sees while the model loads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["loading_bar"]


@contextmanager
def loading_bar() -> Iterator[Callable[[str, float], None] | None]:
    """A function that takes (stage, done from 0 to 1) and draws a bar on stderr; None where nobody watches.

    The bar is gone once "first step" has been reached, or when the block ends.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading", total=1.0)

        def show(stage: str, done: float) -> None:
            bar.update(task, description=stage, completed=done)
            if stage == "first step":
                bar.stop()

        yield show
