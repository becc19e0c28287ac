"""The sign of life of a command that imports much: on terminals alone, and gone before anything else is written."""

from __future__ import annotations

import io
import sys
from types import ModuleType
from typing import Any

import pytest

from headrace.cli import main as command
from headrace.cli.starting_line import starting_line


class Screen(io.StringIO):
    tty = True

    def isatty(self) -> bool:
        return self.tty


def use(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Called in the test: between a fixture and its test the streams are exchanged once more."""
    shown = Screen()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    return shown


def test_it_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = use(monkeypatch)
    with starting_line("starting ..."):
        assert screen.getvalue() == "starting ..."
    assert screen.getvalue() == "starting ...\r\x1b[K"


def test_it_goes_away_before_an_error_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = use(monkeypatch)
    with pytest.raises(ImportError), starting_line("starting ..."):
        raise ImportError
    assert screen.getvalue().endswith("\r\x1b[K")


@pytest.mark.parametrize(("tty", "term"), [(False, "xterm"), (True, "dumb")])
def test_elsewhere_nothing_is_written(tty: bool, term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = use(monkeypatch)
    screen.tty = tty
    monkeypatch.setenv("TERM", term)
    with starting_line("starting ..."):
        pass
    monkeypatch.setattr(sys, "stderr", None)
    with starting_line("starting ..."):
        pass
    assert screen.getvalue() == ""


@pytest.mark.parametrize(
    ("arguments", "shown"), [(["serve"], True), (["serve", "--help"], False), (["list"], False), (["chat"], True)]
)
def test_slow_verbs_show_it_before_their_modules_are_imported(
    arguments: list[str], shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = use(monkeypatch)
    seen: list[str] = []

    def load(name: str) -> ModuleType:
        seen.append(screen.getvalue())
        module: Any = ModuleType(name)
        module.__doc__ = "A verb."
        module.configure = lambda parser: None
        module.run = lambda args: seen.append(screen.getvalue()) or 0
        return module

    monkeypatch.setattr("importlib.import_module", load)
    if "--help" in arguments:
        with pytest.raises(SystemExit):
            command.main(arguments)
    else:
        assert command.main(arguments) == 0
        assert seen[1].endswith("\r\x1b[K") == shown
    assert (seen[0] == "starting ...") == shown
