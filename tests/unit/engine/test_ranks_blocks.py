"""Blocks that are moved on several ranks: each gets its part of their bytes, and rank 0 makes them whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from test_ranks_leader import Runner, kill, numbered, ranks

from headrace.engine.ranks.leader import GroupRunner
from headrace.engine.ranks.pipeline import PipelineRunner
from headrace.engine.ranks.rank_messages import Loaded, RunStep, decode, encode
from headrace.errors import DeviceLost
from headrace.types import StepPlan, StepResult


class Reader(Runner):
    """Rank 0's own: its part of each block is its number and the block's."""

    def __init__(self, count: int | None = None) -> None:
        super().__init__()
        self._count = count
        """Of parts; None: as many as are stored."""

    def result(self) -> StepResult:
        (plan,) = self.plans[-1:]
        blocks = [] if plan.stores is None else plan.stores.tolist()
        stored = [np.array([0, block], np.uint8) for block in blocks][: self._count]
        return StepResult(np.zeros(1, np.int32), stored=stored)


def moving(step: int, stores: Sequence[int] = (), loads: Sequence[tuple[int, bytes]] = ()) -> StepPlan:
    plan = numbered(step)
    plan.stores = np.array(stores, np.int32)
    plan.loads = tuple(loads)
    return plan


def whole(found: StepResult) -> list[list[int]]:
    assert found.stored is not None
    return [block.tolist() for block in found.stored]


@pytest.mark.parametrize("kind", [GroupRunner, PipelineRunner])
def test_blocks_are_made_of_the_parts_of_all_ranks(kind: type[GroupRunner]) -> None:
    """A pipeline's result comes from the last stage, and its blocks from all."""
    with ranks("reads", size=3) as made:
        made.await_all(Loaded)
        assert made.share_blocks(2) == (2, 2, 2)
        made.result = lambda step, rows, check: StepResult(np.array([step], np.int32))  # type: ignore[method-assign]
        runner = kind(Reader(), made)
        launched = [runner.launch(moving(step, [5, 6][:step])) for step in (1, 2)]
        assert whole(launched[1].result()) == [[0, 5, 1, 5, 2, 5], [0, 6, 1, 6, 2, 6]]
        assert whole(runner.launch(moving(3)).result()) == []
        assert not made._followers[0].blocks.keys() - {1}, "nothing is kept of what was asked for"


def test_each_rank_loads_its_part() -> None:
    with ranks("reads", size=3) as made:
        made.await_all(Loaded)
        made.share_blocks(1)
        own = Runner()
        data = memoryview(bytes([9, 10, 11, 20, 21]))
        GroupRunner(own, made).launch(moving(1, loads=[(7, data)]))
        assert own.plans[0].loads == ((7, data),), "its own part is cut by the runner"
        assert [part.tolist() for part in made.whole_blocks(1, [np.array([9], np.uint8)])] == [[9, 10, 11, 20, 21]]


def test_loads_survive_the_way() -> None:
    message = decode(encode(RunStep.of(moving(1)).loading([(3, bytes(range(8))), (4, bytearray(8))], slice(2, 5))))
    assert isinstance(message, RunStep)
    assert message.plan().loads == ((3, b"\2\3\4"), (4, bytes(3)))


def test_a_rank_that_ends_while_its_part_is_awaited() -> None:
    with ranks("ok") as made:  # It takes steps, and never answers.
        made.await_all(Loaded)
        launched = GroupRunner(Reader(), made).launch(moving(1, [3]))
        kill(made)
        with pytest.raises(DeviceLost, match="rank 1 was killed by signal 9"):
            launched.result()
