"""The runner on a device that only remembers: what it puts, compiles and reads back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.core import CoreConfig, Scheduler
from headrace.engine.plans import dummy_plan, history_plan
from headrace.engine.runner import Runner, RunnerConfig
from headrace.errors import PlatformError
from headrace.kernels.ops import SampleOutputs
from headrace.types import Bucket, Capabilities, KVLayout, LayerKV, Request, SamplingParams

LAYOUT = KVLayout((LayerKV(1, 4),), 4, "float32")
CONFIG = RunnerConfig(LAYOUT, 32, 4, 16, 32, 100)
CAPABILITIES = Capabilities(frozenset({"float32"}), frozenset({"float32"}))


class Done:
    def __init__(self, value: Any) -> None:
        self._value = value

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return self._value


class Device:
    """Tensors are numpy arrays; a step runs at once."""

    def __init__(self, **capabilities: Any) -> None:
        self._capabilities = replace(CAPABILITIES, **capabilities)
        self.puts = 0
        self.compiled: list[Bucket] = []
        self.copies: list[tuple[list[int], list[int]]] = []
        self.inputs: list[dict[str, np.ndarray]] = []

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def put(self, array: np.ndarray) -> np.ndarray:
        self.puts += 1
        return array.copy()

    def get(self, tensor: np.ndarray) -> Done:
        return Done(np.array(tensor))

    def alloc_kv(self, layout: KVLayout, num_blocks: int) -> str:
        return f"cache of {num_blocks}"

    def copy_blocks(self, kv: str, src: Sequence[int], dst: Sequence[int]) -> str:
        self.copies.append((list(src), list(dst)))
        return kv

    def compile(self, step_fn: Callable[..., Any], bucket: Bucket) -> Callable[..., Any]:
        self.compiled.append(bucket)

        def run(kv: str, inputs: Mapping[str, np.ndarray]) -> Any:
            self.inputs.append(dict(inputs))
            return step_fn(kv, inputs)

        return run


class Ops:
    """Resolves and samples according to the contract; the next token is the last one plus one."""

    def resolve_tokens(self, batch: Any, history: np.ndarray) -> np.ndarray:
        tokens = int(batch.sizes[0])
        slots, positions = batch.slots[batch.token_seq[:tokens]], batch.positions[:tokens]
        ids = np.where(batch.token_ids[:tokens] == -1, history[slots, positions], batch.token_ids[:tokens])
        history[slots, positions] = ids
        return ids

    def sample(self, logits: np.ndarray, inputs: Any, batch: Any, num_logprobs: int) -> SampleOutputs:
        rows = int(batch.sizes[2])
        tokens = np.full(len(inputs.target), 7, np.int32)
        tokens[:rows] = np.where(inputs.target[:rows] == -1, logits[:rows], -1)
        sampled = inputs.target[:rows] == -1
        inputs.history[inputs.slot[:rows][sampled], inputs.position[:rows][sampled]] = tokens[:rows][sampled]
        count = max(num_logprobs, 0)
        top = np.arange(count, dtype=np.int32)[None].repeat(len(tokens), 0)
        scores = tokens.astype(np.float32)
        return SampleOutputs(tokens, scores, tokens, top, top.astype(np.float32))  # type: ignore[arg-type]


class Model:
    def forward(self, batch: Any, kv: Any, history: np.ndarray) -> np.ndarray:
        assert kv == "cache of 32"
        return Ops().resolve_tokens(batch, history)[batch.rows[: int(batch.sizes[2])]] + 1


def make(**capabilities: Any) -> tuple[Runner, Device]:
    device = Device(**capabilities)
    return Runner(device, Model(), Ops(), CONFIG), device  # type: ignore[arg-type]


def scheduler() -> Scheduler:
    return Scheduler(CoreConfig(32, 4, 4, 16, 32, 100))


def run(runner: Runner, core: Scheduler) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    while core.has_work():
        plan = core.schedule(0.0)
        assert plan is not None
        for delta in core.commit(plan, runner.launch(plan).result(), 0.0):
            found.setdefault(delta.request_id, []).extend(delta.token_ids)
    return found


@pytest.mark.parametrize("static", [False, True])
def test_tokens_come_back_and_stay_on_the_device(static: bool) -> None:
    runner, device = make(static_shapes=static)
    core = scheduler()
    for at in range(6):
        core.add(Request(f"r{at}", (10 * at, 10 * at + 1), SamplingParams(max_tokens=5)))
    assert run(runner, core) == {f"r{at}": [10 * at + i for i in range(2, 7)] for at in range(6)}
    assert all(bucket.blocks == 8 for bucket in device.compiled)


def test_without_static_shapes_nothing_is_padded_and_one_step_serves_all() -> None:
    runner, device = make()
    core = scheduler()
    core.add(Request("a", tuple(range(20)), SamplingParams(max_tokens=3)))
    run(runner, core)
    assert device.compiled == [Bucket(16, 4, 4, 8)]
    assert [len(inputs["token_ids"]) for inputs in device.inputs] == [16, 4, 1, 1]


def test_static_shapes_are_few_powers_of_two() -> None:
    runner, device = make(static_shapes=True)
    core = scheduler()
    core.add(Request("a", tuple(range(20)), SamplingParams(max_tokens=3)))
    run(runner, core)
    assert device.compiled == [Bucket(16, 4, 4, 8, 8, 1), Bucket(8, 4, 4, 8, 8, 1)]
    for inputs, bucket in zip(device.inputs, [16, 8, 8, 8], strict=True):
        assert inputs["token_ids"].shape == inputs["slot_mapping"].shape == (bucket,)
        assert inputs["block_tables"].shape == (4, 8)
        assert inputs["query_start"].shape == (5,)
        assert inputs["temperature"].shape == (4,)


def test_inputs_of_a_bucket_never_change_their_shapes() -> None:
    """Whatever the number of biases and masks: an executable is called with one shape of each input."""

    class Watched(Device):
        def compile(self, step_fn: Callable[..., Any], bucket: Bucket) -> Callable[..., Any]:
            executable, seen = super().compile(step_fn, bucket), set()

            def run(kv: str, inputs: Mapping[str, np.ndarray]) -> Any:
                seen.add(tuple((name, array.shape) for name, array in inputs.items()))
                assert len(seen) == 1
                return executable(kv, inputs)

            return run

    device = Watched(static_shapes=True)
    runner = Runner(device, Model(), Ops(), CONFIG)  # type: ignore[arg-type]
    core = scheduler()
    for at in range(12):
        biases = tuple((token, 1.0) for token in range(at * at // 2))
        allowed = tuple(range(at, 40)) if at % 3 else None
        params = SamplingParams(max_tokens=3, logit_bias=biases, allowed_token_ids=allowed)
        core.add(Request(f"r{at}", (at, at + 1), params))
    run(runner, core)
    assert {bucket.biases for bucket in device.compiled} <= {8, 64, 512}
    assert {bucket.masks for bucket in device.compiled} <= {1, 8}
    assert len(device.compiled) == len(set(device.compiled))


def test_padding_touches_nothing_that_is_used() -> None:
    runner, device = make(static_shapes=True)
    core = scheduler()
    core.add(Request("a", (1, 2, 3), SamplingParams(max_tokens=1)))
    run(runner, core)
    inputs = device.inputs[0]
    assert inputs["slot_mapping"][3:].tolist() == [0] * 5
    assert inputs["slots"][1:].tolist() == [4] * 3
    assert inputs["query_start"].tolist() == [0, 3, 3, 3, 3]
    assert inputs["context_lens"][1:].tolist() == [0] * 3
    assert set(inputs["bias_row"].tolist()) == {-1}
    assert inputs["history"].shape == (5, 32)


def test_what_did_not_change_is_not_put_again() -> None:
    runner, device = make()
    core = scheduler()
    core.add(Request("a", (1, 2, 3), SamplingParams(max_tokens=20)))
    counts = []
    while core.has_work():
        before = device.puts
        plan = core.schedule(0.0)
        assert plan is not None
        core.commit(plan, runner.launch(plan).result(), 0.0)
        counts.append(device.puts - before)
    # Positions, slots and lengths move; a new block changes the table too.
    assert max(counts[2:]) <= 5


def test_copies_go_before_the_step() -> None:
    runner, device = make()
    plan = replace(dummy_plan(), copies=np.array([[1, 2], [3, 4]], np.int32))
    runner.launch(plan).result()
    assert device.copies == [([1, 3], [2, 4])]


def test_known_tokens_are_loaded_into_the_history() -> None:
    runner, device = make()
    count = 40
    slots, positions = np.arange(count, dtype=np.int32) % 3, np.arange(count, dtype=np.int32) // 3
    plan = replace(
        dummy_plan(),
        history_slots=slots,
        history_positions=positions,
        history_tokens=50 + np.arange(count, dtype=np.int32),
    )
    runner.launch(plan)
    history = device.inputs[-1]["history"]
    # The plan's own token stands at the start of slot 0, and what it sampled behind it.
    assert history[slots[4:], positions[4:]].tolist() == list(range(54, 50 + count))
    assert [len(inputs["token_ids"]) for inputs in device.inputs] == [16, 16, 8, 1]


def test_a_history_plan_keeps_tokens_with_their_rows() -> None:
    plan = history_plan(np.array([5, 6, 7], np.int32), np.array([0, 9, 1], np.int32), np.array([3, 1, 3], np.int32))
    assert plan.slots.tolist() == [1, 3]
    assert plan.query_start.tolist() == [0, 1, 3]
    assert plan.token_ids.tolist() == [6, 5, 7]
    assert plan.positions.tolist() == [9, 0, 1]


@pytest.mark.parametrize("count", [-1, 0, 1, 8, 9, 20, 128])
def test_logprobs_are_cut_to_what_was_asked(count: int) -> None:
    runner, _ = make()
    plan = dummy_plan()
    plan.sampling.num_logprobs = count
    result = runner.launch(plan).result()
    assert result.tokens.tolist() == [1]
    assert (result.logprobs is None) == (count < 0)
    assert (result.top_ids is None) == (count < 1)
    if count > 0:
        assert result.top_ids is not None
        assert result.top_ids.shape == (1, count)


def test_rows_for_prompt_logprobs_have_a_step_of_their_own() -> None:
    runner, device = make()
    core = scheduler()
    core.add(Request("a", tuple(range(10)), SamplingParams(max_tokens=2, prompt_logprobs=0)))
    run(runner, core)
    assert [bucket.rows for bucket in device.compiled] == [16, 4]


def test_the_history_follows_where_buffers_are_donated() -> None:
    runner, device = make(in_place_kv=False)
    first = runner._history
    plan = dummy_plan()
    bucket = runner.bucket(plan)
    outputs = runner._call("step", bucket, -1, runner._inputs(runner._all_arrays(plan), bucket))
    assert outputs["history"] is first
    runner._executables = {key: lambda kv, inputs: (kv, {"history": "new", "tokens": 0}) for key in runner._executables}
    runner._call("step", bucket, -1, {})
    assert runner._history == "new"
    assert device.puts > 0


def test_a_failing_device_is_reported_by_the_result() -> None:
    class Broken(Device):
        def get(self, tensor: np.ndarray) -> Done:
            class Bad(Done):
                def result(self) -> Any:
                    raise PlatformError("kernel fault")

            return Bad(None)

    device = Broken()
    runner = Runner(device, Model(), Ops(), CONFIG)  # type: ignore[arg-type]
    launched = runner.launch(dummy_plan())
    with pytest.raises(PlatformError, match="kernel fault"):
        launched.result()


def test_padded_rows_of_the_device_are_not_results() -> None:
    runner, _ = make(static_shapes=True)
    plan = dummy_plan()
    plan.sampling.num_logprobs = 8
    result = runner.launch(plan).result()
    assert len(plan.token_ids) == 1
    assert result.tokens.shape == (1,)
    assert result.logprobs is not None
    assert result.logprobs.shape == (1,)
    assert result.top_ids is not None
    assert result.top_ids.shape == (1, 8)


def test_as_many_rows_as_sequences_take_the_step_for_sampling() -> None:
    runner, device = make()
    core = scheduler()
    for at in range(CONFIG.max_num_seqs):
        core.add(Request(f"r{at}", (at, at + 1), SamplingParams(max_tokens=3)))
    run(runner, core)
    assert [bucket.rows for bucket in device.compiled] == [CONFIG.max_num_seqs]


@pytest.mark.parametrize(("count", "size"), [(1, 8), (8, 8), (9, 64), (64, 64), (65, 512)])
def test_biases_are_padded_to_few_sizes(count: int, size: int) -> None:
    runner, device = make(static_shapes=True)
    core = scheduler()
    core.add(Request("a", (1, 2), SamplingParams(max_tokens=1, logit_bias=tuple((i, 1.0) for i in range(count)))))
    run(runner, core)
    assert [bucket.biases for bucket in device.compiled] == [size]


def test_a_late_failure_with_an_old_cache_does_not_cost_the_next_one() -> None:
    class Failing(Device):
        def get(self, tensor: np.ndarray) -> Done:
            class Bad(Done):
                def result(self) -> Any:
                    raise PlatformError("kernel fault")

            return Bad(None)

    runner = Runner(Failing(in_place_kv=False), Model(), Ops(), CONFIG)  # type: ignore[arg-type]
    first, second = runner.launch(dummy_plan()), runner.launch(dummy_plan())
    for launched, remade in ((first, True), (second, False)):
        with pytest.raises(PlatformError, match="kernel fault"):
            launched.result()
        assert runner.recover() == remade
