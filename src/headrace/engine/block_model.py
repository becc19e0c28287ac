"""Drafts of a block drafter: a pass over the blocks of all sequences that want drafts, then the choice of tokens.

The drafter's layers lie in the target's cache, and every step of the target writes their entries
(`models.block_drafter.ContextTap`). So a round reads what is there: no sequence is ever behind, and a prefix that was
found in the cache has its entries. Only drafts come from here, so a mistake costs time and changes no answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.core.drafts import DraftRow
from headrace.engine.block_batch import BlockPlace, block_arrays, block_batch
from headrace.engine.guarded_rounds import GuardedRounds
from headrace.kernels.inputs import pad_arrays, sample_inputs_of
from headrace.models.block_drafter import BlockDrafter
from headrace.platforms.interface import KV, Device, Executable, Tensor
from headrace.speculation.block_choice import BlockChoice, BlockRow, ChosenBlocks
from headrace.speculation.model_speculator import ModelDrafts
from headrace.speculation.step_cost import StepCost
from headrace.types import Bucket, Request

__all__ = ["BlockDraftModel", "BlockSizes", "StepCache"]

_ROWS = 64
"""Most rows of logits of one pass, unless one block has more."""
_WARM_UP = 4
"""Times that each number of blocks is measured at the start."""


class StepCache(Protocol):
    """The members of a runner that a round uses."""

    def read(self, executable: Executable, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Launch an executable on the cache, after all earlier steps."""


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """The sizes of the cache and of the engine."""

    block_size: int
    num_blocks: int
    """Blocks of sequences; those after them are the drafter's."""
    max_num_seqs: int
    max_model_len: int


@dataclass(slots=True)
class _Known:
    """A sequence of the target."""

    request: Request
    tokens: list[int]
    blocks: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    biases: dict[int, float] = field(default_factory=dict)
    allowed: frozenset[int] | None = None


class BlockDraftModel(GuardedRounds):
    """A `speculation.model_speculator.DraftingModel`. If a round fails, the error is logged once and no more drafts are
    made; a lost device is raised."""

    overhead = 0.0

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
        super().__init__(f"the drafter {name}", busy_seconds, clock)
        self.cost = StepCost()
        self.block = drafter.config.rows
        """Rows that the first draft of a sequence costs; the others of its block cost nothing."""
        self._device, self._cache, self._drafter, self._choice = device, cache, drafter, choice
        self._sizes = sizes
        self._sequences: dict[str, _Known] = {}
        config = drafter.config
        self.method, self.drafts = config.method, config.drafts
        self._together = blocks_together(config.drafts, sizes.max_num_seqs)
        self._static = device.capabilities().static_shapes
        self._history = device.put(np.zeros((1, 1), np.int32))
        width = -(-(sizes.max_model_len + config.rows) // sizes.block_size)
        tokens = self._together * config.rows
        self._bucket = Bucket(tokens, tokens, self._together * config.drafts, width)
        self._pass = device.compile(self._step, self._bucket)

    def warm_up(self) -> None:
        """Make what is made on first use, and measure. Raises what the device raises."""
        for count in {1, self._together}:
            for _ in range(_WARM_UP):
                places = [BlockPlace(0, 0, np.zeros(0, np.int32))] * count
                self._guess(places, [BlockRow(0, 1)] * count)

    def begin(self, request: Request) -> None:
        """Take up a sequence."""
        known = _Known(request, list(request.prompt))
        known.biases = dict(request.params.logit_bias)
        if request.params.allowed_token_ids is not None:
            known.allowed = frozenset(request.params.allowed_token_ids)
        self._sequences[request.id] = known

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        self._sequences[sequence].tokens += tokens

    def end(self, sequence: str) -> None:
        del self._sequences[sequence]

    def place(self, row: DraftRow) -> None:
        self._sequences[row.sequence].blocks = row.blocks

    def room(self, sequence: str) -> int:
        if self.failures:
            return 0
        left = self._sizes.max_model_len - len(self._sequences[sequence].tokens)
        return max(0, min(left, self._drafter.config.drafts))

    def behind(self, sequence: str) -> int:
        return 0

    def draft(self, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        """Complete blocks, however many tokens are wanted. Raises DeviceLost."""
        return self._guarded(len(wanted), lambda: self._round([name for name, _ in wanted]))

    def _round(self, names: Sequence[str]) -> ModelDrafts:
        start = self._clock()
        tokens, survival = list[list[int]](), list[list[float]]()
        for first in range(0, len(names), self._together):
            some = names[first : first + self._together]
            found = self._guess([self._place_of(name) for name in some], [self._row(name) for name in some])
            tokens += found.tokens
            survival += found.survival or []
        return ModelDrafts(tokens, self._clock() - start, [0.0] * len(names), survival or None)

    def _place_of(self, name: str) -> BlockPlace:
        known = self._sequences[name]
        return BlockPlace(known.tokens[-1], len(known.tokens) - 1, known.blocks)

    def _row(self, name: str) -> BlockRow:
        known = self._sequences[name]
        params, tokens, biases = known.request.params, known.tokens, known.biases
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
            known.allowed,
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

    def _covered(self, at: int, place: BlockPlace) -> BlockPlace:
        """The place with blocks of the drafter's own for positions for which the sequence has none."""
        config, size = self._drafter.config, self._sizes.block_size
        needed, own = (place.position + config.rows - 1) // size + 1, spare_blocks(config.rows, size)
        missing = max(0, needed - len(place.blocks))
        first = self._sizes.num_blocks + at * own
        spare = np.arange(first, first + missing, dtype=np.int32)
        return place._replace(blocks=np.concatenate([place.blocks, spare]))

    def _step(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        choices = self._drafter.config.choices
        found: dict[str, Any] = dict(self._drafter.draft(block_batch(inputs), sample_inputs_of(inputs), kv, choices))
        if not self._device.capabilities().in_place_kv:
            found["history"] = inputs["history"]
        return kv, found


def blocks_together(drafts: int, max_num_seqs: int) -> int:
    """The number of blocks that one pass computes."""
    return max(1, min(max_num_seqs, _ROWS // drafts))


def spare_blocks(rows: int, block_size: int) -> int:
    """The blocks of the cache that one drafted block may need beside those of its sequence."""
    return -(-rows // block_size)
