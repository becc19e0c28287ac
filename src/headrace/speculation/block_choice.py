"""Chooses the tokens of drafted blocks, from left to right, out of the likely tokens of each position.

A block drafter computes the logits of all positions of a block at once, none of which knows its neighbours' tokens. Its
checkpoint may correct a position's scores by the token chosen before it: DSpark by a Markov head, DFlash2 by a selector
that scores pairs of candidates. The corrections are small, so they run on the host, on the candidates that the device
found. Each position is drawn with the random number of its own place, with the request's parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.speculation.draws import gumbel_noise

__all__ = ["BlockChoice", "BlockHead", "BlockRow", "ChosenBlocks"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
_GREEDY_BELOW = 1e-5
_NOTHING = np.float32(-np.inf)


@dataclass(frozen=True, slots=True)
class BlockHead:
    """What a checkpoint has for the choice; None for what it lacks."""

    draft_ids: Ints | None = None
    """[Vd]: the target's token of each one that it may guess."""
    predecessors: Floats | None = None
    """[V, rank]: the selector's vectors of the token before, and of candidates."""
    successors: Floats | None = None
    markov: str = ""
    """`vanilla`, `gated` or `rnn`; empty: no Markov head."""
    markov_in: Floats | None = None
    """[V, rank]"""
    markov_out: Floats | None = None
    """[Vd, rank]"""
    mixing: Floats | None = None
    """gated: [rank, rank], for the token before. rnn: [3 rank, 2 rank], for the state and the token before."""
    mixing_bias: Floats | None = None
    confidence: Floats | None = None
    """[rank]"""
    confidence_bias: float = 0.0
    estimates: bool = False
    """The checkpoint estimates the acceptance of its tokens."""

    def columns(self, vocab: int) -> npt.NDArray[np.int32] | None:
        """[vocab]: of each token of the target its number among those that the checkpoint may guess, or -1; None if it
        may guess all."""
        if self.draft_ids is None:
            return None
        found = np.full(vocab, -1, np.int32)
        found[self.draft_ids] = np.arange(len(self.draft_ids), dtype=np.int32)
        return found


class BlockRow(NamedTuple):
    """The sequence of one block."""

    anchor: int
    """Its last token."""
    position: int
    """Of the first token that the block guesses."""
    seed: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    biases: Mapping[int, float] | None = None
    allowed: frozenset[int] | None = None


class ChosenBlocks(NamedTuple):
    tokens: list[list[int]]
    """By row."""
    survival: list[list[float]] | None
    """The estimated probability that each token and all before it are accepted; None without estimates."""


class BlockChoice:
    """The choice of one checkpoint."""

    def __init__(self, head: BlockHead) -> None:
        self._head = head

    def choose(
        self, rows: Sequence[BlockRow], ids: Ints, scores: Floats, products: Mapping[str, Floats]
    ) -> ChosenBlocks:
        """`ids` and `scores` [N, k, K]: candidates of each position, as the drafter numbers tokens, and their
        logprobs. `products` [N, k, m] by name: what the checkpoint multiplies with the hidden state of each position
        (`selector`, `markov`, `confidence`)."""
        count, depth = ids.shape[:2]
        wide = ids if self._head.draft_ids is None else self._head.draft_ids[ids]
        drawing = _Drawing(rows, wide)
        before = np.array([row.anchor for row in rows], np.int64)
        state = self._first_state(count)
        found, odds = np.zeros((count, depth), np.int64), np.ones((count, depth), np.float32)
        for at in range(depth):
            held = scores[:, at]
            if self._head.predecessors is not None:
                held = held + self._pairs(before, wide[:, at], products["selector"][:, at])
            if self._head.markov:
                seen = products["markov"][:, at] if "markov" in products else None
                state, mixed = self._mixed(state, before, seen)
                held = held + self._dots(self._head.markov_out, ids[:, at], mixed)
            if self._head.estimates:
                odds[:, at] = self._odds(before, products["confidence"][:, at, 0])
            before = drawing.draw(at, held)
            found[:, at] = before
        survival = np.cumprod(odds, axis=1).tolist() if self._head.estimates else None
        return ChosenBlocks(found.tolist(), survival)

    def _pairs(self, before: Ints, tokens: Ints, hidden: Floats) -> Floats:
        """[N, K]: the selector's scores of each candidate after the token before it."""
        assert self._head.predecessors is not None
        return self._dots(self._head.successors, tokens, self._head.predecessors[before] * hidden)

    @staticmethod
    def _dots(table: Floats | None, tokens: Ints, vectors: Floats) -> Floats:
        assert table is not None
        found: Floats = np.matmul(table[tokens], vectors[:, :, None])[:, :, 0]
        return found

    def _first_state(self, count: int) -> Floats:
        rank = 0 if self._head.markov_in is None else self._head.markov_in.shape[1]
        return np.zeros((count, rank), np.float32)

    def _mixed(self, state: Floats, before: Ints, seen: Floats | None) -> tuple[Floats, Floats]:
        """(the next state, the vectors [N, rank] that `markov_out` multiplies)."""
        head = self._head
        assert head.markov_in is not None
        last = head.markov_in[before]
        if head.markov == "vanilla" or seen is None or head.mixing is None:
            return state, last
        read = last if head.markov == "gated" else np.concatenate([state, last], 1)
        mixed = seen + read @ head.mixing.T
        if head.mixing_bias is not None:
            mixed = mixed + head.mixing_bias
        if head.markov == "gated":
            return state, _sigmoid(mixed) * last
        gate, candidate, output = np.split(mixed, 3, axis=1)
        gate = _sigmoid(gate)
        return gate * state + (1 - gate) * np.tanh(candidate), np.tanh(output)

    def _odds(self, before: Ints, hidden: Floats) -> Floats:
        head, found = self._head, hidden + np.float32(self._head.confidence_bias)
        if head.confidence is not None and head.markov_in is not None:
            found = found + head.markov_in[before] @ head.confidence
        return _sigmoid(found)


class _Drawing:
    """Draws with the parameters of each row from `tokens` [N, k, K]."""

    def __init__(self, rows: Sequence[BlockRow], tokens: Ints) -> None:
        def column(name: str) -> Floats:
            return np.array([getattr(row, name) for row in rows], np.float32)[:, None]

        self._rows = rows
        self._special = [at for at, row in enumerate(rows) if row.biases or row.allowed is not None]
        temperature = column("temperature")
        self._warm = temperature[:, 0] >= _GREEDY_BELOW
        self._temperature = np.where(self._warm[:, None], temperature, np.float32(1))
        self._top_k = np.array([[row.top_k if row.top_k > 0 else 1 << 30] for row in rows], np.int64)
        self._top_p, self._min_p = column("top_p"), column("min_p")
        self._order = np.argsort(tokens, axis=2)  # Of equal scores the lower id counts.
        self._tokens = np.take_along_axis(tokens, self._order, 2)
        self._noise = self._drawn_noise() if self._warm.any() else None

    def draw(self, at: int, scores: Floats) -> Ints:
        """[N]: a token of each row for the place `at` after its first, by the scores [N, K] of its tokens there."""
        tokens = self._tokens[:, at]
        scores = np.take_along_axis(scores, self._order[:, at], 1)
        for row in self._special:
            scores[row] = scores[row] + self._limits(self._rows[row], tokens[row])
        best = scores.argmax(1)
        if self._noise is not None:
            best = np.where(self._warm, (self._kept(scores) + self._noise[:, at]).argmax(1), best)
        chosen: Ints = np.take_along_axis(tokens, best[:, None], 1)[:, 0]
        return chosen

    def _drawn_noise(self) -> Floats:
        """[N, k, K]: of every token at its place."""
        count, depth, width = self._tokens.shape
        seeds = np.array([row.seed % 2**64 for row in self._rows], np.uint64).repeat(depth)
        first = np.array([row.position for row in self._rows], np.int64)
        positions = (first[:, None] + np.arange(depth)).reshape(-1)
        return gumbel_noise(seeds, positions, self._tokens.reshape(-1, width)).reshape(count, depth, width)

    def _kept(self, scores: Floats) -> Floats:
        """Scores over temperature, -inf for what top-k, min-p and top-p remove, in this order."""
        peak = scores.max(1, keepdims=True)
        scaled = (scores - np.where(peak > _NOTHING, peak, 0)) / self._temperature
        order = np.argsort(-scaled, axis=1, kind="stable")
        ranked = np.take_along_axis(scaled, order, 1)
        weight = np.exp(ranked)
        kept = (np.arange(scores.shape[1]) < self._top_k) & (weight >= self._min_p)
        share = np.where(kept, weight, 0).astype(np.float64)
        sums = np.cumsum(share, axis=1)
        kept &= (self._top_p >= 1) | (sums - share < self._top_p * sums[:, -1:])
        kept[:, 0] = True
        found: Floats = np.full_like(scaled, _NOTHING)
        np.put_along_axis(found, order, np.where(kept, ranked, _NOTHING), 1)
        return found

    @staticmethod
    def _limits(row: BlockRow, tokens: Ints) -> Floats:
        """What a row's biases and allowed tokens add to the scores of its candidates."""
        biases = row.biases or {}
        added = [
            biases.get(token, 0.0) if row.allowed is None or token in row.allowed else -math.inf
            for token in tokens.tolist()
        ]
        return np.array(added).astype(np.float32)


def _sigmoid(x: Floats) -> Floats:
    found: Floats = np.float32(1) / (np.float32(1) + np.exp(-x))
    return found
