"""Operators that return the right shapes and charge for the work. Token ids are read and chosen as on a real device."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.kernels.moe.routing import Routing
from headrace.kernels.ops import Batch, SampleInputs, SampleOutputs
from headrace.kernels.weight import Weight
from headrace.platforms.sim.cost import SimMachine
from headrace.platforms.sim.tokens import choose
from headrace.types import NO_TOKEN

__all__ = ["CostMeter", "SimOperators"]

Array = npt.NDArray[Any]
_ITEM = 2
"""Bytes per activation."""


class CostMeter:
    """Sums the seconds of the operators since the last `take`."""

    def __init__(self, machine: SimMachine) -> None:
        self._machine = machine
        self._seconds = 0.0

    def charge(self, traffic: float, operations: float = 0.0) -> None:
        self._seconds += self._machine.seconds(traffic, operations)

    def take(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds


def _zeros(*shape: int) -> Array:
    """Read-only zeros that take no memory."""
    return np.broadcast_to(np.float32(0), shape)


class SimOperators:
    """The methods of `kernels.ops.Ops` on numpy arrays."""

    def __init__(self, machine: SimMachine) -> None:
        self.meter = CostMeter(machine)

    def resolve_tokens(self, batch: Batch, history: Array) -> Array:
        tokens = int(batch.sizes[0])
        slots = np.asarray(batch.slots)[np.asarray(batch.token_seq)[:tokens]]
        positions = np.asarray(batch.positions)[:tokens]
        ids = np.zeros(len(batch.token_ids), np.int32)
        given = np.asarray(batch.token_ids)[:tokens]
        ids[:tokens] = np.where(given < 0, history[slots, positions], given)
        history[slots, positions] = ids[:tokens]
        self.meter.charge(12 * tokens)
        return ids

    def embedding(self, ids: Array, table: Weight, scale: float) -> Array:
        rows, columns = table.shape
        self.meter.charge(len(ids) * (table.nbytes / rows + columns * _ITEM))
        return _zeros(len(ids), columns)

    def rms_norm(self, x: Array, weight: Any, eps: float) -> Array:
        self.meter.charge(2 * x.size * _ITEM)
        return x

    def add_rms_norm(self, x: Array, residual: Array, weight: Any, eps: float) -> tuple[Array, Array]:
        self.meter.charge(4 * x.size * _ITEM)
        return x, residual

    def linear(self, x: Array, weight: Weight) -> Array:
        rows, columns = weight.shape
        self.meter.charge(weight.nbytes + len(x) * (rows + columns) * _ITEM, 2.0 * len(x) * rows * columns)
        return _zeros(len(x), rows)

    def rotary_cache(
        self,
        qkv: Array,
        batch: Batch,
        kv: Any,
        layer: int,
        cos_sin: Any,
        num_q_heads: int,
        q_norm: Any,
        k_norm: Any,
        eps: float,
    ) -> Array:
        self.meter.charge(2 * qkv.size * _ITEM)
        return _zeros(len(qkv), num_q_heads * kv.layout.layers[layer].head_dim)

    def attention(
        self,
        q: Array,
        batch: Batch,
        kv: Any,
        layer: int,
        scale: float,
        window: int | None,
        soft_cap: float | None,
        sinks: Any,
        alibi: Any,
    ) -> Array:
        """Charges one read of each sequence's keys and values, and the products of each query with the keys it attends
        to."""
        tokens, seqs = int(batch.sizes[0]), int(batch.sizes[1])
        shape, blocks = kv.layout.layers[layer], kv.layout.bytes_per_block / kv.layout.block_size
        share = shape.num_kv_heads * shape.head_dim / sum(l.num_kv_heads * l.head_dim for l in kv.layout.layers)
        fresh = np.diff(np.asarray(batch.query_start)[: seqs + 1])
        seen = np.asarray(batch.positions)[:tokens].astype(np.int64) + 1
        held = np.asarray(batch.context_lens)[:seqs].astype(np.int64)
        if window is not None:
            seen, held = np.minimum(seen, window), np.minimum(held, window + fresh)
        self.meter.charge(float(held.sum()) * blocks * share + 2 * q.size * _ITEM, 4.0 * q.shape[1] * float(seen.sum()))
        return q

    def gated_activation(self, x: Array, kind: str) -> Array:
        self.meter.charge(1.5 * x.size * _ITEM)
        return _zeros(len(x), x.shape[1] // 2)

    def moe(
        self, x: Array, router: Array, gate_up: Weight, down: Weight, bias: Any, routing: Routing, kind: str
    ) -> Array:
        """Charges one read of each expert that a token may have chosen, and each token's products with its own
        experts."""
        experts, pairs, stored = router.shape[1], len(x) * routing.top_k, gate_up.nbytes + down.nbytes
        share = min(pairs, experts) / experts
        work = 6.0 * pairs * x.shape[1] * down.shape[1]
        self.meter.charge(share * stored + (2 * x.size + 3 * pairs * down.shape[1] + router.size) * _ITEM, work)
        return _zeros(*x.shape)

    def store_features(self, x: Array, batch: Batch, kv: Any, layer: int) -> Array:
        self.meter.charge(2 * x.size * _ITEM)
        return x

    def load_features(self, batch: Batch, kv: Any, layer: int, width: int) -> Array:
        self.meter.charge(2 * len(batch.slot_mapping) * width * _ITEM)
        return _zeros(len(batch.slot_mapping), width)

    def take_rows(self, x: Array, batch: Batch) -> Array:
        self.meter.charge(2 * len(batch.rows) * x.shape[1] * _ITEM)
        return _zeros(len(batch.rows), x.shape[1])

    def widen_logits(self, logits: Array, columns: Any) -> Array:
        self.meter.charge(4 * (logits.size + len(logits) * len(columns)))
        return _zeros(len(logits), len(columns))

    def correct_logits(self, logits: Array, corrections: Array, at: int, drafts: int) -> Array:
        self.meter.charge(12 * corrections.size)
        return _zeros(*corrections.shape)

    def block_conv(self, x: Array, kernel: Array, base: Any, side: int, rows: int) -> Array:
        self.meter.charge((2 * x.size + kernel.size) * _ITEM, 2.0 * x.size * len(base))
        return _zeros(*x.shape)

    def gather_blocks(self, kv: Any, ids: Array) -> Array:
        size = kv.layout.bytes_per_block
        self.meter.charge(2 * len(ids) * size)
        return np.zeros((len(ids), size), np.uint8)

    def scatter_blocks(self, kv: Any, ids: Array, packed: Array) -> Array:
        self.meter.charge(2 * packed.nbytes)
        return ids

    def logits(self, x: Array, batch: Batch, head: Weight, soft_cap: float | None) -> Array:
        rows, (vocab, columns) = len(batch.rows), head.shape
        self.meter.charge(head.nbytes + rows * vocab * 4, 2.0 * rows * vocab * columns)
        return _zeros(rows, vocab)

    def sample(self, logits: Array, inputs: SampleInputs, batch: Batch, num_logprobs: int) -> SampleOutputs:
        """All tokens have the same probability; `tokens.choose` chooses one."""
        rows, vocab = logits.shape
        count, width = int(batch.sizes[2]), min(max(num_logprobs, 0), vocab)
        tokens = np.full(rows, NO_TOKEN, np.int32)
        tokens[:count] = choose(inputs, count, vocab)
        top = np.broadcast_to(np.arange(width, dtype=np.int32), (rows, width))
        even = np.float32(-np.log(vocab))
        self.meter.charge(logits.size * 4)
        logprobs, ranks = np.full(rows, even), np.ones(rows, np.int32)
        outputs: tuple[Any, ...] = (tokens, logprobs, ranks, top, np.full((rows, width), even))
        return SampleOutputs(*outputs)

    def named_logprobs(self, logits: Array, named: Array, top_logprobs: Array) -> Array:
        self.meter.charge(4 * logits.size)
        return np.where(named >= 0, top_logprobs[:, :1], np.float32(0))
