"""Drafts of a block drafter whose tokens the device draws, each without its neighbours or one after another.

If the device places a sequence, its block is launched while steps before it are in flight, and nothing waits for it.
The device moves the rows to where the last right token is, takes that from its history of tokens, and writes what it
draws behind it, where the next step finds its drafts. Masks stand in the history for the time of the pass: each is at
the place of a draft of the same block. One that is no token gives way to a token before the draw, because a row that
gives none leaves it there.

If a token adds something to the logits of the next one (DSpark), the draws are a second executable behind the pass: a
chain of one draw for each place of a block, of the same place of all blocks at once. Its tokens never leave the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from headrace.engine.block_batch import BlockPlace, block_draws, chain_arrays, drawn_arrays, moved_arrays
from headrace.engine.block_rounds import WARM_UP, BlockRounds, BlockSizes, StepCache
from headrace.engine.head_plans import Drafted
from headrace.engine.resident_inputs import ResidentInputs
from headrace.engine.runner import constraint_sizes
from headrace.engine.unwaited_rounds import until_none
from headrace.kernels.inputs import batch_of, pad_arrays, sample_inputs_of
from headrace.kernels.ops import Batch, OptionalOps, Shifted
from headrace.models.block_drafter import BlockBatch, BlockDrafter
from headrace.platforms.interface import KV, Device, Executable, Pending, StepFn, Tensor
from headrace.speculation.model_speculator import ModelDrafts
from headrace.types import NO_TOKEN, Bucket, Request, SamplingBatch, SamplingParams

__all__ = ["PlacedBlocks"]


class _Wanted(NamedTuple):
    """A sequence of a round."""

    row: int
    """Of the round."""
    seq: Drafted
    most: int
    """Drafts that are wanted."""


class _Inputs(NamedTuple):
    """Of one executable, on the device."""

    tensors: dict[str, Tensor]
    bucket: Bucket


class _Pass(NamedTuple):
    """The inputs of one pass."""

    block: _Inputs
    chain: _Inputs | None
    """Of the draws behind it, if they are made one after another."""
    tokens: int
    context: int
    """The tokens that its tokens attend to, in total."""


class _Launched(NamedTuple):
    """One pass."""

    tokens: int
    context: int
    drawn: Pending
    """int32 [drafts of all its blocks]"""


class _ChainTokens(NamedTuple):
    """A `Pending` of the tokens of a chain: of each place, those of all blocks."""

    places: Sequence[Pending]

    def done(self) -> bool:
        return self.places[-1].done()

    def result(self) -> npt.NDArray[np.int32]:
        """Raises PlatformError."""
        found: npt.NDArray[np.int32] = np.stack([one.result() for one in self.places], axis=1).reshape(-1)
        return found


class PlacedBlocks(BlockRounds):
    """A `speculation.model_speculator.DraftingModel`. `draft` waits for the device, unless the device places all
    sequences of the round; while it waits for others, nothing of these is in flight in the target."""

    def __init__(
        self,
        name: str,
        device: Device,
        cache: StepCache,
        drafter: BlockDrafter,
        sizes: BlockSizes,
        columns: npt.NDArray[np.int32] | None = None,
        busy_seconds: Callable[[], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`columns` [vocabulary of the target]: for a reduced vocabulary, see `ops.OptionalOps.widen_logits`.
        `busy_seconds`: the device's counter of its working time."""
        super().__init__(name, device, drafter, sizes, True, busy_seconds, clock)
        self._cache = cache
        self._columns = None if columns is None else device.put(columns)
        self._executables: dict[tuple[str, Bucket], Executable] = {}
        self._resident, self._resident_chain = ResidentInputs(device), ResidentInputs(device)
        count = self._together
        self._chain_bucket = Bucket(count, count, count, self._bucket.blocks)
        self._drawn: tuple[Sequence[Drafted], SamplingBatch | None] = ((), None)
        """The sequences of the latest pass, and their draws."""

    def warm_up(self) -> None:
        """Make what is made on first use, and measure. Raises what the device raises."""
        if self._sizes.max_model_len < 1 + self.drafts:
            return
        for count in {1, self._together}:
            request = Request("warm-up", (0,), SamplingParams(temperature=0.0))
            seqs = [Drafted(request, [0], self._drafter.config.decoder.vocab, slot=0, known=1) for _ in range(count)]
            wanted = [_Wanted(row, seq, self.drafts) for row, seq in enumerate(seqs)]
            for _ in range(WARM_UP):
                # Rounds are not waited for, so their passes run right behind other work: measure them like that.
                self._launch(self._inputs(wanted), False)
                self._timed([wanted])
        self.cost.replace_soon()

    def room(self, sequence: str) -> int:
        fits = len(self._sequences[sequence].tokens) + self.drafts <= self._sizes.max_model_len
        return super().room(sequence) if fits else 0

    def _round(self, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
        rows = [_Wanted(row, self._sequences[name], count) for row, (name, count) in enumerate(wanted)]
        # A block must fit: the history ends with the context, and tokens beyond it would be written elsewhere.
        fit = [each for each in rows if each.most > 0 and each.seq.known + self.drafts <= self._sizes.max_model_len]
        groups = [fit[first : first + self._together] for first in range(0, len(fit), self._together)]
        tokens: list[list[int]] = [[] for _ in wanted]
        seconds = 0.0
        if groups:
            timed = not all(each.seq.placed for each in fit) or self._measures(list(map(self._tokens, groups)))
            if timed:
                found, seconds = self._timed(groups)
            else:
                launched, marks = list[_Launched](), [self._times.mark()]
                for group in groups:
                    launched.append(self._launch(self._inputs(group), False))
                    marks.append(self._times.mark())
                passes = [(one.tokens, one.context) for one in launched]
                seconds = self._leave([one.drawn for one in launched], passes, marks)
                found = [[] for _ in fit]
            for each, own in zip(fit, found, strict=True):
                count = min(each.most, self.drafts)
                tokens[each.row] = [NO_TOKEN] * count if each.seq.placed else until_none(own[:count])
            self._count(seconds, timed)
        return ModelDrafts(tokens, seconds, [0.0] * len(wanted))

    def _tokens(self, group: Sequence[_Wanted]) -> int:
        """Of one pass."""
        return len(group) * self._drafter.config.rows

    def _timed(self, groups: Sequence[Sequence[_Wanted]]) -> tuple[list[list[int]], float]:
        """The drafts of all blocks, and the seconds that they take once the device has finished what is in flight."""
        inputs = [self._inputs(group) for group in groups]
        # Its result comes when the first pass begins.
        begun = self._device.get(self._run("mark", inputs[0].block)["mark"])
        launched = [self._launch(own, True) for own in inputs]
        begun.result()
        start = last = self._clock()
        found = list[list[int]]()
        for one, group in zip(launched, groups, strict=True):
            drawn = one.drawn.result()[: len(group) * self.drafts]
            now = self._clock()
            self.cost.observe(one.tokens, one.context, now - last)
            last = now
            found += drawn.reshape(len(group), self.drafts).tolist()
        return found, last - start

    def _inputs(self, group: Sequence[_Wanted]) -> _Pass:
        config, seqs = self._drafter.config, [each.seq for each in group]
        places = [
            BlockPlace(NO_TOKEN if seq.placed else seq.tokens[-1], seq.known - 1, seq.target_blocks) for seq in seqs
        ]
        covered = [self._covered(at, place) for at, place in enumerate(places)]
        drawn = self._draws(seqs)
        arrays = moved_arrays(config, covered, seqs, self._sizes.block_size)
        tokens, context = len(arrays["token_ids"]), int(arrays["whole_lens"].sum())
        if config.independent:
            arrays |= drawn_arrays(config, seqs, drawn)
            return _Pass(self._put(self._resident, arrays, self._bucket, drawn), None, tokens, context)
        behind = chain_arrays(config, arrays, seqs, drawn)
        block = self._put(self._resident, arrays, self._bucket, None)
        chain = self._put(self._resident_chain, behind, self._chain_bucket, drawn)
        return _Pass(block, chain, tokens, context)

    def _put(
        self,
        resident: ResidentInputs,
        arrays: dict[str, npt.NDArray[Any]],
        bucket: Bucket,
        drawn: SamplingBatch | None,
    ) -> _Inputs:
        if self._static:
            if drawn is not None:
                biases, masks = constraint_sizes(drawn)
                bucket = replace(bucket, biases=biases, masks=masks)
            arrays = pad_arrays(arrays, bucket, self._sizes.max_num_seqs)
        return _Inputs(resident.put(arrays), bucket)

    def _draws(self, seqs: Sequence[Drafted]) -> SamplingBatch:
        before, drawn = self._drawn
        same = len(before) == len(seqs) and all(own is other for own, other in zip(before, seqs, strict=True))
        found = block_draws(self._drafter.config, seqs, drawn if same else None)
        self._drawn = seqs, found
        return found

    def _launch(self, inputs: _Pass, read: bool) -> _Launched:
        """`read`: the tokens are wanted, not only to know that they are there."""
        get = self._device.get
        if inputs.chain is None:
            drawn = get(self._run("draw", inputs.block)["tokens"])
        else:
            logits = self._run("guess", inputs.block)["guesses"]
            chain = inputs.chain._replace(tensors={**inputs.chain.tensors, "guesses": logits})
            outputs = self._run("chain", chain)
            places = range(0 if read else self.drafts - 1, self.drafts)
            drawn = _ChainTokens([get(outputs[f"tokens {at}"]) for at in places])
        return _Launched(inputs.tokens, inputs.context, drawn)

    def _run(self, part: str, inputs: _Inputs) -> Mapping[str, Tensor]:
        found = self._executables.get((part, inputs.bucket))
        if found is None:
            functions: dict[str, StepFn] = {
                "draw": self._draw,
                "mark": self._mark,
                "guess": self._guess,
                "chain": self._chain,
            }
            found = self._executables[part, inputs.bucket] = self._device.compile(functions[part], inputs.bucket)
        return self._cache.read(found, inputs.tensors, True)

    def _mark(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        """Nothing, but in its order."""
        return kv, {"mark": self._shifted(batch_of(inputs), inputs).positions, **self._history(inputs)}

    def _draw(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        block, position = self._block(inputs)
        drawn = self._drafter.sample(block, sample_inputs_of({**inputs, "position": position}), kv, self._columns)
        return kv, {"tokens": drawn, **self._history(inputs)}

    def _guess(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        block, _ = self._block(inputs)
        return kv, {"guesses": self._drafter.logits(block, kv), **self._history(inputs)}

    def _chain(self, kv: KV, inputs: Mapping[str, Tensor]) -> tuple[KV, Mapping[str, Tensor]]:
        drafter, own = self._drafter, cast(OptionalOps, self._drafter.ops)
        batch, found = batch_of(inputs), dict[str, Tensor]()
        moved = self._shifted(batch, inputs)
        batch, position = moved.of(batch), moved.position
        tokens = drafter.ops.resolve_tokens(batch, inputs["history"])
        for at in range(self.drafts):
            logits = drafter.corrected(inputs["guesses"], tokens, batch, at)
            if self._columns is not None:
                logits = own.widen_logits(logits, self._columns)
            sampling = sample_inputs_of({**inputs, "position": position})
            tokens = found[f"tokens {at}"] = drafter.ops.sample(logits, sampling, batch, -1).tokens
            if at + 1 < self.drafts:
                here = replace(batch, positions=position)
                position = self._shifted(here, {**inputs, "bounds": inputs["unmoved"]}).next_positions
        return kv, {**found, **self._history(inputs)}

    def _block(self, inputs: Mapping[str, Tensor]) -> tuple[BlockBatch, Tensor]:
        """The blocks where the device knows them to be, and the places of their drafts."""
        batch = batch_of(inputs)
        moved = self._shifted(batch, inputs)
        last = self._shifted(
            replace(batch, positions=inputs["last_positions"], context_lens=inputs["whole_lens"]), inputs
        )
        batch = moved.of(batch)
        ids = self._drafter.ops.resolve_tokens(batch, inputs["history"])
        if "unmasked" in inputs:
            self._drafter.ops.resolve_tokens(replace(batch, token_ids=inputs["unmasked"]), inputs["history"])
        return BlockBatch(replace(batch, token_ids=ids), last.positions, last.context_lens), moved.position

    def _shifted(self, batch: Batch, inputs: Mapping[str, Tensor]) -> Shifted:
        own = cast(OptionalOps, self._drafter.ops)
        return own.shift(batch, inputs["bounds"], inputs["position"], inputs["history"], self._sizes.block_size)

    def _history(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {} if self._device.capabilities().in_place_kv else {"history": inputs["history"]}
