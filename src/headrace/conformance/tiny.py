"""A decoder of two layers and a loop around the scheduler: the least that makes a device serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.conformance.moving import head_size, place
from headrace.core import CoreConfig, Scheduler
from headrace.errors import PlatformError
from headrace.kernels.inputs import batch_of, pad_arrays, plan_arrays, sample_inputs_of
from headrace.kernels.registry import bind, pack
from headrace.kernels.weight import Weight
from headrace.platforms.interface import KV, Device, Pending, Tensor
from headrace.types import Bucket, Capabilities, Delta, KVLayout, LayerKV, Request, SamplingParams, StepPlan, StepResult

__all__ = ["Serving", "TinyModel", "requests"]

_HIDDEN, _HEADS, _WIDE, _VOCAB, _LAYERS, _LONGEST = 64, 4, 96, 128, 2, 256
_EPS = 1e-6
Answer = tuple[list[int], list[float]]
"""Token ids and their logprobs."""


@dataclass(frozen=True, slots=True)
class _Layer:
    norm: Tensor
    qkv: Weight
    output: Weight
    second_norm: Tensor
    gate_up: Weight
    down: Weight


class TinyModel:
    """Random weights from a fixed seed, in float32, placed and packed on one device. Its heads are those that `able` allows,
    by default the device's own capabilities."""

    def __init__(self, device: Device, able: Capabilities | None = None) -> None:
        able = able or device.capabilities()
        self._ops = bind(device)
        self._device = device
        self._dim = head_size(able)
        self._kv_heads = 2 if "gqa" in able.attention_features else _HEADS
        rng = np.random.default_rng(11)
        self._embedding = self._weight(rng, _VOCAB, _HIDDEN, "embedding")
        self._layers = [self._layer(rng) for _ in range(_LAYERS)]
        self._norm = self._vector(rng)
        self._head = self._weight(rng, _VOCAB, _HIDDEN, "logits")
        half = self._dim // 2
        angles = np.arange(_LONGEST)[:, None] / 100.0 ** (np.arange(half) / half)
        table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
        self._cos_sin = place(device, torch.from_numpy(table))

    @property
    def kv_layers(self) -> tuple[LayerKV, ...]:
        return (LayerKV(self._kv_heads, self._dim),) * _LAYERS

    def forward(self, batch: Any, kv: KV, history: Tensor) -> Tensor:
        ops = self._ops
        residual = ops.embedding(ops.resolve_tokens(batch, history), self._embedding, 1.0)
        x = ops.rms_norm(residual, self._layers[0].norm, _EPS)
        for index, layer in enumerate(self._layers):
            following = self._layers[index + 1].norm if index + 1 < _LAYERS else self._norm
            qkv = ops.linear(x, layer.qkv)
            q = ops.rotary_cache(qkv, batch, kv, index, self._cos_sin, _HEADS, None, None, _EPS)
            x = ops.linear(ops.attention(q, batch, kv, index, self._dim**-0.5, None, None, None, None), layer.output)
            x, residual = ops.add_rms_norm(x, residual, layer.second_norm, _EPS)
            x = ops.linear(ops.gated_activation(ops.linear(x, layer.gate_up), "silu"), layer.down)
            x, residual = ops.add_rms_norm(x, residual, following, _EPS)
        return ops.logits(x, batch, self._head, None)

    def step(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        batch = batch_of(inputs)
        logits = self.forward(batch, kv, inputs["history"])
        out = self._ops.sample(logits, sample_inputs_of(inputs), batch, 0)
        return kv, {"tokens": out.tokens, "logprobs": out.logprobs, "ranks": out.ranks, "history": inputs["history"]}

    def _layer(self, rng: np.random.Generator) -> _Layer:
        return _Layer(
            self._vector(rng),
            self._weight(rng, (_HEADS + 2 * self._kv_heads) * self._dim, _HIDDEN),
            self._weight(rng, _HIDDEN, _HEADS * self._dim),
            self._vector(rng),
            self._weight(rng, 2 * _WIDE, _HIDDEN),
            self._weight(rng, _HIDDEN, _WIDE),
        )

    def _vector(self, rng: np.random.Generator) -> Tensor:
        return place(self._device, torch.from_numpy(rng.uniform(0.5, 1.5, _HIDDEN).astype(np.float32)))

    def _weight(self, rng: np.random.Generator, rows: int, columns: int, operator: str = "linear") -> Weight:
        matrix = torch.from_numpy(rng.standard_normal((rows, columns)).astype(np.float32)) * (2.0 / columns**0.5)
        placed: Weight = place(self._device, Weight("float32", (rows, columns), {"weight": matrix}, _unpack))
        pack(self._ops, operator, placed)
        return placed


def _unpack(weight: Weight) -> torch.Tensor:
    return weight.tensors["weight"]


class Serving:
    """Scheduler and device with two steps in flight, as the engine has them."""

    def __init__(self, device: Device, model: TinyModel, *, budget: int = 64, seqs: int = 8, blocks: int = 64) -> None:
        capabilities = device.capabilities()
        size = capabilities.block_sizes[0]
        store = "float32" if "float32" in capabilities.kv_dtypes else min(capabilities.kv_dtypes)
        layout = KVLayout(model.kv_layers, size, store)
        self.scheduler = Scheduler(CoreConfig(blocks, size, seqs, budget, _LONGEST, _VOCAB))
        self._device = device
        self._static, self._carries = capabilities.static_shapes, not capabilities.in_place_kv
        self._bucket = Bucket(budget, seqs, seqs, -(-_LONGEST // size))
        self._kv = device.alloc_kv(layout, blocks)
        self._history = device.put(np.zeros((seqs + 1, _LONGEST), np.int32))
        self._executable = device.compile(model.step, self._bucket)
        self._spare = seqs

    def run(self, work: Sequence[Request]) -> dict[str, Answer]:
        """Serve all of them together. Raises what the device raises."""
        answers: dict[str, Answer] = {request.id: ([], []) for request in work}
        for request in work:
            self.scheduler.add(request)
        flying: list[tuple[StepPlan, dict[str, Pending]]] = []
        while self.scheduler.has_work():
            plan = self.scheduler.schedule(0.0) if len(flying) < 2 else None
            try:
                if plan is not None:
                    flying.append((plan, self.launch(plan)))
                    continue
                plan, outputs = flying.pop(0)
                deltas = self.scheduler.commit(plan, _result(plan, outputs), 0.0)
            except PlatformError as error:
                assert plan is not None
                deltas = self.failed(plan, error)
            for delta in deltas:
                _take(answers, delta)
            self.scheduler.check()
        return answers

    def failed(self, plan: StepPlan, error: PlatformError) -> list[Delta]:
        """What a step that the device could not do brings. Here nothing is expected to fail."""
        raise error

    def launch(self, plan: StepPlan) -> dict[str, Pending]:
        if len(plan.copies):
            pairs = plan.copies.tolist()
            self._kv = self._device.copy_blocks(self._kv, [a for a, _ in pairs], [b for _, b in pairs])
        arrays = plan_arrays(plan, _VOCAB)
        if self._static:
            arrays = pad_arrays(arrays, self._bucket, self._spare)
        inputs = {name: self._device.put(array) for name, array in arrays.items()}
        self._kv, outputs = self._executable(self._kv, inputs | {"history": self._history})
        # Written in place like the cache, or donated like it.
        self._history = outputs["history"] if self._carries else self._history
        return {name: self._device.get(outputs[name]) for name in ("tokens", "logprobs", "ranks")}


def _result(plan: StepPlan, outputs: Mapping[str, Pending]) -> StepResult:
    arrays: dict[str, npt.NDArray[Any]] = {name: pending.result()[: plan.num_rows] for name, pending in outputs.items()}
    empty = np.zeros((plan.num_rows, 0))
    return StepResult(**arrays, top_ids=empty.astype(np.int32), top_logprobs=empty.astype(np.float32))


def _take(answers: dict[str, Answer], delta: Delta) -> None:
    tokens, logprobs = answers[delta.request_id]
    tokens.extend(delta.token_ids)
    logprobs.extend(entry.logprob for entry in delta.logprobs or ())


def requests(count: int, temperature: float = 0.0, output: int = 8) -> list[Request]:
    """Prompts of 1 to 70 tokens, some with a shared beginning."""
    rng = np.random.default_rng(5)
    shared = rng.integers(0, _VOCAB, 40).tolist()
    made = []
    for i in range(count):
        own = rng.integers(0, _VOCAB, int(rng.integers(1, 30))).tolist()
        prompt = tuple(shared + own if i % 3 == 0 else own)
        params = SamplingParams(max_tokens=output, temperature=temperature, seed=i, logprobs=0, ignore_eos=True)
        made.append(Request(f"r{i}", prompt, params))
    return made
