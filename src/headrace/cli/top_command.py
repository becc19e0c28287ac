"""Watch a running server: requests, tokens a second, latencies, KV blocks, prefix hits, drafts. Press q to leave.

Where the output is no terminal, one snapshot is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.cli.address_options import add_address, chosen_address
from headrace.errors import ConfigError, EngineDead

if TYPE_CHECKING:
    from headrace.cli.top_reading import Reader, Reading, Window

__all__ = ["configure", "run"]

_LOOK = 0.1
"""Seconds between two looks at the keyboard."""
_PLAIN = (100, 60)
"""Columns and lines of a snapshot."""


def configure(parser: argparse.ArgumentParser) -> None:
    add_address(parser, "of the server, or unix:PATH")
    parser.add_argument("--model", metavar="NAME", help="of a server with several (default: all of them together)")
    parser.add_argument("--api-key", metavar="KEY", help="default: HEADRACE_API_KEY")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between two looks (default: 1)")
    parser.add_argument("--once", action="store_true", help="print one snapshot")


def run(args: argparse.Namespace) -> int:
    from headrace.cli.top_reading import Reader
    from headrace.environment import read_environment

    if not 0.1 <= args.interval <= 3600:
        raise ConfigError(f"--interval {args.interval:g}: choose from 0.1 to 3600 seconds")
    key = (args.api_key or read_environment().api_key or "").strip() or None
    url, option = chosen_address(args)
    reader = Reader(url, key, model=args.model, option=option)
    try:
        if args.once or not (sys.stdout.isatty() and sys.stdin.isatty()):
            return _snapshot(reader, url, args.interval)
        return _watch(reader, url, args.interval)
    finally:
        reader.close()


def _snapshot(reader: Reader, url: str, interval: float) -> int:
    """Two readings, so that there are rates. Raises EngineDead if the server does not answer."""
    from headrace.cli.top_reading import Window
    from headrace.cli.top_view import top_lines
    from headrace.server_address import no_answer

    window = Window()
    for turn in range(2):
        if turn:
            time.sleep(interval)
        reading = reader.read()
        if reading.fault:
            raise EngineDead(f"{url}: {reading.fault}" if reading.heard else no_answer(url, reading.fault))
        window.add(reading)
    print("\n".join(top_lines(url, window, "", *_PLAIN)))
    return 0


class _Poller:
    """Reads the server again and again, on a thread, so that the keyboard is heard while an answer takes long."""

    def __init__(self, reader: Reader, interval: float) -> None:
        from headrace.cli.top_reading import Window

        self.window: Window = Window()
        self.fault = "asked for the first time"
        self.turns = 0
        self._reader, self._interval = reader, interval
        self._stop = threading.Event()
        self.lock = threading.Lock()
        """Held while the window changes."""
        threading.Thread(target=self._run, name="poller", daemon=True).start()

    def _run(self) -> None:
        while not self._stop.is_set():
            reading: Reading = self._reader.read()
            with self.lock:
                self.fault = reading.fault
                if not reading.fault:
                    self.window.add(reading)
            self.turns += 1
            self._stop.wait(self._interval)

    def stop(self) -> None:
        self._stop.set()


def _watch(reader: Reader, url: str, interval: float) -> int:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from headrace.cli.top_view import top_lines

    console = Console()

    def screen(poller: _Poller) -> Any:
        with poller.lock:
            lines = top_lines(url, poller.window, poller.fault, console.width, console.height - 1)
        text = "\n".join([*lines, *[""] * (console.height - 1 - len(lines)), "q: leave"])
        return Text(text, no_wrap=True, overflow="ellipsis")

    poller = _Poller(reader, interval)
    try:
        with _interruptible(), _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
            shown = None
            while pressed(_LOOK) not in ("q", "Q", "\x03"):
                now = (poller.turns, console.size)
                if now != shown:
                    shown = now
                    live.update(screen(poller), refresh=True)
    except KeyboardInterrupt:
        pass
    finally:
        poller.stop()
    return 0


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let a signal raise KeyboardInterrupt, so that the terminal is left as it was."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    names = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, interrupt) for number in names}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits for so many seconds and returns the key that was pressed, or ""."""
    try:
        import select
        import termios
        import tty
    except ImportError:  # Windows: Ctrl-C leaves.

        def rest(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield rest
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([number], [], [], seconds)
        return os.read(number, 1).decode(errors="replace") if ready else ""

    try:
        tty.setcbreak(number)
        yield pressed
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
