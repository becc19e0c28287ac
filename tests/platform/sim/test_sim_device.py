"""The simulator: deterministic tokens, a clock that follows the roofline, the contract without torch tensors."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch

from headrace.errors import OutOfMemory, PlatformError
from headrace.kernels import random
from headrace.kernels.ops import Batch, SampleInputs
from headrace.kernels.registry import OPS, bind
from headrace.platforms import interface
from headrace.platforms.sim import SimMachine, SimPlatform, cost
from headrace.platforms.sim.device import SimDevice, SimKV
from headrace.types import NO_CHOICE, Bucket, KVLayout, LayerKV

BUCKET = Bucket(64, 8, 8, 16)
CPU = torch.device("cpu")
LAYOUT = KVLayout((LayerKV(2, 64),) * 2, 16, "bfloat16")
WEIGHT = random.weight(np.random.default_rng(0), 512, 256, CPU, "bfloat16", bias=False)


def opened(**options: Any) -> SimDevice:
    device = SimPlatform().open(0, options)
    assert isinstance(device, SimDevice)
    return device


def arrays(value: Any) -> Any:
    """The same batch or inputs on numpy arrays."""
    return replace(value, **{f.name: getattr(value, f.name).numpy() for f in fields(value)})


def test_it_satisfies_the_protocols() -> None:
    device = opened()
    assert isinstance(device, interface.Device)
    assert isinstance(device.compile(lambda kv, inputs: (kv, {}), BUCKET), interface.Executable)
    assert isinstance(device.get(np.zeros(1)), interface.Pending)
    assert isinstance(device.communicator([0]), interface.Communicator)
    assert device.capabilities() is device.capabilities()


def test_every_operator_has_a_cost() -> None:
    device = opened()
    assert all(device.op(spec) is not None for spec in OPS)


@pytest.mark.parametrize("seed", range(10))
def test_shapes_are_those_of_the_reference(seed: int) -> None:
    ops = bind(opened())
    for spec in OPS:
        given = spec.generate(np.random.default_rng(seed), CPU, "float32")
        expected = spec.reference(**spec.generate(np.random.default_rng(seed), CPU, "float32"))
        given = {k: arrays(v) if isinstance(v, Batch | SampleInputs) else v for k, v in given.items()}
        given = {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in given.items()}
        got = getattr(ops, spec.name)(**given)
        if spec.name == "sample":
            expected = (
                [expected.tokens]
                if given["num_logprobs"] < 0
                else [getattr(expected, f.name) for f in fields(expected)]
            )
            got = [got.tokens] if given["num_logprobs"] < 0 else [getattr(got, f.name) for f in fields(got)]
        pairs = zip(got, expected, strict=True) if isinstance(got, list | tuple) else [(got, expected)]
        assert [tuple(a.shape) == tuple(b.shape) for a, b in pairs].count(False) == 0, spec.name


def decode(device: SimDevice, ids: list[int], before: int) -> Any:
    """One linear and one attention on a decode step of these tokens; returns the outputs."""
    ops, count = bind(device), len(ids)
    rng = np.random.default_rng(0)
    batch = arrays(random.batch(rng, random.Shape((1,) * count, (before,) * count), CPU))
    kv = device.alloc_kv(LAYOUT, 64)

    def step(kv: Any, inputs: Any) -> Any:
        x = ops.embedding(inputs["ids"], WEIGHT, 1.0)
        y = ops.attention(ops.linear(x, WEIGHT), batch, kv, 0, 1.0, None, None, None, None)
        return kv, {"y": y}

    return device.compile(step, BUCKET)(kv, {"ids": device.put(np.array(ids, np.int32))})[1]


def clock(device: SimDevice) -> Any:
    return device.clock


def test_the_clock_follows_the_roofline() -> None:
    slow = {"launch_seconds": 1e-12, "step_seconds": 1e-12, "flops": 1e18}
    device = opened(bandwidth=1e6, **slow)
    outputs = decode(device, [1], before=0)
    assert device.get(outputs["y"]).result().shape == (1, 512)
    weights = 512 * 256 * 2 / 1e6
    assert weights < clock(device).busy < 1.1 * weights
    assert clock(device).steps == 1
    longer = opened(bandwidth=1e6, **slow)
    decode(longer, [1], before=999)
    kv = 999 * LAYOUT.bytes_per_block / 16 / 2 / 1e6
    assert clock(longer).busy - clock(device).busy == pytest.approx(kv)


def test_arithmetic_bounds_a_large_batch() -> None:
    device = opened(bandwidth=1e18, flops=1e6, launch_seconds=1e-12, step_seconds=1e-12)
    decode(device, [1] * 10, before=0)
    assert clock(device).busy == pytest.approx(10 * (2 * 512 * 256 + 4 * 512) / 1e6)


class Seconds:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    made = Seconds()
    monkeypatch.setattr(cost, "time", made)
    return made


def test_virtual_time_waits_for_nothing(seconds: Seconds) -> None:
    device = opened(bandwidth=1.0)
    pending = device.get(decode(device, [1], before=0)["y"])
    assert pending.done()
    pending.result()
    assert seconds.now == 0.0
    assert clock(device).free_at > 1e5
    assert not device.capabilities().async_exec


def test_real_time_lets_the_step_last(seconds: Seconds) -> None:
    device = opened(step_seconds=0.1, realtime=True)
    pending = device.get(decode(device, [1], before=0)["y"])
    assert not pending.done()
    pending.result()
    assert seconds.now >= 0.1
    assert pending.done()
    assert device.capabilities().async_exec


def sampled(rows: int, **changes: Any) -> tuple[list[int], SampleInputs]:
    spec = next(spec for spec in OPS if spec.name == "sample")
    given = next(
        made
        for made in (spec.generate(np.random.default_rng(seed), CPU, "float32") for seed in range(99))
        if len(made["logits"]) == rows
    )
    none = torch.full((rows,), -1, dtype=torch.int32)
    inputs = replace(
        given["inputs"], target=none, allowed_row=none, bias_row=torch.full_like(given["inputs"].bias_row, -1)
    )
    inputs = replace(arrays(inputs), **changes)
    out = opened().op(spec)(given["logits"].numpy(), inputs, arrays(given["batch"]), 1)
    return out.tokens.tolist(), inputs


def test_tokens_depend_on_the_sequence_alone_and_go_to_the_history() -> None:
    tokens, inputs = sampled(5)
    assert tokens == sampled(5)[0]
    assert [int(inputs.history[s, p]) for s, p in zip(inputs.slot, inputs.position, strict=True)] == tokens
    same = {name: np.full(5, 7, dtype) for name, dtype in (("position", np.int32), ("seed", np.int64))}
    history = np.tile(inputs.history[:1], (6, 1))
    assert len(set(sampled(5, **same, history=history, temperature=np.ones(5, np.float32))[0])) == 1


def test_greedy_ignores_the_seed_and_a_temperature_does_not() -> None:
    seeds = [{"seed": np.full(5, seed, np.int64)} for seed in (1, 2)]
    greedy, warm = ({"temperature": np.full(5, t, np.float32)} for t in (0, 1))
    assert sampled(5, **greedy, **seeds[0])[0] == sampled(5, **greedy, **seeds[1])[0]
    assert sampled(5, **warm, **seeds[0])[0] != sampled(5, **warm, **seeds[1])[0]


def test_bans_masks_and_targets_hold() -> None:
    tokens, inputs = sampled(5)
    bans = {
        "bias_row": np.arange(5, dtype=np.int32),
        "bias_token": np.array(tokens, np.int32),
        "bias_value": np.full(5, -np.inf, np.float32),
    }
    assert all(a != b for a, b in zip(sampled(5, **bans)[0], tokens, strict=True))
    mask = np.zeros_like(inputs.allowed)
    mask[0, 0] = 0b100
    rows = {"allowed": mask, "allowed_row": np.array([0, -1, 1, -1, -1], np.int32)}
    assert sampled(5, **rows)[0] == [2, tokens[1], NO_CHOICE, *tokens[3:]]
    assert sampled(5, target=np.array([0, -1, -1, -1, -1], np.int32))[0] == [-1, *tokens[1:]]


def test_memory_is_counted() -> None:
    device = opened(memory_bytes=10 * LAYOUT.bytes_per_block)
    assert isinstance(device.alloc_kv(LAYOUT, 6), SimKV)
    assert device.memory() == (4 * LAYOUT.bytes_per_block, 10 * LAYOUT.bytes_per_block)
    with pytest.raises(OutOfMemory, match=f"{5 * LAYOUT.bytes_per_block} bytes, but {4 * LAYOUT.bytes_per_block} of"):
        device.alloc_kv(LAYOUT, 5)


def test_block_copies_take_time() -> None:
    device = opened(launch_seconds=1e-12)
    kv = device.alloc_kv(LAYOUT, 4)
    assert device.copy_blocks(kv, [1], [2]) is kv
    assert clock(device).busy == pytest.approx(2 * LAYOUT.bytes_per_block / SimMachine().bandwidth, rel=1e-3)


def test_put_and_get_copy() -> None:
    device, array = opened(), np.ones(2)
    tensor = device.put(array)
    array[:] = 0
    pending = device.get(tensor)
    tensor[:] = 5
    assert pending.result().tolist() == [1, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bandwith": 1}, "unknown option 'bandwith'; there are bandwidth, flops"),
        ({"flops": 0}, "option flops is 0"),
        ({"flops": "1e9"}, "option flops is '1e9'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(PlatformError, match=said):
        SimPlatform().open(0, options)


def test_errors_and_closing() -> None:
    device = opened()

    def broken(kv: Any, inputs: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(PlatformError, match="sim: ValueError: no"):
        device.compile(broken, BUCKET)(None, {})
    with pytest.raises(PlatformError, match="a group of 2 ranks"):
        device.communicator([0, 1])
    group = device.communicator([0])
    assert [group.all_reduce(1), group.all_gather(1, 0), group.reduce_scatter(1, 0), group.broadcast(1, 0)] == [1] * 4
    device.close()
    device.close()
    with pytest.raises(PlatformError, match="closed"):
        device.put(np.zeros(1))
