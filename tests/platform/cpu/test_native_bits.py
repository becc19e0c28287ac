"""The same bits alone and in a batch, at once and in chunks, on one thread and on several, with any old content of
blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from headrace.kernels import random
from headrace.kernels.ops import Batch
from headrace.kernels.sample.generate import _inputs
from headrace.platforms.cpu import native
from headrace.platforms.cpu.native_kv import NativeKV
from headrace.platforms.cpu.native_launch import EagerLauncher
from headrace.platforms.cpu.native_ops import NativeOps
from headrace.platforms.cpu.native_team import Team
from headrace.types import KVLayout, LayerKV

CPU = torch.device("cpu")


def usable() -> list[str]:
    """Instruction sets that the library holds and this machine runs, best first."""
    return [isa for isa in native.ISAS if native.missing() is None and _runs(isa)]


def _runs(isa: str) -> bool:
    try:
        native.load(isa)
    except native.PlatformError:
        return False
    return True


BLOCK, TABLE = 16, 80


USABLE = usable()


@pytest.fixture(scope="module", params=USABLE)
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def teams(isa: str) -> Iterator[dict[int, NativeOps]]:
    """By threads; the best instruction set on more threads than others."""
    made = {n: Team(native.load(isa), n) for n in ((1, 2, 5) if isa == USABLE[0] else (1, 2))}
    yield {n: NativeOps(EagerLauncher(team)) for n, team in made.items()}
    for team in made.values():
        team.close()


class Sequence:
    """One sequence's projections, and how it is fed to the kernels."""

    def __init__(
        self, rng: np.random.Generator, length: int, heads: int, kv_heads: int, dim: int, first_block: int
    ) -> None:
        self.length = length
        self.qkv = random.normal(rng, length, (heads + 2 * kv_heads) * dim, device=CPU)
        self.table = first_block + rng.permutation(TABLE)

    def slots(self, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return self.table[positions // BLOCK] * BLOCK + positions % BLOCK


def batch_of(parts: list[tuple[Sequence, int, int]]) -> Batch:
    """One step of (sequence, begin, end)."""
    positions = [np.arange(a, b) for _, a, b in parts]
    ends = np.cumsum([0] + [b - a for _, a, b in parts])

    def ints(values: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int32))

    total = np.concatenate(positions)
    return Batch(
        ints([ends[-1], len(parts), 0]), ints(total), ints(total),
        ints(np.concatenate([s.slots(p) for (s, _, _), p in zip(parts, positions, strict=True)])),
        ints(np.repeat(np.arange(len(parts)), np.diff(ends))), ints(ends), ints([b for _, _, b in parts]),
        ints(np.stack([s.table for s, _, _ in parts])), ints(np.arange(len(parts))), ints([]),
    )  # fmt: skip


class Case:
    """Three sequences over one cache, and what they attend to."""

    def __init__(
        self, rng: np.random.Generator, shape: tuple[int, int, int], store: str, extras: tuple[str, ...]
    ) -> None:
        self.heads, kv_heads, dim = shape
        self.layout, self.scale = KVLayout((LayerKV(kv_heads, dim),), BLOCK, store), dim**-0.5
        angles = rng.uniform(0, 6.28, (1200, dim // 2))
        self.cos_sin = torch.from_numpy(np.concatenate([np.cos(angles), np.sin(angles)], 1).astype(np.float32))
        self.window = 300 if "window" in extras else None
        self.soft_cap = 2.0 if "cap" in extras else None
        self.sinks = random.normal(rng, self.heads, device=CPU) if "sinks" in extras else None
        self.alibi = random.normal(rng, self.heads, device=CPU) / 50 if "alibi" in extras else None
        sizes = enumerate((700, 37, 1100))
        self.sequences = [Sequence(rng, n, self.heads, kv_heads, dim, 1 + TABLE * i) for i, n in sizes]
        # What was never written may hold anything; only the padding of a head is known to be zero.
        self.dirt = 0.0 if dim % 16 else 1.0 if store == "int8" else float("nan")

    def run(self, ops: NativeOps, steps: list[list[tuple[Sequence, int, int]]], dirty: bool) -> list[torch.Tensor]:
        kv = NativeKV(self.layout, 1 + len(self.sequences) * TABLE)
        if dirty:
            for x in kv.stores():
                x.copy_(torch.full_like(x, self.dirt, dtype=torch.float32))
        outs: list[list[torch.Tensor]] = [[] for _ in self.sequences]
        for parts in steps:
            batch = batch_of(parts)
            qkv = torch.cat([s.qkv[a:b] for s, a, b in parts])
            q = ops.rotary_cache(qkv, batch, kv, 0, self.cos_sin, self.heads, None, None, 1e-5)
            out = ops.attention(q, batch, kv, 0, self.scale, self.window, self.soft_cap, self.sinks, self.alibi)
            for (s, _, _), part in zip(parts, out.split([b - a for _, a, b in parts]), strict=True):
                outs[self.sequences.index(s)].append(part)
        return [torch.cat(parts) for parts in outs if parts]

    def crowd(self, rng: np.random.Generator) -> list[list[tuple[Sequence, int, int]]]:
        """Decodes and chunks of any size, all sequences in every step."""
        steps, at = [], [0, 0, 0]
        while any(a < s.length for a, s in zip(at, self.sequences, strict=True)):
            ends = [
                min(s.length, a + int(rng.choice([1, 1, int(rng.integers(1, 200))])))
                for a, s in zip(at, self.sequences, strict=True)
            ]
            steps.append([(s, a, b) for s, a, b in zip(self.sequences, at, ends, strict=True) if b > a])
            at = ends
        return steps


STORES = ["float32", "bfloat16", "float16", "int8", "float8_e4m3"]
EXTRAS = [(), ("window", "sinks"), ("cap",), ("alibi",), ("window", "cap", "sinks", "alibi")]
FAMILIES = [(9, 3, 64), (4, 1, 40), (20, 1, 16)]


def drawn_shape(rng: np.random.Generator) -> tuple[int, int, int]:
    """Query heads, KV heads and a head's size, the fewer of them the larger it is."""
    dim = int(rng.choice([8, 16, 24, 40, 64, 80, 96, 128, 192, 256]))
    kv_heads = int(rng.integers(1, 4 if dim <= 96 else 2))
    return kv_heads * int(rng.integers(1, 9 if dim <= 64 else 4)), kv_heads, dim


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("extras", EXTRAS, ids="+".join)
def test_attention_in_any_batch_and_chunking(
    teams: dict[int, NativeOps], isa: str, store: str, extras: tuple[str, ...]
) -> None:
    rng = np.random.default_rng([native.ISAS.index(isa), STORES.index(store), EXTRAS.index(extras)])
    known = FAMILIES[EXTRAS.index(extras) % 3 : EXTRAS.index(extras) % 3 + 1] if isa == USABLE[0] else []
    for shape in [*known, drawn_shape(rng)]:
        case = Case(rng, shape, store, extras)
        alone = case.run(teams[1], [[(s, 0, s.length)] for s in case.sequences], dirty=False)
        steps = case.crowd(rng)
        for ops in teams.values():
            assert all(map(torch.equal, case.run(ops, steps, dirty=True), alone)), shape


@pytest.mark.parametrize("dot", [True, False], ids=["dot", "multiply-adds"])
@pytest.mark.parametrize("store", ["float32", "bfloat16", "int8", "float8_e4m3"])
def test_attention_of_few_tokens(isa: str, store: str, dot: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts and their sequence's last token, alone and beside a decode, which threads divide in other ways."""
    if dot:
        monkeypatch.setattr(native, "_WITHOUT_DOT", {})
    elif isa not in ("amx", "v4bf16"):
        pytest.skip("has one form")
    case = Case(np.random.default_rng(4), FAMILIES[0], store, ())
    first, _, second = case.sequences
    ends = [0, 249, 258, 260, 263, 267, 272, 278, 285, 293, 294, 500, 509, 511, 516, first.length]
    steps: list[list[tuple[Sequence, int, int]]] = [[(second, 0, 1000)]]
    for number, (a, b) in enumerate(itertools.pairwise(ends)):
        beside = [(second, 1000 + number // 2, 1001 + number // 2)] if number % 2 else []
        steps.append([(first, a, b), *beside])
    steps.append([(second, 1007, second.length)])
    teams = [Team(native.load(isa), n) for n in (1, 2, 3)]
    alone = case.run(NativeOps(EagerLauncher(teams[0])), [[(s, 0, s.length)] for s in (first, second)], dirty=False)
    for team in teams:
        assert all(map(torch.equal, case.run(NativeOps(EagerLauncher(team)), steps, dirty=True), alone))
        team.close()


class Family(Case):
    """Sequences that share their first blocks in different ways: the first shares none, some share more than others."""

    SHARED = ((0, 0), (530, 530), (1040, 1040), (1040, 1040), (300, 300), (1040, 0), (0, 0))
    """By sequence: tokens in common with the second one, and those of them that lie in the same blocks."""

    def __init__(
        self, rng: np.random.Generator, shape: tuple[int, int, int], store: str, extras: tuple[str, ...]
    ) -> None:
        super().__init__(rng, shape, store, extras)
        lengths = (600, 1100, 1050, 1048, 530, 1060, 20)
        self.sequences = [
            Sequence(rng, n, self.heads, shape[1], shape[2], 1 + TABLE * i) for i, n in enumerate(lengths)
        ]
        first = self.sequences[1]
        for sequence, (same, stored) in zip(self.sequences, self.SHARED, strict=True):
            sequence.qkv[:same] = first.qkv[:same]
            blocks = stored // BLOCK
            sequence.table[:blocks] = first.table[:blocks]

    def together(self, last: int) -> list[list[tuple[Sequence, int, int]]]:
        """Each alone but for its last tokens, which are decoded in one batch."""
        steps = [[(s, 0, s.length - last)] for s in self.sequences]
        return steps + [[(s, s.length - i, s.length - i + 1) for s in self.sequences] for i in range(last, 0, -1)]


@pytest.mark.parametrize("store", ["float32", "bfloat16", "int8"])
def test_attention_over_shared_blocks(teams: dict[int, NativeOps], isa: str, store: str) -> None:
    rng = np.random.default_rng(len(store))
    cases: list[tuple[tuple[int, int, int], tuple[str, ...]]] = [((2, 2, 32), ("cap", "alibi")), ((9, 3, 64), ())]
    for shape, extras in cases if isa == USABLE[0] else cases[:1]:
        case = Family(rng, shape, store, extras)
        alone = case.run(teams[1], [[(s, 0, s.length)] for s in case.sequences], dirty=False)
        for ops in teams.values():
            assert all(map(torch.equal, case.run(ops, case.together(3), dirty=True), alone))


def test_rows_of_norms_and_activations_stand_alone(teams: dict[int, NativeOps]) -> None:
    rng = np.random.default_rng(1)
    for width in (1, 15, 576, 1001):
        x, y = (random.normal(rng, 7, 2 * width, device=CPU) for _ in range(2))
        weight = random.normal(rng, 2 * width, device=CPU)
        one = teams[1]
        for mine in teams.values():
            for row in range(7):
                single = slice(row, row + 1)
                assert torch.equal(mine.rms_norm(x, weight, 1e-5)[single], one.rms_norm(x[single], weight, 1e-5))
                whole, part = (
                    mine.add_rms_norm(x, y, weight, 1e-5),
                    one.add_rms_norm(x[single], y[single], weight, 1e-5),
                )
                assert all(torch.equal(a[single], b) for a, b in zip(whole, part, strict=True))
                for kind in ("silu", "gelu", "gelu_tanh"):
                    assert torch.equal(mine.gated_activation(x, kind)[single], one.gated_activation(x[single], kind))


def test_samples_are_the_same_alone_and_in_a_crowd(teams: dict[int, NativeOps]) -> None:
    rng, rows, vocab = np.random.default_rng(2), 9, 3000
    logits, drawn = 2 * random.normal(rng, rows, vocab, device=CPU), _inputs(rng, rows, vocab, 64, CPU)
    per_row = [n for n in type(drawn).__slots__ if not n.startswith("bias") and n not in ("allowed", "history")]

    def batch(count: int) -> Batch:
        index = torch.arange(count, dtype=torch.int32)
        return Batch(torch.tensor([count] * 3, dtype=torch.int32), *[index] * 6, index.view(-1, 1), index, index)

    def history() -> torch.Tensor:
        return drawn.history.clone()

    fields = {n: getattr(drawn, n) for n in type(drawn).__slots__}
    found = {
        n: ops.sample(logits, type(drawn)(**{**fields, "history": history()}), batch(rows), 4)
        for n, ops in teams.items()
    }
    for row in range(rows):
        single = {n: fields[n][row : row + 1] for n in per_row}
        bias = torch.where(drawn.bias_row == row, 0, -1).to(torch.int32)
        inputs = type(drawn)(**{**fields, **single, "bias_row": bias, "history": history()})
        alone = teams[1].sample(logits[row : row + 1], inputs, batch(1), 4)
        for crowd in found.values():
            for name in type(alone).__slots__:
                assert torch.equal(getattr(crowd, name)[row : row + 1], getattr(alone, name)), name
