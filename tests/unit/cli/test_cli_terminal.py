"""`headrace chat` on a terminal: typing, pasting, Ctrl-C, and the commands."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal_session import TerminalSession, terminal_session

PROGRAM = str(Path(__file__).with_name("chat_program.py"))
PASTE = "\x1b[200~", "\x1b[201~"
CTRL_C, CTRL_D, CTRL_J, UP = "\x03", "\x04", "\n", "\x1b[A"


@contextlib.contextmanager
def chat(folder: Path, *arguments: str, model: str = "default") -> Iterator[TerminalSession]:
    with terminal_session(PROGRAM, *arguments, environ={}, folder=folder) as session:
        session.wait_for(f"model {model} on echo")
        session.wait_for(">")
        yield session


def end(session: TerminalSession) -> None:
    session.wait_for(">")
    session.type("/bye\r")
    assert session.wait_for_end() == 0


def test_questions_of_several_lines(tmp_path: Path) -> None:
    with chat(tmp_path) as session:
        session.type(f"{PASTE[0]}one\rtwo\rthree{PASTE[1]}")
        session.wait_for("three")
        session.type("\r")
        session.wait_for(r"asked 1: 'one\ntwo\nthree'")
        session.wait_for("7 tokens, ")
        session.wait_for(">")
        # A line that a backslash ends, Ctrl-J, and marks of quotation go on.
        session.type("four\\")
        session.wait_for("four\\")
        session.type("\r")
        session.wait_for(".")
        session.type(f"five{CTRL_J}six")
        session.wait_for("six")
        session.type("\r")
        session.wait_for(r"asked 3: 'four\nfive\nsix'")
        session.wait_for(">")
        session.type('"""seven')
        session.wait_for("seven")
        session.type("\r")
        session.wait_for(".")
        session.type('eight"""')
        session.wait_for("eight")
        session.type("\r")
        session.wait_for(r"asked 5: 'seven\neight'")
        end(session)


def test_lines_pasted_into_a_terminal_without_bracketed_paste_are_one_question(tmp_path: Path) -> None:
    with chat(tmp_path) as session:
        session.type("one\rtwo\rthree\r")
        session.wait_for(r"asked 1: 'one\ntwo\nthree'")
        end(session)


def test_an_answer_of_the_terminal_behind_enter_begins_no_line(tmp_path: Path) -> None:
    """A slow terminal tells where its cursor is while the user types."""
    with chat(tmp_path) as session:
        session.type("hello\r\x1b[1;1R")
        session.wait_for("asked 1: 'hello'")
        end(session)


def test_ctrl_c_stops_an_answer_and_not_the_chat(tmp_path: Path) -> None:
    with chat(tmp_path) as session:
        session.type("forever\r")
        session.wait_for("it begins")
        session.type(CTRL_C)
        session.wait_for("stopped, 7 tokens")
        session.wait_for(">")
        session.type("half a quest")
        session.wait_for("quest")
        session.type(CTRL_C)
        session.wait_for("Ctrl-D or /bye ends the chat")
        session.wait_for(">")
        session.type("next\r")
        session.wait_for("asked 3: 'next'")
        session.wait_for(">")
        session.type(CTRL_D)
        assert session.wait_for_end() == 0


def test_ctrl_c_stops_the_loading_and_not_the_chat(tmp_path: Path) -> None:
    with terminal_session(PROGRAM, "stuck", environ={}, folder=tmp_path) as session:
        session.wait_for("it loads")
        session.type(CTRL_C)
        session.wait_for("loading was stopped: /model NAME loads a model")
        session.wait_for(">")
        session.type("hello\r")
        session.wait_for("no model is loaded")
        session.wait_for(">")
        session.type("/model missing\r")
        session.wait_for("error: model 'missing' is no such path")
        session.wait_for(">")
        session.type("/model other\r")
        session.wait_for("model other on echo")
        session.wait_for(">")
        session.type("hello\r")
        session.wait_for("asked 1: 'hello'")
        end(session)


def test_commands_and_a_lost_server(tmp_path: Path) -> None:
    with chat(tmp_path) as session:
        session.type("/sytem be brief\r")
        session.wait_for("there is no command /sytem; did you mean /system?")
        session.wait_for(">")
        session.type("/system be brief\r")
        session.wait_for("the system message is set")
        session.wait_for(">")
        session.type("lost\r")
        session.wait_for("error: no answer; is the server running?; the arrow key brings the question back")
        session.wait_for(">")
        session.type("hello\r")
        session.wait_for("(told: be brief) asked 2: 'hello'")
        session.wait_for(">")
        session.type("/save talk.md\r")
        session.wait_for("3 messages saved in talk.md")
        end(session)
    assert "be brief" in (tmp_path / "talk.md").read_text()


def test_the_history_lasts(tmp_path: Path) -> None:
    for arguments, kept in (((), True), (("--no-history",), False)):
        folder = tmp_path / str(kept)
        folder.mkdir()
        with chat(folder, *arguments) as session:
            session.type("hello\r")
            session.wait_for("asked 1: 'hello'")
            end(session)
        file = folder / "cache" / "chat-history"
        assert file.exists() == kept
        if kept:
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            with chat(folder) as session:
                session.type(f"{UP}{UP}")
                session.wait_for("hello")
                session.type("\r")
                session.wait_for("asked 1: 'hello'")
                end(session)


@pytest.mark.parametrize("arguments", [("--plain",), ("--plain", "--system", "s")])
def test_plain_answers(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with chat(tmp_path, *arguments) as session:
        session.type("hello\r")
        session.wait_for(": `'hello'`")
        session.wait_for("(7 tokens")
        end(session)


LOADING = """
import os, subprocess, sys
from headrace.engine.spawn import spawn
from headrace.progress import loading_bar
with loading_bar():
    said = "import sys; print('from the engine', file=sys.stderr, flush=True); sys.stdin.read()"
    child = [sys.executable, "-c", said]
    process, link = spawn(child, stdin=subprocess.PIPE)
    sys.stdin.readline()
process.kill()
"""


def test_lines_of_the_engines_process_stand_above_the_bar(tmp_path: Path) -> None:
    with terminal_session("-c", LOADING, environ={}, folder=tmp_path) as session:
        session.wait_for("from the engine")
        session.type("\n")
        assert session.wait_for_end() == 0
        # The bar's line was cleared, and the bar is drawn again below.
        _, _, after = session.raw.partition("\x1b[2Kfrom the engine\r\n")
        assert "starting" in after
