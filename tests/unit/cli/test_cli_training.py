"""What `headrace train-drafter` shows."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import pytest
import torch

from headrace.cli.training_view import TerminalView, terminal_view
from headrace.progress import training_bar
from headrace.training.acceptance_report import HeldOutAcceptance


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_shows_the_stage_on_a_terminal_alone() -> None:
    for out, drawn in ((Terminal(), True), (io.StringIO(), False)):
        with training_bar(out) as show:
            show("step 3 of 8, loss 4.200", 3, 8)
        assert ("step 3 of 8, loss 4.200" in out.getvalue()) == drawn


def test_the_bar_has_every_stage(tmp_path: Path) -> None:
    shown: list[tuple[str, float, float]] = []
    view = TerminalView(lambda stage, done, total: shown.append((stage, done, total)), tmp_path)
    try:
        view.loading("weights", 0.5)
        view.answers(128, 2000)
        view.step(1, 30, 5.25)
    finally:
        view.release()
    assert shown == [
        ("loading: weights", 0.5, 1.0),
        ("answers", 128, 2000),
        ("step 1 of 30, loss 5.250", 1, 30),
    ]


def test_acceptance_is_a_line_on_stdout(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = HeldOutAcceptance(2)
    found.add(torch.tensor([[True, False]]), 0.0)
    with terminal_view(tmp_path) as view:
        view.acceptance(3, 30, found)
    assert capsys.readouterr().out == (
        "step 3 of 30: accepted on held-out text up to position 1, 2…: 1.000 0.000, 2.00 tokens a step; "
        "greedy 1.000 0.000\n"
    )


def test_signals_are_caught_from_the_first_step_on_and_once(tmp_path: Path) -> None:
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    try:
        with terminal_view(tmp_path) as view:
            os.kill(os.getpid(), signal.SIGINT)
            assert (caught, view.stopped()) == ([signal.SIGINT], False)
            view.step(1, 2, 0.0)
            os.kill(os.getpid(), signal.SIGINT)
            assert (len(caught), view.stopped()) == (1, True)
            # The second one is the process's own business.
            os.kill(os.getpid(), signal.SIGINT)
            assert len(caught) == 2
        os.kill(os.getpid(), signal.SIGINT)
        assert len(caught) == 3
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminal_view(tmp_path) as view:
            view.step(1, 2, 0.0)
            os.kill(os.getpid(), signal.SIGTERM)
            assert not view.stopped()
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("begun", [False, True])
def test_a_signal_before_the_first_step_says_what_is_kept(
    begun: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if begun:
        (tmp_path / "training").mkdir()
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        with terminal_view(tmp_path):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    resumed = f"stopped: the same command with --resume goes on in {tmp_path}\n"
    assert capfd.readouterr().err == (resumed if begun else "stopped: there was nothing to keep yet\n")
