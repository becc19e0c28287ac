"""The tape: replay equals eager, sizes vary under one recording, torch operators are refused, memory is used again."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from headrace.errors import PlatformError
from headrace.kernels import random
from headrace.kernels.inputs import batch_of, sample_inputs_of
from headrace.kernels.ops import Batch
from headrace.kernels.registry import bind
from headrace.kernels.sample.generate import _inputs
from headrace.platforms.cpu.native_device import NativeDevice
from headrace.platforms.cpu.tape_arena import TapeArena
from headrace.types import Bucket, KVLayout, LayerKV

CPU = torch.device("cpu")
HEADS, KV_HEADS, DIM = 4, 2, 16
WIDTH = (HEADS + 2 * KV_HEADS) * DIM
BUCKET = Bucket(tokens=64, seqs=8, rows=8, blocks=12)


@pytest.fixture
def device() -> Iterator[NativeDevice]:
    opened = NativeDevice(threads=2)
    yield opened
    opened.close()


def fields_of(batch: Batch) -> dict[str, torch.Tensor]:
    return {name: getattr(batch, name) for name in Batch.__slots__}


class Step:
    """A layer without matrices: what a step reads as `x` stands for what a projection would give."""

    def __init__(self, device: NativeDevice) -> None:
        self.ops = bind(device)
        rng = np.random.default_rng(0)
        self.norm = random.normal(rng, WIDTH, device=CPU)
        angles = rng.uniform(0, 6.28, (512, DIM // 2))
        self.table = torch.from_numpy(np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32))
        self.runs = 0

    def __call__(self, kv: Any, inputs: Mapping[str, torch.Tensor]) -> tuple[Any, Mapping[str, torch.Tensor]]:
        self.runs += 1
        batch, ops = batch_of(inputs), self.ops
        ids = ops.resolve_tokens(batch, inputs["history"])
        x = inputs["x"]
        residual = x
        for _ in range(3):
            x = ops.rms_norm(x, self.norm, 1e-5)
            q = ops.rotary_cache(x, batch, kv, 0, self.table, HEADS, None, None, 1e-5)
            out = ops.attention(q, batch, kv, 0, 0.25, None, None, None, None)
            x, residual = ops.add_rms_norm(x, residual, self.norm, 1e-5)
        return kv, {"ids": ids, "out": out, "gate": ops.gated_activation(residual, "silu"), "x": x}


def steps(seed: int, count: int) -> Iterator[dict[str, torch.Tensor]]:
    rng = np.random.default_rng(seed)
    done = 0
    while done < count:
        shape = random.Shape.draw(rng)
        if sum(shape.fresh) > BUCKET.tokens or shape.block_size != 16 or shape.blocks > BUCKET.blocks:
            continue
        done += 1
        batch = fields_of(random.batch(rng, shape, CPU))
        batch["slots"] = batch["slots"] % BUCKET.seqs
        x = torch.zeros(BUCKET.tokens, WIDTH)
        x[: sum(shape.fresh)] = random.normal(rng, sum(shape.fresh), WIDTH, device=CPU)
        yield {**batch, "x": x}


def test_replay_equals_eager_for_any_batch(device: NativeDevice) -> None:
    layout = KVLayout((LayerKV(KV_HEADS, DIM),), 16, "bfloat16")
    step, history = Step(device), torch.zeros(BUCKET.seqs, 256, dtype=torch.int32)
    executable = device.compile(step, BUCKET)
    recorded, eager = device.alloc_kv(layout, 64), device.alloc_kv(layout, 64)
    other = history.clone()
    for inputs in steps(1, 12):
        tokens = int(inputs["sizes"][0])
        _, found = executable(recorded, {**inputs, "history": history})
        arrays = {name: device.get(x).result() for name, x in found.items()}
        _, wanted = Step.__call__(step, eager, {**inputs, "history": other})
        for name, array in arrays.items():
            assert np.array_equal(array[:tokens], wanted[name].numpy()[:tokens]), name
        assert torch.equal(history, other)
    assert step.runs == 1 + 12  # recorded once


def test_steps_launched_together_keep_their_order(device: NativeDevice) -> None:
    """A chain without waits gives the same results as the same chain with a wait after each step."""
    layout = KVLayout((LayerKV(KV_HEADS, DIM),), 16, "float32")
    found = []
    for wait in (True, False):
        history = torch.zeros(BUCKET.seqs, 256, dtype=torch.int32)
        executable, kv = device.compile(Step(device), BUCKET), device.alloc_kv(layout, 64)
        pending = []
        for turn, inputs in enumerate(steps(2, 20)):
            _, outputs = executable(kv, {**inputs, "history": history})
            pending.append(device.get(outputs["out"]))
            if turn % 3 == 0:
                device.copy_blocks(kv, [1, 2, 3], [2, 3, 1])
            if wait:
                pending[-1].result()
        found.append([p.result()[: int(inputs["sizes"][0])] for p in pending])
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_sampling_on_the_tape(device: NativeDevice) -> None:
    rng = np.random.default_rng(3)
    ops = bind(device)

    def step(kv: Any, inputs: Mapping[str, torch.Tensor]) -> tuple[Any, Mapping[str, torch.Tensor]]:
        out = ops.sample(inputs["logits"], sample_inputs_of(inputs), batch_of(inputs), 3)
        return kv, {"tokens": out.tokens, "top_ids": out.top_ids, "logprobs": out.logprobs}

    executable = device.compile(step, BUCKET)
    for rows in (3, 8, 1, 0):
        drawn = _inputs(rng, rows, 100, 64, CPU)
        index = torch.arange(rows, dtype=torch.int32)
        sizes = torch.tensor([rows] * 3, dtype=torch.int32)
        start = torch.arange(rows + 1, dtype=torch.int32)
        batch = Batch(sizes, index, index, index, index, start, index, index.view(-1, 1), index, index)
        logits = torch.zeros(BUCKET.rows, 100)
        logits[:rows] = random.normal(rng, rows, 100, device=CPU)
        inputs = {name: getattr(drawn, name) for name in type(drawn).__slots__}
        wanted = ops.sample(logits[:rows], type(drawn)(**{**inputs, "history": drawn.history.clone()}), batch, 3)
        _, outputs = executable(None, {**fields_of(batch), **inputs, "logits": logits})
        for name in ("tokens", "top_ids", "logprobs"):
            assert np.array_equal(device.get(outputs[name]).result()[:rows], getattr(wanted, name).numpy())


def test_a_torch_operator_is_refused_with_its_line(device: NativeDevice) -> None:
    def step(kv: Any, inputs: Mapping[str, torch.Tensor]) -> tuple[Any, Mapping[str, torch.Tensor]]:
        return kv, {"y": inputs["x"] + 1}

    line = step.__code__.co_firstlineno + 1
    with pytest.raises(PlatformError, match=rf"test_native_tape\.py:{line}: aten\.add.*operator"):
        device.compile(step, BUCKET)(None, {"x": torch.zeros(3)})


def test_a_step_without_operators_hands_its_inputs_back(device: NativeDevice) -> None:
    executable = device.compile(lambda kv, inputs: (kv, {"x": inputs["x"]}), BUCKET)
    for turn in range(200):
        x = torch.full((3,), float(turn))
        assert device.get(executable(None, {"x": x})[1]["x"]).result().tolist() == [turn] * 3


def test_a_step_beyond_its_bucket_is_refused(device: NativeDevice) -> None:
    executable = device.compile(Step(device), Bucket(1, 1, 1, 12))
    kv = device.alloc_kv(KVLayout((LayerKV(KV_HEADS, DIM),), 16, "float32"), 64)
    inputs = next(i for i in steps(4, 50) if int(i["sizes"][0]) > 1)
    with pytest.raises(PlatformError, match="compiled for 1 at most"):
        executable(kv, {**inputs, "history": torch.zeros(8, 256, dtype=torch.int32)})


def test_an_index_out_of_range_fails_the_results(device: NativeDevice) -> None:
    kv = device.alloc_kv(KVLayout((LayerKV(KV_HEADS, DIM),), 16, "float32"), 64)
    inputs = next(i for i in steps(5, 50) if int(i["sizes"][0]))
    inputs["positions"] = inputs["positions"] + 100_000
    executable = device.compile(Step(device), BUCKET)
    _, outputs = executable(kv, {**inputs, "history": torch.zeros(8, 256, dtype=torch.int32)})
    with pytest.raises(PlatformError, match="index out of range"):
        device.get(outputs["out"]).result()


def test_profile_names_operators_and_bytes(device: NativeDevice) -> None:
    kv = device.alloc_kv(KVLayout((LayerKV(KV_HEADS, DIM),), 16, "float32"), 64)
    executable: Any = device.compile(Step(device), BUCKET)
    assert executable.profile() == []
    inputs = next(i for i in steps(6, 50) if int(i["sizes"][0]))
    history = torch.zeros(8, 256, dtype=torch.int32)
    executable(kv, {**inputs, "history": history})
    executable.profile(True)
    for _ in range(3):
        executable(kv, {**inputs, "history": history})
    found = executable.profile(False)
    assert [p.name for p in found[:4]] == ["resolve_tokens", "rms_norm", "rotary_cache", "attention"]
    assert all(p.seconds > 0 for p in found)
    attention = found[3]
    assert attention.shapes == (("T", HEADS * DIM), ("T", HEADS * DIM))
    assert attention.bytes == 2 * int(inputs["sizes"][0]) * HEADS * DIM * 4


def test_arena_uses_memory_again() -> None:
    arena = TapeArena(1 << 20)
    a = arena.tensor((64,), torch.float32)
    b = arena.tensor((64,), torch.float32)
    first = a.data_ptr()
    del a
    c = arena.tensor((32,), torch.float32)
    assert c.data_ptr() == first
    assert arena.live == 512
    del b, c
    gc.collect()
    assert arena.live == 0
    assert arena.tensor((1 << 18,), torch.float32).data_ptr() == first  # the holes have joined


def test_closed_device_is_refused() -> None:
    device = NativeDevice(threads=1)
    device.close()
    device.close()
    with pytest.raises(PlatformError, match="closed"):
        device.get(torch.zeros(3))
