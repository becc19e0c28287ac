"""A row's bits depend on its own data alone: not on the batch, its place in it, the chunking or the number of
threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.kernels import random
from headrace.kernels.attention.reference import attention
from headrace.kernels.gated_activation.reference import gated_activation
from headrace.kernels.linear.reference import linear
from headrace.kernels.ops import Batch
from headrace.kernels.registry import OPS
from headrace.kernels.rms_norm.reference import rms_norm
from headrace.kernels.sample.reference import sample
from headrace.types import LayerKV

CPU = torch.device("cpu")
Tensor = torch.Tensor


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def same(first: Tensor, second: Tensor) -> bool:
    """Bit for bit."""
    return first.shape == second.shape and first.numpy().tobytes() == second.numpy().tobytes()


def _linear(rng: np.random.Generator) -> tuple[int, Callable[[Tensor], Tensor]]:
    rows, columns = int(rng.integers(1, 400)), int(rng.integers(1, 400))
    weight = random.weight(rng, rows, columns, CPU, str(rng.choice(["float32", "bfloat16"])), bias=True)
    return columns, lambda x: linear(x, weight)


def _norm(rng: np.random.Generator) -> tuple[int, Callable[[Tensor], Tensor]]:
    columns = int(rng.integers(1, 3000))
    weight = random.normal(rng, columns, device=CPU)
    return columns, lambda x: rms_norm(x, weight, 1e-6)


ROWWISE: list[tuple[str, Callable[[np.random.Generator], tuple[int, Callable[[Tensor], Tensor]]]]] = [
    ("linear", _linear),
    ("rms_norm", _norm),
    ("silu", lambda rng: (2 * int(rng.integers(1, 900)), lambda x: gated_activation(x, "silu"))),
    ("gelu", lambda rng: (2 * int(rng.integers(1, 900)), lambda x: gated_activation(x, "gelu"))),
    ("gelu_tanh", lambda rng: (2 * int(rng.integers(1, 900)), lambda x: gated_activation(x, "gelu_tanh"))),
]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("name", "make"), ROWWISE, ids=[name for name, _ in ROWWISE])
def test_a_row_is_the_same_alone_in_a_batch_and_on_two_threads(
    name: str,
    make: Callable[[np.random.Generator], tuple[int, Callable[[Tensor], Tensor]]],
    seed: int,
    threads: Callable[[int], None],
) -> None:
    rng = np.random.default_rng(seed)
    columns, function = make(rng)
    x = random.normal(rng, int(rng.integers(2, 60)), columns, device=CPU)
    threads(1)
    whole = function(x)
    row = int(rng.integers(len(x)))
    assert same(function(x[row : row + 1]), whole[row : row + 1])
    order = torch.from_numpy(rng.permutation(len(x)))
    assert same(function(x[order]), whole[order])
    assert same(function(x[row:]), whole[row:])
    threads(2)
    assert same(function(x), whole)


@pytest.mark.parametrize("seed", range(30))
def test_linear_of_model_sized_matrices(seed: int, threads: Callable[[int], None]) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = (int(64 * rng.integers(1, 20)) for _ in range(2))
    weight = random.weight(rng, rows, columns, CPU, "float32", bias=False)
    x = random.normal(rng, 33, columns, device=CPU)
    threads(1)
    whole = linear(x, weight)
    assert same(linear(x[20:21], weight), whole[20:21])
    threads(2)
    assert same(linear(x, weight), whole)


def _part(batch: Batch, first: int, last: int, sequence: int) -> Batch:
    """Tokens first to last of the batch, all of one sequence, as a batch of their own."""
    picked = slice(first, last)
    seq = slice(sequence, sequence + 1)
    return replace(
        batch,
        sizes=torch.tensor([last - first, 1, 0], dtype=torch.int32),
        positions=batch.positions[picked],
        token_seq=torch.zeros(last - first, dtype=torch.int32),
        query_start=torch.tensor([0, last - first], dtype=torch.int32),
        context_lens=batch.positions[last - 1 : last] + 1,
        block_tables=batch.block_tables[seq],
    )


@pytest.mark.parametrize("seed", range(24))
def test_attention_alone_chunked_and_on_two_threads(seed: int, threads: Callable[[int], None]) -> None:
    """Each sequence alone, in random chunks, against all in one batch.

    Keys of later tokens are in the cache already, as they are for nobody in a cold run: they must not matter.
    """
    rng = np.random.default_rng(seed)
    shape = random.Shape((1, 37, 1, 70), (130, 5, 0, 20), int(rng.choice([16, 32, 128])))
    kv_heads, group, size = int(rng.integers(1, 4)), int(rng.integers(1, 5)), int(rng.choice([8, 20, 64, 128]))
    kv = random.cache(rng, shape, LayerKV(kv_heads, size), CPU, str(rng.choice(["float32", "bfloat16", "int8"])))
    batch = random.batch(rng, shape, CPU)
    q = random.normal(rng, sum(shape.fresh), kv_heads * group * size, device=CPU)
    window = int(rng.integers(1, 90)) if rng.integers(2) else None
    cap = 4.0 if rng.integers(2) else None
    sinks = random.normal(rng, kv_heads * group, device=CPU) if rng.integers(2) else None
    alibi = random.normal(rng, kv_heads * group, device=CPU).abs() if rng.integers(2) else None

    def run(queries: Tensor, part: Batch) -> Tensor:
        return attention(queries, part, kv, 0, size**-0.5, window, cap, sinks, alibi)

    threads(1)
    whole = run(q, batch)
    if seed % 4 == 0:  # two threads are slow where others use the cores
        threads(2)
        assert same(run(q, batch), whole)
        threads(1)
    ends = batch.query_start.tolist()
    for sequence in range(len(shape.fresh)):
        first = ends[sequence]
        while first < ends[sequence + 1]:
            last = min(first + int(rng.integers(1, 30)), ends[sequence + 1])
            assert same(run(q[first:last], _part(batch, first, last, sequence)), whole[first:last])
            first = last


def test_attention_does_not_read_memory_that_was_never_written() -> None:
    """NaN beyond the context, in unused blocks and in block 0."""
    rng = np.random.default_rng(0)
    shape = random.Shape((3, 1), (10, 30), 16)
    kv = random.cache(rng, shape, LayerKV(2, 16), CPU, "float32")
    batch = random.batch(rng, shape, CPU)
    q = random.normal(rng, 4, 64, device=CPU)
    clean = attention(q, batch, kv, 0, 0.25, None, None, None, None)
    held = torch.zeros(kv.keys[0].shape[0], 16, dtype=torch.bool)
    for sequence, length in enumerate(batch.context_lens.tolist()):
        for position in range(length):
            held[int(batch.block_tables[sequence, position // 16]), position % 16] = True
    for store in (kv.keys[0], kv.values[0]):
        store.transpose(1, 2)[~held] = torch.nan
    assert same(attention(q, batch, kv, 0, 0.25, None, None, None, None), clean)


@pytest.mark.parametrize("seed", range(20))
def test_sample_of_a_row_alone(seed: int, threads: Callable[[int], None]) -> None:
    rng = np.random.default_rng(seed)
    spec = next(spec for spec in OPS if spec.name == "sample")
    given = spec.generate(rng, CPU, "float32") | {"num_logprobs": 2}
    rows = len(given["logits"])
    history = given["inputs"].history.clone()
    threads(1)
    whole = sample(**given)
    threads(1 + seed % 2)
    for row in range(rows):
        index = slice(row, row + 1)
        inputs = given["inputs"]
        per_row = {
            name: getattr(inputs, name)[index]
            for name in inputs.__slots__
            if name not in ("bias_row", "bias_token", "bias_value", "allowed", "history")
        }
        moved = torch.where(inputs.bias_row == row, 0, -1).int()
        alone = replace(inputs, **per_row, bias_row=moved, history=history.clone())
        one = torch.tensor([1, 1, 1], dtype=torch.int32)
        out = sample(given["logits"][index], alone, replace(given["batch"], sizes=one), 2)
        for name in ("tokens", "logprobs", "ranks", "top_ids", "top_logprobs"):
            assert same(getattr(out, name), getattr(whole, name)[index]), name
