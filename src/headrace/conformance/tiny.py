"""A decoder with two layers, served by the engine's own loop and runner."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from headrace.conformance.fixed_grammar import FixedGrammar
from headrace.conformance.transfer import head_size, place
from headrace.core import CoreConfig, Scheduler
from headrace.core.drafts import DraftSource
from headrace.engine.core_loop import EngineCore, StepRunner
from headrace.engine.runner import Runner, RunnerConfig
from headrace.kernels.registry import bind, pack
from headrace.kernels.weight import Weight
from headrace.models.decoder import LayerWeights
from headrace.models.features import FINAL, FeatureTap, TapPart, feature_layer
from headrace.platforms.interface import KV, Device, Tensor
from headrace.types import Capabilities, Delta, KVLayout, LayerKV, Request, SamplingParams

__all__ = ["VOCAB", "Answer", "Serving", "TinyModel", "agreeing", "requests"]

HIDDEN, HEADS, WIDE, VOCAB, _LAYERS, LONGEST = 64, 4, 96, 128, 2, 256
EPS = 1e-6
Answer = tuple[list[int], list[float]]
"""Token ids and their logprobs."""


class TinyModel:
    """A model with random float32 weights from a fixed seed, placed and packed on one device. `able` defines its heads;
    by default the device's own capabilities. `features`: it keeps its hidden states for a head, in one layer of the
    cache more."""

    def __init__(self, device: Device, able: Capabilities | None = None, features: bool = False) -> None:
        able = able or device.capabilities()
        self.ops = bind(device)
        self._device = device
        self.dim = head_size(able)
        self.kv_heads = 2 if "gqa" in able.attention_features else HEADS
        rng = np.random.default_rng(11)
        self.embedding = self.weight(rng, VOCAB, HIDDEN, "embedding")
        self._layers = [self.layer(rng) for _ in range(_LAYERS)]
        self._norm = self.vector(rng)
        self.head = self.weight(rng, VOCAB, HIDDEN, "logits")
        half = self.dim // 2
        angles = np.arange(LONGEST)[:, None] / 100.0 ** (np.arange(half) / half)
        table = np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
        self._cos_sin = place(device, torch.from_numpy(table))
        self.tap: FeatureTap | None = None
        if features:
            ones = place(device, torch.ones(HIDDEN))
            self.tap = FeatureTap(self.ops, {FINAL: (TapPart(),)}, _LAYERS, HIDDEN, ones, EPS)

    @property
    def kv_layers(self) -> tuple[LayerKV, ...]:
        own = (LayerKV(self.kv_heads, self.dim),) * _LAYERS
        return own if self.tap is None else (*own, feature_layer(HIDDEN, self.dim))

    def forward(self, batch: Any, kv: KV, history: Tensor) -> Tensor:
        ops = self.ops
        residual = ops.embedding(ops.resolve_tokens(batch, history), self.embedding, 1.0)
        x = ops.rms_norm(residual, self._layers[0].input_norm, EPS)
        for index, layer in enumerate(self._layers):
            following = self._layers[index + 1].input_norm if index + 1 < _LAYERS else self._norm
            qkv = ops.linear(x, layer.qkv)
            q = ops.rotary_cache(qkv, batch, kv, index, self._cos_sin, HEADS, None, None, EPS)
            x = ops.linear(ops.attention(q, batch, kv, index, self.dim**-0.5, None, None, None, None), layer.output)
            x, residual = ops.add_rms_norm(x, residual, layer.mlp_norm, EPS)
            x = ops.linear(ops.gated_activation(ops.linear(x, layer.gate_up), "silu"), layer.down)
            x, residual = ops.add_rms_norm(x, residual, following, EPS)
        if self.tap is not None:
            self.tap.keep(self.tap.add(None, FINAL, x), batch, kv)
        return ops.logits(x, batch, self.head, None)

    def layer(self, rng: np.random.Generator) -> LayerWeights:
        return LayerWeights(
            self.vector(rng),
            self.weight(rng, (HEADS + 2 * self.kv_heads) * self.dim, HIDDEN),
            self.weight(rng, HIDDEN, HEADS * self.dim),
            self.vector(rng),
            self.weight(rng, 2 * WIDE, HIDDEN),
            self.weight(rng, HIDDEN, WIDE),
        )

    def vector(self, rng: np.random.Generator) -> Tensor:
        return place(self._device, torch.from_numpy(rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32)))

    def weight(self, rng: np.random.Generator, rows: int, columns: int, operator: str = "linear") -> Weight:
        matrix = torch.from_numpy(rng.standard_normal((rows, columns)).astype(np.float32)) * (2.0 / columns**0.5)
        placed: Weight = place(self._device, Weight("float32", (rows, columns), {"weight": matrix}, _unpack))
        pack(self.ops, operator, placed)
        return placed


def _unpack(weight: Weight) -> torch.Tensor:
    return weight.tensors["weight"]


class Serving:
    """The engine itself on a device: its scheduler, its loop with two steps in flight, its runner."""

    def __init__(
        self,
        device: Device,
        model: TinyModel,
        *,
        budget: int = 64,
        seqs: int = 8,
        blocks: int = 64,
        drafts: DraftSource | None = None,
        placed: int = 0,
        of_head: bool = False,
    ) -> None:
        """`placed`: the most drafts that the device makes for a sequence; `of_head`: a head makes them."""
        capabilities = device.capabilities()
        size = capabilities.block_sizes[0]
        store = "float32" if "float32" in capabilities.kv_dtypes else min(capabilities.kv_dtypes)
        layout = KVLayout(model.kv_layers, size, store)
        self.scheduler = Scheduler(CoreConfig(blocks, size, seqs, budget, LONGEST, VOCAB), drafts)
        self.errors: dict[str, str] = {}
        """Request id → the error that ended it."""
        config = RunnerConfig(layout, blocks, seqs, budget, LONGEST, VOCAB, placed, of_head)
        runner = Runner(device, model, model.ops, config)
        self._core = EngineCore(self.scheduler, self.watch(runner), seqs, size)

    def watch(self, runner: Runner) -> StepRunner:
        """The runner for the loop; a subclass may wrap it."""
        return runner

    def run(self, work: Sequence[Request], constrained: Collection[str] = ()) -> dict[str, Answer]:
        """Serve all requests together, those whose ids are in `constrained` with a grammar. Raises DeviceLost."""
        answers: dict[str, Answer] = {request.id: ([], []) for request in work}
        for request in work:
            self.scheduler.add(request, FixedGrammar(VOCAB) if request.id in constrained else None)
        while self._core.has_work():
            for delta in self._core.step():
                self._take(answers, delta)
            self.scheduler.check()
        return answers

    def _take(self, answers: dict[str, Answer], delta: Delta) -> None:
        tokens, logprobs = answers[delta.request_id]
        tokens.extend(delta.token_ids)
        logprobs.extend(entry.logprob for entry in delta.logprobs or ())
        if delta.error is not None:
            self.errors[delta.request_id] = delta.error


def agreeing(found: Answer, wanted: Answer, limit: float = 0.02) -> int:
    """The number of tokens at the start on which two answers agree. Raises AssertionError if the logprobs of these
    tokens differ by more than the limit."""
    same = next((i for i, (a, b) in enumerate(zip(found[0], wanted[0], strict=False)) if a != b), len(wanted[0]))
    for one, other in zip(found[1][:same], wanted[1][:same], strict=False):
        assert abs(one - other) <= limit, f"a logprob of {one}, but {other} is expected"
    return min(same, len(found[0]))


def requests(count: int, temperature: float = 0.0, output: int = 8) -> list[Request]:
    """Prompts of 1 to 70 tokens, some with a shared beginning."""
    rng = np.random.default_rng(5)
    shared = rng.integers(0, VOCAB, 40).tolist()
    made = []
    for i in range(count):
        own = rng.integers(0, VOCAB, int(rng.integers(1, 30))).tolist()
        prompt = tuple(shared + own if i % 3 == 0 else own)
        params = SamplingParams(max_tokens=output, temperature=temperature, seed=i, logprobs=0, ignore_eos=True)
        made.append(Request(f"r{i}", prompt, params))
    return made
