"""Draft heads: their drafts are those of a plain reading of the method's definition, and answers keep every bit."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import plain_heads
import pytest
import tiny_models
from draft_engine import Built, watch
from engine_harness import Answer, alone, engine, idle, in_turn, request, together
from plain_heads import MTP, Plain, add_mtp, save_eagle3
from safetensors.torch import save_file
from server_harness import make_model
from test_engine_bits import VOCAB, same
from tiny_models import prompt as random_prompt

from headrace.client.api import GenerateRequest
from headrace.engine.head_drafter import HeadDrafter
from headrace.engine.head_plans import Drafted
from headrace.platforms.cpu.native import missing

TOKENS = 28


def save_target(directory: Path) -> Any:
    directory.mkdir(exist_ok=True)
    make_model(directory)
    return tiny_models.save("llama", directory, vocab_size=VOCAB, max_position_embeddings=512)


def save_target_with_heads(directory: Path, mtp: str) -> Path:
    """A target with a random head of its own, in the layout `mtp`, and beside it an EAGLE-3 head."""
    save_target(directory)
    add_mtp(directory, mtp)
    save_eagle3(directory / "head", "A")
    return directory


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("target")
    return path, save_target(path)


@pytest.fixture(scope="module")
def greedily(target: tuple[Path, Any]) -> list[Answer]:
    """The target's answers to `greedy()` without drafts."""
    return alone(target[0], greedy())


class Placed(NamedTuple):
    """A round of a sequence that the device places."""

    reach: int
    known: int
    uncertain: int
    drafts: list[int]


class Rounds:
    """The rounds of a drafter: known tokens, the number of drafts asked for, and the drafts. How many tokens a placed
    sequence had is found at its end, from those that it got."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[list[int], int, list[int]]] = []
        self.ahead = 0
        """Rounds that were launched while the number of tokens was not known."""
        self._placed: dict[str, list[Placed]] = {}
        drafts, read, end = HeadDrafter._drafts, HeadDrafter._read, HeadDrafter.end
        latest: list[list[int]] = []

        def reading(drafter: HeadDrafter, *args: Any) -> list[list[int]]:
            latest[:] = read(drafter, *args)
            return list(latest)

        def drafting(drafter: HeadDrafter, rows: Sequence[tuple[Drafted, int]], start: float) -> Any:
            waiting, latest[:] = len(drafter._unread), []
            made = drafts(drafter, rows, start)
            if len(drafter._unread) > waiting:
                results = [one.result().tolist() for one in drafter._unread[-1].results]
                latest[:] = [[own[at] for own in results[:count]] for at, (_, count) in enumerate(rows)]
            for (seq, count), own in zip(rows, latest, strict=True):
                assert len(own) == count
                if seq.placed:
                    placed = Placed(seq.known + seq.wrong, seq.known, seq.uncertain, own)
                    self._placed.setdefault(seq.request.id, []).append(placed)
                elif not seq.request.id.startswith("warm-up"):
                    self.found.append((list(seq.tokens), count, own))
            return made

        def ending(drafter: HeadDrafter, sequence: str, keep: bool) -> None:
            self._resolve(self._placed.pop(sequence, []), list(drafter._sequences[sequence].tokens))
            end(drafter, sequence, keep)

        patch.setattr(HeadDrafter, "_drafts", drafting)
        patch.setattr(HeadDrafter, "_read", reading)
        patch.setattr(HeadDrafter, "end", ending)

    def _resolve(self, rounds: Sequence[Placed], tokens: list[int]) -> None:
        known, before = 0, None
        for one in rounds:
            if not one.uncertain:
                known = one.known
            elif before is not None:
                right = next((at for at, d in enumerate(before.drafts) if tokens[known + at :][:1] != [d]), None)
                # Steps in between had no drafts, and each of them has added a token.
                known += len(before.drafts) if right is None else right
                known += one.reach - before.reach - len(before.drafts)
            assert one.known - one.uncertain <= known <= one.known
            before, self.ahead = one, self.ahead + (one.uncertain > 0)
            if known <= len(tokens):
                self.found.append((tokens[:known], len(one.drafts), one.drafts))

    def check(self, plain: Plain, at_least: int) -> None:
        """Every draft is what the definition gives. Many rounds are after the same tokens."""
        drafted, most = 0, Counter[tuple[int, ...]]()
        for tokens, count, _ in self.found:
            most[tuple(tokens)] = max(most[tuple(tokens)], count)
        wanted = {tokens: plain.draft(tokens, count) for tokens, count in most.items()}
        for tokens, count, drafts in self.found:
            assert drafts == wanted[tuple(tokens)][:count], tokens
            drafted += count
        assert drafted > at_least


def greedy(count: int = 5) -> list[GenerateRequest]:
    """Some have a common start, and one is long."""
    shared = random_prompt(20, VOCAB)
    prompts = [[*shared, *random_prompt(1 + at, VOCAB)] for at in range(count - 1)] + [random_prompt(75, VOCAB)]
    return [request(prompt, f"g{at}", max_tokens=36) for at, prompt in enumerate(prompts)]


def serve(model: Path, requests: list[GenerateRequest], expected: list[Answer], speculate: str, **sizes: Any) -> None:
    async def main() -> None:
        async with engine(model, speculate=speculate, **sizes) as client:
            same(await together(client, requests), expected)
            same(await in_turn(client, requests[:3]), expected[:3])
            await idle(client)

    asyncio.run(main())


def balanced(built: Built) -> None:
    """No sequence is known any more, and every block of the head's cache is free."""
    head = built.engines[-1].head
    assert head is not None
    assert head.failures == 0
    assert not head._sequences
    assert head.free_blocks == built.engines[-1].info.num_blocks - 1


EAGLE3: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "A": ("A", (2, 1, 0), {}),
    "A-ids": ("A", (0, 1, 2), {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}),
    "A-normed": ("A", (2, 1, 0), {"fc_norm": True, "norm_output": True}),
    "B": ("B", (2, 1, 0), {"eagle_aux_hidden_state_layer_ids": None}),
    "B-residual": ("B", (2, 1), {"eagle_aux_hidden_state_layer_ids": [2, 1], "norm_before_residual": False}),
    "C": ("C", (1, 2), {"target_layer_ids": [0, 1]}),
}


@pytest.mark.parametrize("name", EAGLE3)
def test_eagle3_drafts_as_it_is_defined(
    target: tuple[Path, Any], greedily: list[Answer], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flavour, points, settings = EAGLE3[name]
    tensors = save_eagle3(tmp_path / "head", flavour, **settings)
    plain = plain_heads.eagle3(
        target[1],
        tensors,
        points,
        fc_norm=settings.get("fc_norm", False),
        norm_output=settings.get("norm_output", False),
        norm_before_residual=settings.get("norm_before_residual", flavour == "B"),
    )
    built, rounds = watch(monkeypatch), Rounds(monkeypatch)
    sizes = {"A": {}, "A-ids": {"chunk": 16}, "B": {"blocks": 14, "chunk": 32}}.get(name, {})
    serve(target[0], greedy(), greedily, f"eagle3:{tmp_path / 'head'}", **sizes)
    rounds.check(plain, 60)
    assert rounds.ahead > 10 or missing() is not None
    balanced(built)


@pytest.mark.parametrize("flavour", MTP)
def test_mtp_drafts_as_it_is_defined(
    target: tuple[Path, Any], greedily: list[Answer], flavour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(target[0], tmp_path / "target")
    tensors = add_mtp(tmp_path / "target", flavour)
    plain = plain_heads.mtp(target[1], tensors, MTP[flavour], flavour == "mimo", flavour != "qwen3-next")
    built, rounds = watch(monkeypatch), Rounds(monkeypatch)
    serve(tmp_path / "target", greedy(), greedily, "mtp", chunk=24)
    rounds.check(plain, 60)
    assert rounds.ahead > 10 or missing() is not None
    balanced(built)


def test_a_mtp_head_may_have_a_checkpoint_of_its_own(
    target: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `headrace train-drafter` writes it: the tensors of the layer after the last, without tables."""
    shutil.copytree(target[0], tmp_path / "head")
    tensors = add_mtp(tmp_path / "head", "deepseek")
    save_file(tensors, tmp_path / "head" / "model.safetensors")
    plain = plain_heads.mtp(target[1], tensors, MTP["deepseek"], hidden_first=False, zero=True)
    built, rounds = watch(monkeypatch), Rounds(monkeypatch)
    requests = greedy(3)
    serve(target[0], requests, alone(target[0], requests), f"mtp:{tmp_path / 'head'}")
    rounds.check(plain, 30)
    balanced(built)
