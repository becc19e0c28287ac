"""A device that takes the cache with every call, and one step that fails: what comes after is served from a new
cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from headrace.core import CoreConfig, Scheduler
from headrace.engine.core_loop import EngineCore
from headrace.engine.runner import Runner, RunnerConfig
from headrace.errors import DeviceLost, OutOfMemory, PlatformError
from headrace.kernels.ops import SampleOutputs
from headrace.types import Bucket, Capabilities, KVLayout, LayerKV, Request, SamplingParams

BLOCKS, SIZE, VOCAB = 32, 4, 100
CONFIG = RunnerConfig(KVLayout((LayerKV(1, 4),), SIZE, "float32"), BLOCKS, 4, 16, 48, VOCAB)
FAULT = PlatformError("mill: the wheel stopped")


class Handle:
    """Token ids by place; dead once a call has taken it."""

    def __init__(self, places: np.ndarray) -> None:
        self.places: np.ndarray | None = places

    def take(self) -> np.ndarray:
        if self.places is None:
            raise PlatformError("mill: this cache was given away")
        taken, self.places = self.places, None
        return taken


class Answer:
    def __init__(self, value: Any, error: Exception | None = None) -> None:
        self._value, self._error = value, error

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


class Device:
    """`fail_at`: the calls (from 1) that fail, by themselves or, with `late`, in what is read of them."""

    def __init__(self, fail_at: Sequence[int] = (), late: bool = False, in_place: bool = False) -> None:
        self.fail_at, self.late, self.calls, self.allocated, self.bad = fail_at, late, 0, 0, False
        self.full = False
        self._capabilities = Capabilities(frozenset({"float32"}), frozenset({"float32"}), in_place_kv=in_place)

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def put(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def get(self, tensor: np.ndarray) -> Answer:
        return Answer(np.array(tensor), FAULT if self.bad else None)

    def alloc_kv(self, layout: KVLayout, num_blocks: int) -> Handle:
        if self.full:
            raise OutOfMemory("mill: 9 bytes are needed, 3 of 9 are free")
        self.allocated += 1
        return Handle(np.zeros(num_blocks * layout.block_size, np.int64))

    def copy_blocks(self, kv: Handle, src: Sequence[int], dst: Sequence[int]) -> Handle:
        store = kv.take().reshape(-1, SIZE)
        store[list(dst)] = store[list(src)]
        return Handle(store.reshape(-1))

    def compile(self, step_fn: Callable[..., Any], bucket: Bucket) -> Callable[..., Any]:
        def run(kv: Handle, inputs: Mapping[str, np.ndarray]) -> Any:
            self.calls += 1
            self.bad = self.calls in self.fail_at and self.late
            taken = kv.take()
            if self.calls in self.fail_at and not self.late:
                raise FAULT
            return Handle(taken), step_fn(taken, inputs)[1]

        return run


class Model:
    """The next token is the sum of all before it, as the cache has them."""

    def forward(self, batch: Any, kv: np.ndarray, history: np.ndarray) -> np.ndarray:
        tokens, seqs = int(batch.sizes[0]), int(batch.sizes[1])
        slots, positions = batch.slots[batch.token_seq[:tokens]], batch.positions[:tokens]
        ids = np.where(batch.token_ids[:tokens] == -1, history[slots, positions], batch.token_ids[:tokens])
        history[slots, positions] = ids
        kv[batch.slot_mapping[:tokens]] = ids
        found = np.zeros(len(batch.rows), np.int64)
        for row in range(int(batch.sizes[2])):
            at = int(batch.rows[row])
            places = np.arange(int(positions[at]) + 1)
            table = batch.block_tables[int(batch.token_seq[at])]
            found[row] = kv[table[places // SIZE] * SIZE + places % SIZE].sum() % 97 + 1
        assert seqs <= 4
        return found


class Ops:
    def sample(self, logits: np.ndarray, inputs: Any, batch: Any, num_logprobs: int) -> SampleOutputs:
        rows = int(batch.sizes[2])
        tokens = logits.astype(np.int32)
        inputs.history[inputs.slot[:rows], inputs.position[:rows]] = tokens[:rows]
        none = np.zeros((len(tokens), 0))
        return SampleOutputs(tokens, tokens, tokens, none, none)  # type: ignore[arg-type]


def serve(device: Device, prompts: Mapping[str, tuple[int, ...]], core: EngineCore | None = None) -> Any:
    """(tokens, errors, the engine)"""
    if core is None:
        runner = Runner(device, Model(), Ops(), CONFIG)  # type: ignore[arg-type]
        core = EngineCore(Scheduler(CoreConfig(BLOCKS, SIZE, 4, 16, 48, VOCAB)), runner, 4, SIZE)
    core.add([Request(name, prompt, SamplingParams(max_tokens=6)) for name, prompt in prompts.items()])
    tokens: dict[str, list[int]] = {name: [] for name in prompts}
    errors = {}
    while core.has_work():
        for delta in core.step():
            tokens[delta.request_id] += delta.token_ids
            if delta.error:
                errors[delta.request_id] = delta.error
        core._scheduler.check()  # type: ignore[attr-defined]
    return tokens, errors, core


PROMPTS = {"a": (1, 2, 3, 4, 5, 6, 7, 8, 9), "b": (5, 6), "c": (7,), "d": (9, 9), "e": (4, 4, 4), "f": (1, 2, 3, 4, 5)}


@pytest.mark.parametrize("late", [False, True], ids=["call", "result"])
@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_tokens_after_a_failure_are_those_of_a_device_without_failures(
    step: int, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = serve(Device(), PROMPTS)[0]
    device = Device([step], late)
    tokens, errors, core = serve(device, PROMPTS)
    assert errors
    assert all("the wheel stopped" in error for error in errors.values())
    assert device.allocated == 2
    assert {name: got for name, got in tokens.items() if name not in errors} == {
        name: got for name, got in wanted.items() if name not in errors
    }
    assert serve(device, PROMPTS, core)[0] == wanted, "prefixes of the old cache are forgotten"
    logged = [record.getMessage() for record in caplog.records if "allocated again" in record.getMessage()]
    assert logged == ["the KV cache was donated to that step: it was allocated again, and cached prefixes are lost"]


def test_steps_in_flight_on_the_old_cache_do_not_allocate_it_a_third_time() -> None:
    device = Device([2, 3], late=True)
    core = serve(device, PROMPTS)[2]
    assert device.allocated <= 3
    assert serve(device, PROMPTS, core)[0] == serve(Device(), PROMPTS)[0]


def test_a_cache_that_is_written_in_place_stays() -> None:
    class InPlace(Device):
        def compile(self, step_fn: Callable[..., Any], bucket: Bucket) -> Callable[..., Any]:
            def run(kv: Handle, inputs: Mapping[str, np.ndarray]) -> Any:
                self.calls += 1
                if self.calls in self.fail_at:
                    raise FAULT
                return kv, step_fn(kv.places, inputs)[1]

            return run

        def copy_blocks(self, kv: Handle, src: Sequence[int], dst: Sequence[int]) -> Handle:
            kv.places = super().copy_blocks(Handle(kv.take()), src, dst).places
            return kv

    device = InPlace([2], in_place=True)
    _, errors, core = serve(device, PROMPTS)
    assert errors
    assert device.allocated == 1
    assert serve(device, PROMPTS, core)[0] == serve(Device(), PROMPTS)[0]


def test_no_memory_for_another_cache_is_the_loss_of_the_device() -> None:
    device = Device([2])
    runner = Runner(device, Model(), Ops(), CONFIG)  # type: ignore[arg-type]
    device.full = True
    core = EngineCore(Scheduler(CoreConfig(BLOCKS, SIZE, 4, 16, 48, VOCAB)), runner, 4, SIZE)
    with pytest.raises(DeviceLost, match="cannot be made again after a step that failed: mill: 9 bytes are needed"):
        serve(device, PROMPTS, core)
