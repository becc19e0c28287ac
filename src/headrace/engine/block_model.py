"""Drafts of a block drafter whose tokens the host chooses, from left to right, among those that a pass finds likely."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.engine.block_batch import BlockPlace, block_arrays, block_batch
from headrace.engine.block_rounds import WARM_UP, BlockRounds, BlockSizes, StepCache
from headrace.kernels.inputs import pad_arrays, sample_inputs_of
from headrace.models.block_drafter import BlockDrafter
from headrace.platforms.interface import KV, Device, Tensor
from headrace.speculation.block_choice import BlockChoice, BlockRow, ChosenBlocks
from headrace.speculation.model_speculator import ModelDrafts
from headrace.types import Request

__all__ = ["BlockDraftModel"]


class BlockDraftModel(BlockRounds):
    """A `speculation.model_speculator.DraftingModel`. Each round is waited for."""

    def __init__(
        self,
        name: str,
        device: Device,
        cache: StepCache,
        drafter: BlockDrafter,
        choice: BlockChoice,
        sizes: BlockSizes,
        busy_seconds: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`busy_seconds`: the device's counter of its working time."""
        super().__init__(name, device, drafter, sizes, False, busy_seconds, clock)
        self._cache, self._choice = cache, choice
        self._limits: dict[str, tuple[dict[int, float], frozenset[int] | None]] = {}
        """Of each sequence: its biases, and the tokens that are allowed."""
        self._begin_anew()
        self._pass = device.compile(self._step, self._bucket)

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._history = self._device.put(np.zeros((1, 1), np.int32))

    def warm_up(self) -> None:
        """Make what is made on first use, and measure. Raises what the device raises."""
        for count in {1, self._together}:
            for _ in range(WARM_UP):
                places = [BlockPlace(0, 0, np.zeros(0, np.int32))] * count
                self._guess(places, [BlockRow(0, 1)] * count)

    def begin(self, request: Request) -> None:
        super().begin(request)
        params = request.params
        allowed = None if params.allowed_token_ids is None else frozenset(params.allowed_token_ids)
        self._limits[request.id] = dict(params.logit_bias), allowed

    def end(self, sequence: str, keep: bool) -> None:
        super().end(sequence, keep)
        del self._limits[sequence]

    def _round(self, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        start, names = self._clock(), [name for name, _ in wanted]
        tokens, survival = list[list[int]](), list[list[float]]()
        for first in range(0, len(names), self._together):
            some = names[first : first + self._together]
            found = self._guess([self._place_of(name) for name in some], [self._row(name) for name in some])
            tokens += found.tokens
            survival += found.survival or []
        return ModelDrafts(tokens, self._clock() - start, [0.0] * len(names), survival or None)

    def _place_of(self, name: str) -> BlockPlace:
        known = self._sequences[name]
        return BlockPlace(known.tokens[-1], len(known.tokens) - 1, known.target_blocks)

    def _row(self, name: str) -> BlockRow:
        known, (biases, allowed) = self._sequences[name], self._limits[name]
        params, tokens = known.request.params, known.tokens
        if params.min_tokens > len(tokens) - len(known.request.prompt):
            biases = {**biases, **dict.fromkeys((*known.request.eos_token_ids, *params.stop_token_ids), -np.inf)}
        return BlockRow(
            tokens[-1],
            len(tokens),
            params.seed or 0,
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            biases,
            allowed,
        )

    def _guess(self, places: Sequence[BlockPlace], rows: Sequence[BlockRow]) -> ChosenBlocks:
        """One pass, and the choice."""
        start, config, size = self._clock(), self._drafter.config, self._sizes.block_size
        arrays = block_arrays(config, [self._covered(at, place) for at, place in enumerate(places)], size)
        given = arrays if not self._static else pad_arrays(arrays, self._bucket, 0)
        inputs = {name: self._device.put(np.ascontiguousarray(array)) for name, array in given.items()}
        outputs = self._cache.read(self._pass, {**inputs, "history": self._history})
        self._history = outputs.get("history", self._history)
        pending = {name: self._device.get(tensor) for name, tensor in outputs.items() if name != "history"}
        found = {name: one.result() for name, one in pending.items()}
        tokens = len(places) * config.rows
        self.cost.observe(tokens, int(arrays["whole_lens"].sum()), self._clock() - start)
        count = len(arrays["rows"])
        shape = (len(places), config.drafts, -1)
        chosen = self._choice.choose(
            rows,
            found["ids"][:count].astype(np.int64).reshape(shape),
            found["logprobs"][:count].reshape(shape),
            self._products(found.get("side"), arrays["rows"], shape),
        )
        return chosen

    def _products(
        self, side: npt.NDArray[np.float32] | None, rows: npt.NDArray[np.int32], shape: tuple[int, int, int]
    ) -> dict[str, npt.NDArray[np.float32]]:
        """The parts of what the choice reads, by name."""
        found, at = dict[str, npt.NDArray[np.float32]](), 0
        for name, width in self._drafter.weights.tables.side if side is not None else ():
            assert side is not None
            found[name] = side[rows, at : at + width].reshape(shape)
            at += width
        return found

    def _step(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        choices = self._drafter.config.choices
        found: dict[str, Any] = dict(self._drafter.draft(block_batch(inputs), sample_inputs_of(inputs), kv, choices))
        if not self._device.capabilities().in_place_kv:
            found["history"] = inputs["history"]
        return kv, found
