"""A step whose last sequence has fewer drafts than rows for them ends behind its last draft."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from headrace.engine.placed_steps import place_drafts
from headrace.kernels import random
from headrace.kernels.inputs import batch_of
from headrace.kernels.ops import Batch
from headrace.kernels.registry import bind
from headrace.platforms.cpu.native_device import NativeDevice
from headrace.platforms.interface import Executable
from headrace.types import GIVEN, NO_TOKEN, Bucket, KVLayout, LayerKV

HEADS, KV_HEADS, DIM = 4, 2, 16
WIDTH = (HEADS + 2 * KV_HEADS) * DIM
CPU = torch.device("cpu")
MOST, SIZE, LONGEST = 6, 16, 300
TABLE = -(-(LONGEST + MOST) // SIZE)
BUCKET = Bucket(tokens=64, seqs=4, rows=64, blocks=TABLE)
LAYOUT = KVLayout((LayerKV(KV_HEADS, DIM),), SIZE, "float32")
FOUND, NONE = "a text that repeats", "a text that does not"


class Cut:
    """Two sequences in one layer. The second, of `length` tokens, has room for drafts."""

    def __init__(self, device: NativeDevice, length: int) -> None:
        self.device, self.length, self.ops = device, length, bind(device)
        rng = np.random.default_rng(0)
        self.embeddings = random.PLAIN(rng, LONGEST + 1, WIDTH, CPU, "float32", bias=False)
        angles = rng.uniform(0, 6.28, (LONGEST + MOST, DIM // 2))
        self.table = torch.from_numpy(np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32))
        self.executable: Executable = device.compile(self, BUCKET)
        self.kv = device.alloc_kv(LAYOUT, 2 * TABLE + 1)
        self.history = torch.zeros(BUCKET.seqs, LONGEST + MOST + 1, dtype=torch.int32)

    def __call__(self, kv: Any, inputs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
        ops, drafts = self.ops, place_drafts(self.ops, inputs, MOST, SIZE, False)
        batch = batch_of({**inputs, **drafts})
        x = ops.embedding(ops.resolve_tokens(batch, inputs["history"]), self.embeddings, 1.0)
        q = ops.rotary_cache(x, batch, kv, 0, self.table, HEADS, None, None, 1e-5)
        return kv, {"x": x, "out": ops.attention(q, batch, kv, 0, 0.25, None, None, None, None)}

    def run(self, text: str, rows: int) -> Mapping[str, np.ndarray[Any, Any]]:
        """The results of a step with so many rows for the second sequence; the first has three tokens."""
        starts, known = np.array([0, 3, 3 + rows]), np.array([1, self.length])
        period = 7 if text == FOUND else self.length
        self.history[0, :3] = ints([11, 12, 13])
        self.history[1, : self.length] = ints(1 + np.arange(self.length) % period)
        seq = np.repeat([0, 1], [3, rows])
        positions = known[seq] - 1 + np.arange(3 + rows) - starts[seq]
        tables = np.arange(1, 1 + 2 * TABLE).reshape(2, TABLE)
        batch = Batch(
            sizes=ints([3 + rows, 2, 1 + rows]),
            token_ids=ints(np.full(3 + rows, NO_TOKEN)),
            positions=ints(positions),
            slot_mapping=ints(tables[seq, positions // SIZE] * SIZE + positions % SIZE),
            token_seq=ints(seq),
            query_start=ints(starts),
            context_lens=ints(known - 1 + np.diff(starts)),
            block_tables=ints(tables),
            slots=ints([0, 1]),
            rows=ints([2, *range(3, 3 + rows)]),
        )
        inputs = {name: getattr(batch, name) for name in Batch.__slots__}
        inputs |= {"lengths": ints([GIVEN, self.length]), "position": ints(np.zeros(1 + rows))}
        _, outputs = self.executable(self.kv, {**inputs, "history": self.history})
        return {name: self.device.get(tensor).result().copy() for name, tensor in outputs.items()}


def ints(values: Sequence[int] | np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.int32))


@pytest.fixture
def device() -> Iterator[NativeDevice]:
    opened = NativeDevice(threads=2)
    yield opened
    opened.close()


@pytest.mark.parametrize("length", [16, 257, 300])
def test_rows_without_a_draft_are_not_computed(device: NativeDevice, length: int) -> None:
    step, rows = Cut(device, length), MOST + 1
    whole, alone, cut = step.run(FOUND, rows), step.run(NONE, 1), step.run(NONE, rows)
    for name in ("x", "out"):
        assert np.array_equal(cut[name][:4], alone[name]), name
        assert np.array_equal(cut[name][4:], whole[name][4:]), "what an earlier step left there"
        assert not np.array_equal(cut[name][3], whole[name][3])
