"""Rank 0 and the processes of the other ranks: plans reach them, their exits are reported, and no files remain."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import numpy as np
import psutil
import pytest
from engine_fakes import make_engine

from headrace.engine.channel import Channel
from headrace.engine.core_loop import EngineCore
from headrace.engine.plans import dummy_plan, history_plan
from headrace.engine.ranks import follower, leader
from headrace.engine.ranks.leader import Followers, GroupRunner
from headrace.engine.ranks.rank_messages import (
    Loaded,
    Opened,
    RankMessage,
    RunStep,
    SampleStep,
    Sizes,
    Start,
    Stop,
    decode,
    encode,
)
from headrace.errors import CheckpointError, ConfigError, DeviceLost, HeadraceError, PlatformError
from headrace.types import StepPlan, StepResult

pytestmark = pytest.mark.usefixtures("forks")
COMMAND = (sys.executable, str(Path(__file__).with_name("ranks_fake_follower.py")))


@contextmanager
def ranks(behaviour: str, size: int = 2) -> Iterator[Followers]:
    made = Followers(behaviour, size, lambda rank: rank, COMMAND)
    meeting = Path(made.rendezvous.removeprefix("file://")).parent
    assert meeting.stat().st_mode & 0o777 == 0o700
    try:
        made.start()
        pids = made.pids
        yield made
    finally:
        made.close()
        made.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not meeting.exists()


def kill(made: Followers) -> None:
    """A rank that ends by itself on a message may end before or after the sender looks whether it runs."""
    (pid,) = made.pids
    os.kill(pid, signal.SIGKILL)


class Runner:
    """Rank 0's own."""

    def __init__(self, error: PlatformError | None = None) -> None:
        self.plans: list[StepPlan] = []
        self._error = error

    def launch(self, plan: StepPlan) -> Runner:
        self.plans.append(plan)
        return self

    def done(self) -> bool:
        return True

    def result(self) -> StepResult:
        if self._error is not None:
            raise self._error
        return StepResult(np.zeros(1, np.int32))


def numbered(step: int) -> StepPlan:
    plan = dummy_plan()
    plan.step = step
    return plan


def test_plans_survive_the_way() -> None:
    tokens, positions, slots = (np.array(x, np.int32) for x in ([5, 6, 7], [0, 1, 0], [3, 3, 1]))
    for plan in (dummy_plan(), history_plan(tokens, positions, slots)):
        plan.request_ids = ("a", "b")
        plan.sampling.allowed = np.array([[1, 2**31]], np.uint32)
        plan.sampling.seed = np.array([2**64 - 1], np.uint64)
        message = decode(encode(RunStep.of(plan)))
        assert isinstance(message, RunStep)
        found = message.plan()
        for one, other in ((plan, found), (plan.sampling, found.sampling)):
            for field in fields(one):
                a, b = getattr(one, field.name), getattr(other, field.name)
                if isinstance(a, np.ndarray):
                    assert a.dtype == b.dtype
                    np.testing.assert_array_equal(a, b)
                elif field.name == "params":
                    assert a.keys() == b.keys()
                    assert all(np.array_equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)
                elif field.name != "sampling":
                    assert a == b, field.name


def test_the_second_part_of_a_plan_survives_the_way() -> None:
    plan, theirs = dummy_plan(), dummy_plan()
    plan.row_target = np.array([7], np.int32)
    plan.sampling.allowed, plan.sampling.allowed_row = np.array([[1, 2**31]], np.uint32), np.array([0], np.int32)
    message = decode(encode(SampleStep.of(plan)))
    assert isinstance(message, SampleStep)
    message.complete(theirs)
    assert theirs.row_target.tolist() == [7]
    assert theirs.sampling.allowed is not None
    assert theirs.sampling.allowed.tolist() == [[1, 2**31]]
    assert theirs.sampling.allowed_row is not None
    assert theirs.sampling.allowed_row.tolist() == [0]


def test_a_rank_without_its_first_ends_and_clears_up(tmp_path: Path) -> None:
    meeting = tmp_path / "headrace-meeting"
    meeting.mkdir()
    here, there = socket.socketpair()
    with there:
        command = [*leader.COMMAND, str(there.fileno())]
        process = subprocess.Popen(command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL)
    try:
        with here:
            Channel(here).send(encode(Start("{}", 1, 2, 0, f"file://{meeting}/meeting")))
        assert process.wait(600) == 0
    finally:
        process.kill()
        process.wait()
    assert not meeting.exists()


def test_a_rank_whose_messages_were_not_read_ends_and_cleans_up_too(tmp_path: Path) -> None:
    """Rank 0 died before it had read them: its end is an error on the socket."""
    meeting = tmp_path / "headrace-meeting"
    meeting.mkdir()
    code = (
        "import queue, socket, sys; from headrace.engine.channel import Channel; "
        "from headrace.engine.ranks.follower import _read; "
        "link = socket.socket(fileno=int(sys.argv[1])); link.sendall(b'words'); "
        "_read(Channel(link), queue.SimpleQueue())"
    )
    here, there = socket.socketpair()
    with there:
        process = subprocess.Popen([sys.executable, "-c", code, str(there.fileno())], pass_fds=[there.fileno()])
    try:
        with here:
            Channel(here).send(encode(Start("{}", 1, 2, 0, f"file://{meeting}/meeting")))
            here.setblocking(True)
            assert here.recv(1, socket.MSG_PEEK) == b"w"
        assert process.wait(600) == 0
    finally:
        process.kill()
        process.wait()
    assert not meeting.exists()


@pytest.mark.parametrize("level", [logging.WARNING, logging.DEBUG])
def test_ranks_log_as_much_as_their_first(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("headrace"), "level", level)
    with ranks("tells its level") as made, pytest.raises(CheckpointError, match=f"level {level}$"):
        made.await_all(Opened)


def test_a_rank_takes_the_log_level_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[int] = []
    monkeypatch.setattr(logging.getLogger(), "setLevel", set_to.append)

    def fails(*_: object) -> None:
        raise ConfigError("far enough")

    monkeypatch.setattr("headrace.engine.rank_loading.load_follower", fails)
    messages: queue.SimpleQueue[RankMessage] = queue.SimpleQueue()
    messages.put(Start("{}", 1, 2, 0, "", logging.ERROR))
    here, there = socket.socketpair()
    with here, there, pytest.raises(ConfigError, match="far enough"):
        follower._run(Channel(here), messages)
    assert set_to == [logging.ERROR]


def test_one_rank_is_a_group_without_followers() -> None:
    alone = Followers("{}", 1, lambda rank: rank, COMMAND)
    alone.start()
    assert (alone.pids, alone.rendezvous, alone.lost()) == ([], "", None)
    alone.await_all(Loaded)
    alone.send(Stop())
    own = Runner()
    assert alone.runner(own) is own
    alone.close()


def test_a_message_larger_than_the_socket_arrives_complete() -> None:
    with ranks("ok") as made:
        made.await_all(Loaded)
        plan = numbered(1)
        plan.block_tables = np.zeros((64, 1 << 16), np.int32)
        GroupRunner(Runner(), made).launch(plan)
        (rank,) = made._followers
    # It has read the end of the message, and what followed it.
    assert rank._process.returncode == 0


def test_ranks_load_get_plans_and_end() -> None:
    with ranks("ok", size=3) as made:
        made.await_all(Opened)
        made.send(Sizes(64, 16, "float32", 9, 4, 32))
        made.await_all(Loaded)


def test_steps_go_to_every_rank_and_to_the_own_runner() -> None:
    with ranks("ok") as made:
        made.await_all(Loaded)
        own = Runner()
        runner = GroupRunner(own, made)
        for step in range(5):
            launched = runner.launch(numbered(step))
            assert launched.done()
            assert launched.result().tokens.tolist() == [0]
        assert [plan.step for plan in own.plans] == list(range(5))


def test_why_a_rank_cannot_load_is_raised_here() -> None:
    with ranks("fails") as made, pytest.raises(CheckpointError, match="no such tensor") as caught:
        made.await_all(Opened)
    assert (caught.value.path, caught.value.tensor) == ("model.safetensors", "q")


def test_a_rank_that_ends_while_it_loads_is_reported_with_its_code() -> None:
    with ranks("dies") as made, pytest.raises(DeviceLost, match="rank 1 ended with code 3"):
        made.await_all(Opened)


def test_a_rank_that_is_killed_is_named_by_the_next_step() -> None:
    with ranks("ok") as made:
        made.await_all(Loaded)
        runner = GroupRunner(Runner(), made)
        runner.launch(numbered(1))
        kill(made)
        assert isinstance(made.wait_for_error(600), DeviceLost)
        with pytest.raises(DeviceLost, match="rank 1 was killed by signal 9"):
            runner.launch(numbered(2))


def test_a_ranks_own_error_comes_before_the_errors_it_caused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "_ERROR_TIMEOUT", 600.0)
    with ranks("ok") as made:
        made.await_all(Loaded)
        runner = GroupRunner(Runner(DeviceLost("cpu: rank 1 has ended")), made)
        launched = runner.launch(numbered(1))
        kill(made)
        with pytest.raises(DeviceLost, match=r"rank 1 was killed by signal 9 \(cpu: rank 1 has ended\)"):
            launched.result()


def test_a_step_that_fails_here_alone_leaves_ranks_out_of_step() -> None:
    with ranks("ok") as made:
        made.await_all(Loaded)
        launched = GroupRunner(Runner(PlatformError("an index out of range")), made).launch(numbered(1))
        with pytest.raises(DeviceLost, match="an index out of range"):
            launched.result()


def test_a_rank_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "_EXIT_TIMEOUT", 0.3)
    with ranks("stays") as made:
        made.await_all(Loaded)


def test_an_idle_engine_reports_a_rank_that_ends() -> None:
    with ranks("ok") as made:
        made.await_all(Loaded)
        runner = GroupRunner(Runner(), made)
        core = EngineCore(make_engine().scheduler, runner, 4, 4, lost=made.lost)
        assert not core.has_work()
        assert core.step() == []
        runner.launch(numbered(1))
        kill(made)
        assert made.wait_for_error(600) is not None
        assert core.has_work()
        with pytest.raises(DeviceLost, match="rank 1 was killed by signal 9"):
            core.step()


def test_sending_to_an_exited_rank_is_an_error() -> None:
    with ranks("dies") as made:
        assert isinstance(made.wait_for_error(600), HeadraceError)
        with pytest.raises(DeviceLost, match="rank 1 ended with code 3"):
            made.send(Stop())


def test_without_a_temporary_folder_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(**_: object) -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("tempfile.mkdtemp", nowhere)
    with pytest.raises(ConfigError, match=r"No usable temporary directory .*set TMPDIR"):
        Followers("{}", 2, lambda rank: rank)
    Followers("{}", 1, lambda rank: rank).close()
