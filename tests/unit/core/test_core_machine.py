"""Hypothesis drives the scheduler through the calls an engine may make, and shrinks what fails."""

from __future__ import annotations

from dataclasses import replace

from core_driver import SMALL, Driver, Record, naive, request, same
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

CONFIG = replace(SMALL, num_blocks=12, block_size=2, max_num_seqs=3, max_num_batched_tokens=6, max_model_len=20)
PROMPTS = st.lists(st.integers(2, 3), min_size=1, max_size=12)


class Engine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(CONFIG, depth=2, eos_every=5)
        self.expected: dict[str, Record] = {}

    @rule(
        prompt=PROMPTS,
        output=st.integers(0, 8),
        priority=st.integers(0, 1),
        salt=st.sampled_from(["", "x"]),
        scored=st.sampled_from([None, 0]),
        start=st.integers(0, 11),
        named=st.sampled_from([(), (3, 2)]),
    )
    def add(
        self,
        prompt: list[int],
        output: int,
        priority: int,
        salt: str,
        scored: int | None,
        start: int,
        named: tuple[int, ...],
    ) -> None:
        made = request(
            f"r{len(self.expected)}",
            prompt,
            output,
            self.driver.now,
            priority,
            salt,
            prompt_logprobs=scored,
            prompt_logprobs_start=min(start, len(prompt) - 1),
            logprobs=1,
            logprob_token_ids=named,
        )
        self.driver.add(made)
        self.expected[made.id] = naive(made, CONFIG, 5)

    @precondition(lambda self: len(self.driver.in_flight) < 2)
    @rule()
    def schedule(self) -> None:
        waiting = self.driver.scheduler.stats().waiting
        plan = self.driver.schedule()
        if plan is None and waiting:
            assert self.driver.in_flight, "nothing runs though something waits"

    @precondition(lambda self: self.driver.in_flight)
    @rule()
    def commit(self) -> None:
        self.driver.commit()

    @precondition(lambda self: self.driver.in_flight)
    @rule()
    def fail(self) -> None:
        plan, _ = self.driver.in_flight.popleft()
        deltas = self.driver.take(self.driver.scheduler.fail(plan, "lost"))
        assert {delta.request_id for delta in deltas if delta.error} <= set(plan.request_ids)
        assert self.driver.scheduler.stats().running == 0

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        running = [id for id, record in self.driver.records.items() if record.reason is None]
        if running:
            self.driver.scheduler.abort(data.draw(st.sampled_from(running)))
            self.driver.take(self.driver.scheduler.drain())

    @rule()
    def forget(self) -> None:
        self.driver.scheduler.reset_cache()
        assert self.driver.scheduler.stats().blocks_cached == 0

    @invariant()
    def conserved(self) -> None:
        self.driver.check()
        stats = self.driver.scheduler.stats()
        assert stats.blocks_free + stats.blocks_cached + stats.blocks_held == CONFIG.num_blocks - 1
        assert 0 <= stats.kv_tokens <= stats.blocks_held * CONFIG.block_size

    def teardown(self) -> None:
        for id, record in self.driver.run().items():
            same(record, self.expected[id])


TestEngine = Engine.TestCase
TestEngine.settings = settings(
    derandomize=True,
    database=None,
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
