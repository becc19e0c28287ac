"""What rounds of drafted blocks have in common, whoever chooses the tokens: sequences, sizes, blocks of the cache.

The drafter's layers lie in the target's cache, and every step of the target writes their entries
(`models.block_drafter.ContextTap`). So a round reads what is there: no sequence is ever behind, and a prefix that was
found in the cache has its entries. Only drafts come from here, so a mistake costs time and changes no answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from headrace.core.drafts import DraftRow
from headrace.engine.block_batch import BlockPlace
from headrace.engine.head_plans import Drafted
from headrace.engine.unwaited_rounds import UnwaitedRounds
from headrace.models.block_drafter import BlockDrafter
from headrace.platforms.interface import Device, Executable, Tensor, TimesLaunches
from headrace.speculation.model_speculator import ModelDrafts
from headrace.types import Bucket, Request

__all__ = ["WARM_UP", "BlockRounds", "BlockSizes", "StepCache", "blocks_together", "spare_blocks"]

WARM_UP = 4
"""Times that each number of blocks is measured at the start."""
_ROWS = 64
"""Most rows of logits of one pass, unless one block has more."""


class StepCache(Protocol):
    """The members of a runner that a round uses."""

    def read(
        self, executable: Executable, inputs: Mapping[str, Tensor], with_history: bool = False
    ) -> Mapping[str, Tensor]:
        """Launch an executable on the cache, and on the history of tokens if wanted, after all earlier steps."""


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """The sizes of the cache and of the engine."""

    block_size: int
    num_blocks: int
    """Blocks of sequences; those after them are the drafter's."""
    max_num_seqs: int
    max_model_len: int


class BlockRounds(UnwaitedRounds):
    """The base of a `speculation.model_speculator.DraftingModel` that guesses blocks. If a round fails, the error is
    logged and no more drafts are made, unless `renew` is called; a lost device is raised."""

    overhead = 0.0

    def __init__(
        self,
        name: str,
        device: Device,
        drafter: BlockDrafter,
        sizes: BlockSizes,
        places: bool,
        busy_seconds: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`places`: the device places sequences. `busy_seconds`: the device's counter of its working time."""
        super().__init__(f"the drafter {name}", places, busy_seconds, clock, device.extension(TimesLaunches))
        config = drafter.config
        self.method, self.drafts = config.method, config.drafts
        self.block = config.rows
        """Rows that the first draft of a sequence costs; the others of its block cost nothing."""
        self._device, self._drafter, self._sizes = device, drafter, sizes
        self._sequences: dict[str, Drafted] = {}
        self._together = blocks_together(config.drafts, sizes.max_num_seqs)
        self._static = device.capabilities().static_shapes
        width = -(-(sizes.max_model_len + config.rows) // sizes.block_size)
        tokens = self._together * config.rows
        self._bucket = Bucket(tokens, tokens, self._together * config.drafts, width)

    def begin(self, request: Request) -> None:
        """Take up a sequence."""
        self._sequences[request.id] = Drafted(request, list(request.prompt), self._drafter.config.decoder.vocab)

    def extend(self, sequence: str, tokens: Sequence[int]) -> None:
        self._sequences[sequence].tokens += tokens

    def pause(self, sequence: str, keep: bool) -> None:
        """Its entries were in the target's blocks alone."""

    def end(self, sequence: str, keep: bool) -> None:
        del self._sequences[sequence]

    def place(self, row: DraftRow) -> None:
        """Where a sequence of the next round is on the device."""
        self._sequences[row.sequence].place(row)

    def room(self, sequence: str) -> int:
        if self.ended:
            return 0
        left = self._sizes.max_model_len - len(self._sequences[sequence].tokens)
        return max(0, min(left, self._drafter.config.drafts))

    def behind(self, sequence: str) -> int:
        return 0

    def draft(self, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        """Complete blocks, however many tokens are wanted. Raises DeviceLost."""
        return self._launched(len(wanted), lambda: self._round(wanted))

    def _round(self, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        raise NotImplementedError

    def _covered(self, at: int, place: BlockPlace) -> BlockPlace:
        """The place of block `at` of a pass, with blocks of the drafter's own for positions for which the sequence has
        none."""
        config, size = self._drafter.config, self._sizes.block_size
        needed, own = (place.position + config.rows - 1) // size + 1, spare_blocks(config.rows, size)
        missing = max(0, needed - len(place.blocks))
        first = self._sizes.num_blocks + at * own
        spare: npt.NDArray[np.int32] = np.arange(first, first + missing, dtype=np.int32)
        return place._replace(blocks=np.concatenate([place.blocks, spare]))


def blocks_together(drafts: int, max_num_seqs: int) -> int:
    """The number of blocks that one pass computes."""
    return max(1, min(max_num_seqs, _ROWS // drafts))


def spare_blocks(rows: int, block_size: int) -> int:
    """The blocks of the cache that one drafted block may need beside those of its sequence."""
    return -(-rows // block_size)
