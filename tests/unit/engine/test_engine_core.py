"""The loop: one step ahead of the device, failures that only affect their requests, and the stats."""

from __future__ import annotations

import numpy as np
import pytest
from engine_fakes import VOCAB, FakeEngine, FakeLaunched, FakeRunner, expected, make_engine

from headrace.engine.core_loop import EngineCore
from headrace.errors import DeviceLost, NeverFits, Overloaded, PlatformError
from headrace.types import NOT_FINITE, Delta, Request, SamplingParams, StepPlan, StepResult


def request(id: str, prompt: tuple[int, ...] = (1, 2, 3), **params: object) -> Request:
    return Request(id, prompt, SamplingParams(**{"seed": 0, "max_tokens": 5, **params}))  # type: ignore[arg-type]


def run(engine: FakeEngine, deltas: list[Delta] | None = None) -> dict[str, list[int]]:
    """Step until nothing is left; tokens by request."""
    found: dict[str, list[int]] = {}
    for delta in deltas or []:
        found.setdefault(delta.request_id, []).extend(delta.token_ids)
    while engine.core.has_work():
        for delta in engine.core.step():
            found.setdefault(delta.request_id, []).extend(delta.token_ids)
        engine.scheduler.check()
    return found


def test_tokens_of_one_request() -> None:
    engine = make_engine()
    engine.core.add([request("a")])
    assert run(engine) == {"a": expected((1, 2, 3), 5)}


def test_tokens_of_many_requests_are_those_of_each_alone() -> None:
    engine = make_engine(max_num_seqs=3)
    prompts = {f"r{i}": tuple(range(i, 2 * i + 5)) for i in range(12)}
    engine.core.add([request(id, prompt) for id, prompt in prompts.items()])
    assert run(engine) == {id: expected(prompt, 5) for id, prompt in prompts.items()}


def test_the_next_step_is_launched_before_this_one_is_read() -> None:
    events: list[str] = []

    class Logged(FakeRunner):
        def launch(self, plan: StepPlan) -> object:  # type: ignore[override]
            events.append(f"launch {plan.step}")
            return super().launch(plan)

        def run(self, plan: StepPlan) -> object:  # type: ignore[override]
            events.append(f"read {plan.step}")
            return super().run(plan)

    engine = make_engine(Logged())
    engine.core.add([request("a", max_tokens=4)])
    run(engine)
    assert events == ["launch 1", "launch 2", "read 1", "launch 3", "read 2", "launch 4", "read 3", "read 4"]


def test_preempted_requests_generate_the_same() -> None:
    engine = make_engine(num_blocks=12)
    prompts = {f"r{i}": tuple(range(10 * i, 10 * i + 8)) for i in range(6)}
    engine.core.add([request(id, prompt, max_tokens=16) for id, prompt in prompts.items()])
    assert run(engine) == {id: expected(prompt, 16) for id, prompt in prompts.items()}
    assert engine.scheduler.stats().preemptions > 0


def test_all_children_are_admitted_or_none() -> None:
    engine = make_engine(max_waiting=2)
    with pytest.raises(Overloaded):
        engine.core.add([request("a"), request("b"), request("c")])
    assert not engine.core.has_work()
    engine.core.add([request("a")])
    with pytest.raises(AssertionError, match="one for each sequence"):
        engine.core.add([request("b"), request("a")])
    assert run(engine) == {"a": expected((1, 2, 3), 5)}


def test_what_can_never_run_is_refused_at_once() -> None:
    with pytest.raises(NeverFits):
        make_engine(num_blocks=16).core.add([request("a", tuple(range(70)))])


def test_abort_by_exact_id() -> None:
    engine = make_engine()
    engine.core.add([request("req-1"), request("req-10")])
    engine.core.step()
    engine.core.abort(["req-1", "nobody"])
    assert run(engine) == {"req-10": expected((1, 2, 3), 5)}


def test_blocks_are_free_after_an_abort_at_any_step() -> None:
    for steps in range(12):
        engine = make_engine()
        engine.core.add([request("a", tuple(range(40)), max_tokens=8)])
        for _ in range(steps):
            engine.core.step()
        engine.core.abort(["a"])
        assert run(engine).get("a", []) == []
        stats = engine.core.stats().scheduler
        assert (stats.running, stats.waiting, stats.blocks_held) == (0, 0, 0)


def test_a_finished_request_sends_nothing_more() -> None:
    engine = make_engine()
    engine.core.add([request("a"), request("b")])
    while not (deltas := engine.core.step()):
        pass
    engine.core.finish("a")
    assert run(engine) == {"b": expected((1, 2, 3), 5)[len([d for d in deltas if d.request_id == "b"]) :]}


class FailsAt:
    def __init__(self, step: int, error: Exception) -> None:
        self.step, self.error = step, error

    def __call__(self, plan: StepPlan) -> Exception | None:
        return self.error if plan.step == self.step else None


@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_failed_step_ends_its_requests_and_no_other(step: int) -> None:
    runner = FakeRunner(fail=FailsAt(step, PlatformError("kernel fault at 0x0")))
    engine = make_engine(runner)
    engine.core.add([request("a")])
    errors = []
    while engine.core.has_work():
        errors += [delta for delta in engine.core.step() if delta.error]
        engine.scheduler.check()
    assert [delta.finish_reason for delta in errors] == ["error"]
    assert f"step {step}" in str(errors[0].error)
    assert "kernel fault at 0x0" in str(errors[0].error)
    engine.core.add([request("b")])
    assert run(engine) == {"b": expected((1, 2, 3), 5)}


def test_a_step_that_cannot_be_launched_ends_its_requests() -> None:
    class Full(FakeRunner):
        def launch(self, plan: StepPlan) -> object:  # type: ignore[override]
            if plan.step == 1:
                raise PlatformError("out of memory: 5 bytes asked, 3 free")
            return super().launch(plan)

    engine = make_engine(Full())
    engine.core.add([request("a")])
    deltas = engine.core.step()
    assert [(delta.request_id, delta.finish_reason) for delta in deltas] == [("a", "error")]
    engine.core.add([request("b")])
    assert run(engine) == {"b": expected((1, 2, 3), 5)}


def test_a_lost_device_ends_the_engine() -> None:
    engine = make_engine(FakeRunner(fail=FailsAt(2, DeviceLost("fell off the bus"))))
    engine.core.add([request("a")])
    with pytest.raises(DeviceLost):
        run(engine)


def test_stats_of_a_busy_and_an_idle_engine() -> None:
    """By a clock that only the device's work moves: 5 ms a step."""
    now = 100.0

    class Slow(FakeRunner):
        def run(self, plan: StepPlan) -> StepResult:
            nonlocal now
            now += 0.005
            return super().run(plan)

    engine = make_engine()
    engine.core = EngineCore(engine.scheduler, Slow(), 8, 4, lambda: now)
    engine.core.add([request(f"r{i}", max_tokens=20) for i in range(4)])
    run(engine)
    stats = engine.core.stats()
    assert stats.steps >= 20
    assert 0.4 <= stats.slot_occupancy <= 0.5
    assert stats.device_busy > 0.5
    assert 0.3 < stats.kv_utilization <= 1
    idle = make_engine().core.stats()
    assert (idle.device_busy, idle.slot_occupancy, idle.kv_utilization) == (0, 0, 0)


def test_an_error_of_any_class_in_a_launch_ends_the_step_alone() -> None:
    class Broken(FakeRunner):
        def launch(self, plan: StepPlan) -> object:  # type: ignore[override]
            if plan.step == 1:
                raise ValueError("planted")
            return super().launch(plan)

    engine = make_engine(Broken())
    engine.core.add([request("a")])
    (delta,) = engine.core.step()
    assert (delta.finish_reason, delta.error) == ("error", "step 1 failed on the device: ValueError: planted")
    engine.core.add([request("b")])
    assert run(engine) == {"b": expected((1, 2, 3), 5)}


def test_logits_that_are_not_finite_are_looked_at_again() -> None:
    class Broken(FakeRunner):
        def run(self, plan: StepPlan) -> StepResult:
            result = super().run(plan)
            if "a" in plan.request_ids:
                result.tokens[plan.row_seq == plan.request_ids.index("a")] = NOT_FINITE
            return result

    engine = make_engine(Broken())
    engine.core.add([request("a"), request("b", (4, 5))])
    deltas: list[Delta] = []
    while engine.core.has_work():
        deltas += engine.core.step()
    (error,) = [delta for delta in deltas if delta.request_id == "a"]
    assert error.error == "the model's logits are not finite: looked at [1, 2, 3]"
    assert [token for delta in deltas if delta.request_id == "b" for token in delta.token_ids] == expected((4, 5), 5)
    assert engine.scheduler.broken == {}


class AnyToken:
    """A grammar that allows every token."""

    mask = np.full(-(-VOCAB // 32), 0xFFFFFFFF, np.uint32)
    accepting = True
    stopped = False

    def forced(self) -> list[int]:
        return []

    def advance(self, token: int) -> str | None:
        return None


class TwoParts(FakeRunner):
    """Logs when each part of a step is launched and read; `broken`: the step whose second part fails."""

    def __init__(self, broken: int = -1) -> None:
        super().__init__()
        self.events: list[str] = []
        self.broken = broken

    def launch(self, plan: StepPlan) -> FakeLaunched:
        self.events.append(f"launch {plan.step}")
        launched = super().launch(plan)
        launched.sample = lambda: self.sample(plan)  # type: ignore[method-assign]
        return launched

    def sample(self, plan: StepPlan) -> None:
        self.events.append(f"sample {plan.step}")
        if plan.step == self.broken:
            raise PlatformError("no memory for the masks")

    def run(self, plan: StepPlan) -> StepResult:
        self.events.append(f"read {plan.step}")
        return super().run(plan)


def test_a_constrained_step_is_sampled_once_the_step_before_it_is_read() -> None:
    runner = TwoParts()
    engine = make_engine(runner)
    engine.scheduler.add(request("a", max_tokens=4), AnyToken())
    assert run(engine) == {"a": expected((1, 2, 3), 4)}
    assert runner.events == [
        *("launch 1", "sample 1", "launch 2", "read 1", "sample 2"),
        *("launch 3", "read 2", "sample 3", "launch 4", "read 3", "sample 4", "read 4"),
    ]


def test_a_second_part_that_fails_ends_the_requests_of_its_step() -> None:
    engine = make_engine(TwoParts(broken=3))
    engine.scheduler.add(request("a", max_tokens=9), AnyToken())
    deltas: list[Delta] = []
    while engine.core.has_work():
        deltas += engine.core.step()
        engine.scheduler.check()
    assert deltas[-1].finish_reason == "error"
    assert "no memory for the masks" in str(deltas[-1].error)
    engine.core.add([request("b")])
    assert run(engine) == {"b": expected((1, 2, 3), 5)}
