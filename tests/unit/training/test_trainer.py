"""The training loop on a target that counts: it learns, and a break changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from training_cases import METHODS, Counting, make

from headrace.errors import CheckpointError
from headrace.training import trainer as trainer_module
from headrace.training.acceptance_report import HeldOutAcceptance
from headrace.training.trainer import Recipe, Trainer

RECIPE = Recipe(epochs=10, batch=4, rate=2e-2, seed=5)


class Watch:
    """A watcher that stops after some steps."""

    def __init__(self, last: int | None = None) -> None:
        self.losses: list[float] = []
        self.reports: list[tuple[int, HeldOutAcceptance]] = []
        self._last = last

    def step(self, done: int, total: int, loss: float) -> None:
        self.losses.append(loss)

    def acceptance(self, done: int, total: int, found: HeldOutAcceptance) -> None:
        self.reports.append((done, found))

    def stopped(self) -> bool:
        return len(self.losses) == self._last


def trainer(method: str, file: Path, recipe: Recipe = RECIPE, **more: Any) -> Trainer:
    head = make(method, drafts=3)
    return Trainer(head, Counting(len(head.points)), Counting.answers(), recipe, file, **more)


@pytest.mark.parametrize("halved", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_it_learns_what_is_easy(method: str, halved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With products of float32 and of bfloat16."""
    monkeypatch.setattr(trainer_module, "_HALVED", halved)
    one = trainer(method, tmp_path / "state.pt")
    assert one.sizes == (28, 4)
    assert one.steps == 10 * 7
    watch = Watch()
    before = one.measure()
    assert one.run(watch)
    assert watch.losses[-1] < watch.losses[0] / 3
    assert before.rates()[0] < 0.3
    rates = one.measure().rates()
    assert min(rates) > 0.8
    assert rates == sorted(rates, reverse=True)
    assert [done for done, _ in watch.reports] == [32, 64]


@pytest.mark.parametrize("method", METHODS)
def test_a_break_changes_no_bit(method: str, tmp_path: Path) -> None:
    recipe = Recipe(epochs=2, batch=4, rate=1e-2, seed=5)
    whole = trainer(method, tmp_path / "whole.pt", recipe)
    assert whole.run(Watch())
    for last in (3, 4):
        assert not trainer(method, tmp_path / "parts.pt", recipe).run(Watch(last))
    parts = trainer(method, tmp_path / "parts.pt", recipe)
    assert parts.done == 7
    assert parts.run(Watch())
    for (name, wanted), (_, found) in zip(whole.head.named_parameters(), parts.head.named_parameters(), strict=True):
        assert torch.equal(wanted, found), name


def test_another_seed_gives_another_head(tmp_path: Path) -> None:
    heads = []
    for seed in (1, 1, 2):
        one = trainer("eagle3", tmp_path / f"{len(heads)}.pt", Recipe(1, 4, 1e-2, seed))
        one.run(Watch())
        heads.append(one.head.state_dict()["fc.weight"])
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_states_are_saved_by_the_clock(tmp_path: Path) -> None:
    file, times = tmp_path / "state.pt", iter([0.0, 30.0, 61.0, 61.0])
    seen = []

    class Looking(Watch):
        def stopped(self) -> bool:
            seen.append(file.exists())
            return len(seen) == 3

    trainer("eagle3", file, clock=lambda: next(times)).run(Looking())
    assert seen == [False, False, True]
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]


@pytest.mark.parametrize("content", [b"", b"no state", None])
def test_a_state_of_something_else_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "state.pt"
    if content is None:
        trainer("mtp", file).save()
    else:
        file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"state\.pt: not a state of this training"):
        trainer("eagle3", file)


def test_the_rate_rises_and_falls(tmp_path: Path) -> None:
    one = trainer("eagle3", tmp_path / "state.pt", Recipe(100, 28, 1e-2, 0))
    shares = []
    for step in range(one.steps):
        one.done = step
        shares.append(one._share())
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    assert shares[4:] == sorted(shares[4:], reverse=True)
    assert 0.1 <= shares[-1] < 0.11
