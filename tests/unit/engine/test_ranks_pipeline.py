"""Rank 0 and the last stage of a pipeline: results come back by step, and the loss of a rank ends all of them."""

from __future__ import annotations

import os
import queue
import signal
import threading
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import pytest
from test_ranks_leader import Runner, kill, numbered, ranks

from headrace.config import CacheConfig, Config, ModelConfig, ParallelConfig, SchedulerConfig
from headrace.engine.plans import dummy_plan
from headrace.engine.ranks import leader, step_patience
from headrace.engine.ranks.leader import Followers
from headrace.engine.ranks.pipeline import PipelineRunner
from headrace.engine.ranks.rank_messages import Loaded, RankMessage, StepDone, decode, encode
from headrace.engine.ranks.result_sender import ResultSender
from headrace.engine.ranks.step_patience import StepPatience, rows_of, wait_patiently
from headrace.engine.stages import check_stages, describe_stages, shard_of, widest_stage
from headrace.errors import ConfigError, DeviceLost, PlatformError
from headrace.models.config import DecoderConfig, LayerConfig, Rope
from headrace.types import StepResult


def test_a_result_survives_the_way() -> None:
    given = StepResult(
        np.array([5, -1], np.int32),
        logprobs=np.array([-0.5, -2.0], np.float32),
        ranks=np.array([1, 9], np.int32),
        hidden=np.ones((3, 4), np.float32),
    )
    message = decode(encode(StepDone.of(7, given)))
    assert isinstance(message, StepDone)
    found = message.result()
    assert message.step == 7
    for name in ("tokens", "logprobs", "ranks", "hidden"):
        one, other = getattr(found, name), getattr(given, name)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    assert (found.top_ids, found.top_logprobs, found.counts, found.stored) == (None, None, None, None)


def test_results_of_several_steps_in_flight_find_their_steps() -> None:
    with ranks("answers", size=3) as made:
        made.await_all(Loaded)
        own = Runner()
        runner = PipelineRunner(own, made)
        launched = [runner.launch(numbered(step)) for step in range(1, 4)]
        assert [one.result().tokens.tolist() for one in launched] == [[1], [2], [3]]
        assert [plan.step for plan in own.plans] == [1, 2, 3]
        assert not any(rank.results for rank in made._followers), "nothing is kept"


def test_done_says_whether_the_result_is_here() -> None:
    with ranks("answers") as made:
        made.await_all(Loaded)
        launched = PipelineRunner(Runner(), made).launch(numbered(1))
        with made._changed:
            assert made._changed.wait_for(launched.done, 600)
        assert launched.result().tokens.tolist() == [1]
        assert not made.has_result(2)


def test_a_lost_rank_ends_every_step_in_flight() -> None:
    with ranks("ok") as made:  # It takes steps, and never answers.
        made.await_all(Loaded)
        runner = PipelineRunner(Runner(), made)
        launched = [runner.launch(numbered(step)) for step in (1, 2)]
        kill(made)
        for one in launched:
            with pytest.raises(DeviceLost, match=r"^rank 1 was killed by signal 9$"):
                one.result()
            assert one.done()
        with pytest.raises(DeviceLost, match="rank 1"):
            runner.launch(numbered(3))


def test_results_are_sent_in_order_until_a_step_fails() -> None:
    sent: queue.SimpleQueue[RankMessage] = queue.SimpleQueue()
    failed: queue.SimpleQueue[Exception] = queue.SimpleQueue()
    sender = ResultSender(sent.put, failed.put)

    def fails() -> StepResult:
        raise PlatformError("an index out of range")

    for step in (1, 2):
        sender.put(lambda step=step: StepDone.of(step, StepResult(np.array([step], np.int32))))  # type: ignore[misc]
    sender.put(lambda: StepDone.of(3, fails()))
    sender.close()
    found = [sent.get(timeout=600) for _ in range(2)]
    assert [(one.step, one.result().tokens.tolist()) for one in found if isinstance(one, StepDone)] == [
        (1, [1]), (2, [2])
    ]  # fmt: skip
    assert str(failed.get(timeout=600)) == "an index out of range"
    assert sent.empty()


def config(stages: int, size: int = 1, speculate: str | None = None) -> Config:
    return Config(
        model=ModelConfig(model="m"),
        cache=CacheConfig(),
        scheduler=SchedulerConfig(speculate=speculate),
        parallel=ParallelConfig(tensor_parallel_size=size, pipeline_parallel_size=stages),
    )


def model(*layers: int | None) -> DecoderConfig:
    return DecoderConfig(
        family="llama", hidden=64, num_q_heads=8, num_kv_heads=4, head_dim=8, intermediate=96, vocab=160,
        layers=tuple(LayerConfig(window=window) for window in layers), ropes=(Rope(1e4, 8),), max_position=64,
        norm_eps=1e-5,
    )  # fmt: skip


def test_ranks_are_counted_and_described() -> None:
    layers = model(*[None] * 5)
    assert config(3, 2).parallel.world_size == 6
    assert describe_stages(config(1), layers) == []
    assert describe_stages(config(1, 2), layers) == ["2 ranks, each with its part of every layer"]
    assert describe_stages(config(2), layers) == ["2 stages of 3, 2 layers"]
    assert describe_stages(config(2, 2), layers) == [
        "2 stages of 3, 2 layers", "4 ranks, each with its part of every layer of its stage"
    ]  # fmt: skip
    assert shard_of(config(2, 2), 3).number == 3


def test_memory_is_planned_for_the_stage_with_the_largest_blocks() -> None:
    assert widest_stage(config(2), model(*[None] * 5)).stage == 0
    assert widest_stage(config(1), model(None)).stages == 1
    with pytest.raises(ConfigError, match="choose at most 2"):
        widest_stage(config(3), model(None, None))


@pytest.mark.parametrize("method", ["draft:m", "eagle3:m", "mtp", "mtp:m", "dflash:m"])
def test_drafters_that_read_the_whole_model_are_refused(method: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"pipeline_parallel_size 2: what {method.partition(':')[0]} drafts with"):
        check_stages(config(2, speculate=method))
    check_stages(config(1, speculate=method))
    check_stages(config(2, speculate="ngram"))


def stopped(made: Followers) -> int:
    """Stop the only rank, and wait until the system says so."""
    (pid,) = made.pids
    os.kill(pid, signal.SIGSTOP)
    while not made._followers[0].standing():
        os.sched_yield()
    return pid


def test_a_rank_that_stands_still_is_noticed_by_the_time_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_patience, "_FIRST", 0.05)
    monkeypatch.setattr(step_patience, "_SLICE", 0.01)
    monkeypatch.setattr(leader, "_EXIT_TIMEOUT", 0.1)
    with ranks("answers") as made:
        made.await_all(Loaded)
        runner = PipelineRunner(Runner(), made)
        stopped(made)
        launched = runner.launch(numbered(1))
        with pytest.raises(DeviceLost, match=r"^step 1 gave no result within 0 s .*: rank 1: its process is stopped$"):
            launched.result()


def test_a_rank_that_hangs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process runs, and never answers."""
    monkeypatch.setattr(step_patience, "_FIRST", 0.05)
    with ranks("ok") as made:
        made.await_all(Loaded)
        launched = PipelineRunner(Runner(), made).launch(numbered(1))
        with pytest.raises(DeviceLost, match=r"one of the ranks 0 to 1 hangs$"):
            launched.result()


def test_a_first_stage_that_fails_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other stage waits for its rows, and would be taken for one that hangs."""
    monkeypatch.setattr(leader, "_ERROR_TIMEOUT", 0.01)
    with ranks("ok") as made:
        made.await_all(Loaded)
        launched = PipelineRunner(Runner(PlatformError("an index out of range")), made).launch(numbered(1))
        with pytest.raises(DeviceLost, match=r"^an index out of range$"):
            launched.result()


def test_a_rank_that_takes_no_messages_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the kernel keeps for it are sent; whoever sends more does not wait for ever, nor does the end."""
    monkeypatch.setattr(leader, "_SEND_TIMEOUT", 0.04)
    monkeypatch.setattr(leader, "_EXIT_TIMEOUT", 0.04)
    monkeypatch.setattr(leader, "_SEND_SLICE", 0.02)
    monkeypatch.setattr(leader, "_ERROR_TIMEOUT", 0.01)
    with ranks("ok") as made:
        made.await_all(Loaded)
        pid = stopped(made)
        runner = PipelineRunner(Runner(), made)

        def launch_many() -> None:
            for step in range(10_000):
                runner.launch(numbered(step))

        with pytest.raises(DeviceLost, match="rank 1 does not listen: its process is stopped"):
            launch_many()
        assert psutil.pid_exists(pid)


def test_the_patience_grows_with_what_steps_take() -> None:
    patience = StepPatience()
    assert patience.limit(1) == 600
    patience.waited(0.1, 1)
    assert patience.limit(1) == 60
    assert patience.limit(512) == pytest.approx(2 * 512 * 0.1), "a chunk may take as long as its rows one by one"
    patience.waited(5.0, 512)
    patience.waited(0.2, 512)
    assert (patience.limit(512), patience.longest) == (pytest.approx(2 * 512 * 0.1), 5.0)
    assert patience.limit(1) == 100


def test_a_chunk_behind_a_long_text_may_take_longer() -> None:
    """Its text came from a tier: nothing like it was measured before."""
    plan, start, count = dummy_plan(), 32 * 1024, 512
    plan.token_ids, plan.positions = np.zeros(count, np.int32), np.arange(start, start + count, dtype=np.int32)
    assert rows_of(dummy_plan()) == 1
    assert rows_of(plan) == pytest.approx(count * (1 + 32.25), abs=1)


def test_time_in_which_all_stood_still_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on by 1,000 s in each of three waits."""
    monkeypatch.setattr(step_patience, "_SLICE", 0.001)
    asked = count()
    changed, happened = threading.Condition(), iter([False] * 8)

    def clock() -> float:
        return 1000.0 * next(asked)

    with changed:
        found = wait_patiently(changed, lambda: next(happened, True), 0.1, clock)
        assert found is not None
        assert 0 < found < 0.1
        assert wait_patiently(changed, lambda: True, 0.0) == 0.0
        assert wait_patiently(changed, lambda: False, 0.003) is None
