"""A head that drafts for the tiny model (MTP), in steps that overlap: the engine's own passes and rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from headrace.conformance.seeded_drafts import PlacedDrafts
from headrace.conformance.tiny import EPS, HEADS, HIDDEN, LONGEST, VOCAB, WIDE, Serving, TinyModel
from headrace.conformance.transfer import place
from headrace.core.drafts import DraftRow, StepSize
from headrace.engine.core_loop import StepRunner
from headrace.engine.head_drafter import HeadDrafter
from headrace.engine.head_passes import HeadPasses
from headrace.engine.runner import Runner
from headrace.models.config import DecoderConfig, LayerConfig, Rope
from headrace.models.decoder import Decoder, DecoderWeights
from headrace.models.draft_heads import DraftHead, MtpJoin
from headrace.platforms.interface import Device
from headrace.types import Request

__all__ = ["HeadDrafts", "HeadServing", "HeldDrafts", "VerifiedRound"]

_CATCH_UP = 4
"""Rounds in which the head computes all prompts and drafts behind each."""


class VerifiedRound(NamedTuple):
    """The drafts of one sequence in one step."""

    sequence: str
    known: int
    """Tokens of its output before the step."""
    planned: int
    made: int
    accepted: int


class HeadDrafts(PlacedDrafts):
    """A `core.drafts.DraftSource` whose drafts are a head's, of any number at steps drawn at random."""

    drafter: HeadDrafter
    """Set before the first request."""

    def __init__(self, eager: float, seed: int, most: int) -> None:
        super().__init__(eager, seed, most)
        self.rounds: list[VerifiedRound] = []
        self._known: dict[str, int] = {}
        self._before: dict[str, int] = {}
        """Tokens at the last commit."""
        self._planned: dict[int, list[tuple[str, int]]] = {}
        """By step that is not committed."""

    def begin(self, request: Request) -> bool:
        self.drafter.begin(request)
        self._known[request.id] = self._before[request.id] = 0
        return super().begin(request)

    def extend(self, sequence: str, tokens: Sequence[int], in_flight: int) -> None:
        self.drafter.extend(sequence, tokens)
        self._known[sequence] += len(tokens)
        super().extend(sequence, tokens, in_flight)

    def pause(self, sequence: str, keep: bool) -> None:
        self.drafter.pause(sequence, keep)

    def end(self, sequence: str, keep: bool) -> None:
        self.drafter.end(sequence, keep)
        super().end(sequence, keep)

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> list[list[int]]:
        for row in rows:
            self.drafter.place(row)
        room = [row._replace(most=min(row.most, self.drafter.room(row.sequence))) for row in rows]
        counts = [len(drafts) for drafts in super().draft(step, size, room)]
        made = self.drafter.draft([(row.sequence, count) for row, count in zip(rows, counts, strict=True)]).tokens
        self._planned[step] = [(row.sequence, len(drafts)) for row, drafts in zip(rows, made, strict=True)]
        return made

    def verified(self, step: int, accepted: Sequence[int | None], made: Sequence[int]) -> None:
        super().verified(step, accepted, made)
        for (name, planned), count, right in zip(self._planned.pop(step, ()), made, accepted, strict=True):
            if right is not None:
                self.rounds.append(VerifiedRound(name, self._before[name], planned, count, right))
        self._before |= self._known


class HeldDrafts(HeadDrafts):
    """What the same head drafts after each token if every step waits for the one before it. None is verified."""

    def __init__(self, most: int) -> None:
        super().__init__(1.0, 0, most)
        self.found: dict[tuple[str, int], list[int]] = {}
        """By sequence and number of tokens of its output."""

    def places(self, request: Request) -> bool:
        return False

    def draft(self, step: int, size: StepSize, rows: Sequence[DraftRow]) -> list[list[int]]:
        for row in rows:
            self.drafter.place(row)
        wanted = [(row.sequence, min(self._most, self.drafter.room(row.sequence))) for row in rows]
        for _ in range(_CATCH_UP):
            made = self.drafter.draft(wanted).tokens
            self.found |= {(name, self._known[name]): own for (name, _), own in zip(wanted, made, strict=True)}
            wanted = [one for one, own in zip(wanted, made, strict=True) if len(own) < one[1]]
            if not wanted:
                break
        self._planned[step] = [(row.sequence, 0) for row in rows]
        return [[] for _ in rows]


class HeadServing(Serving):
    """The engine with a tiny model and its head. The answers are those of the same model without a head."""

    def __init__(self, device: Device, drafts: HeadDrafts, *, blocks: int = 64, placed: int = 0) -> None:
        """Sets the drafter of `drafts`. `placed`: as in `Serving`; it needs the operators of `HEAD_DRAFTING`."""
        self._device, self._drafts = device, drafts
        self._model = TinyModel(device, features=True)
        super().__init__(device, self._model, blocks=blocks, drafts=drafts, placed=placed, of_head=placed > 0)

    def watch(self, runner: Runner) -> StepRunner:
        config, target = runner.config, self._model
        own = replace(config.layout, layers=target.kv_layers[:1])
        feature = len(target.kv_layers) - 1, HIDDEN
        passes = HeadPasses(self._device, runner, _head(self._device, target), own, config.num_blocks, feature)
        sizes = config.num_blocks, own.block_size, config.max_num_batched_tokens, config.max_model_len, VOCAB
        self._drafts.drafter = HeadDrafter("mtp", "the tiny head", passes, *sizes, zero_first=False)
        return runner


def _head(device: Device, target: TinyModel) -> DraftHead:
    """Random weights from a fixed seed, with the target's own embedding and output matrix."""
    rng = np.random.default_rng(12)
    layer = target.layer(rng)
    norms = target.vector(rng), target.vector(rng)
    products = target.weight(rng, HIDDEN, HIDDEN), target.weight(rng, HIDDEN, HIDDEN)
    weights = DecoderWeights(target.embedding, [layer], target.vector(rng), target.head)
    config = DecoderConfig(
        family="tiny",
        hidden=HIDDEN,
        num_q_heads=HEADS,
        num_kv_heads=target.kv_heads,
        head_dim=target.dim,
        intermediate=WIDE,
        vocab=VOCAB,
        layers=(LayerConfig(),),
        ropes=(Rope(100.0, target.dim),),
        max_position=LONGEST,
        norm_eps=EPS,
    )
    body = Decoder(config, target.ops, weights, LONGEST, place=lambda table: place(device, table))
    join = MtpJoin(*norms, *products, layer.input_norm, EPS)
    return DraftHead(target.ops, body, join, None, recycles_normed=True, zero_first=False)
