"""Draft heads: their drafts are those of a plain reading of the method's definition, and answers keep every bit."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from headrace.speculation.model_speculator import NEAR, ModelDrafts

TOKENS = 20


def save_target(directory: Path) -> Any:
    directory.mkdir(exist_ok=True)
    make_model(directory)
    return tiny_models.save("llama", directory, vocab_size=VOCAB, max_position_embeddings=512)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("target")
    return path, save_target(path)


class Rounds:
    """What a drafter was asked and what it answered."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[list[int], int, list[int]]] = []
        draft = HeadDrafter.draft

        def recorded(drafter: HeadDrafter, wanted: Sequence[tuple[str, int]]) -> ModelDrafts:
            made = draft(drafter, wanted)
            for (name, count), tokens in zip(wanted, made.tokens, strict=True):
                known = drafter._sequences[name]
                self.found.append((list(known.tokens), count, tokens))
            return made

        patch.setattr(HeadDrafter, "draft", recorded)

    def check(self, plain: Plain, at_least: int) -> None:
        """Every draft is what the definition gives. There are none while a long sequence is caught up with."""
        drafted = 0
        for tokens, count, drafts in self.found:
            if len(drafts) < count:
                assert not drafts
                assert len(tokens) > NEAR
                continue
            assert drafts == plain.draft(tokens, count), tokens
            drafted += count
        assert drafted > at_least


def greedy(count: int = 5) -> list[GenerateRequest]:
    """Some have a common start, and one is long."""
    shared = random_prompt(20, VOCAB)
    prompts = [[*shared, *random_prompt(1 + at, VOCAB)] for at in range(count - 1)] + [random_prompt(75, VOCAB)]
    return [request(prompt, f"g{at}", max_tokens=TOKENS) for at, prompt in enumerate(prompts)]


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
    target: tuple[Path, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    requests = greedy()
    sizes = {"A": {}, "A-ids": {"chunk": 16}, "B": {"blocks": 14, "chunk": 32}}.get(name, {})
    serve(target[0], requests, alone(target[0], requests), f"eagle3:{tmp_path / 'head'}", **sizes)
    rounds.check(plain, 60)
    balanced(built)


@pytest.mark.parametrize("flavour", MTP)
def test_mtp_drafts_as_it_is_defined(
    target: tuple[Path, Any], flavour: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(target[0], tmp_path / "target")
    tensors = add_mtp(tmp_path / "target", flavour)
    plain = plain_heads.mtp(target[1], tensors, MTP[flavour], flavour == "mimo", flavour != "qwen3-next")
    built, rounds = watch(monkeypatch), Rounds(monkeypatch)
    requests = greedy()
    serve(tmp_path / "target", requests, alone(target[0], requests), "mtp", chunk=24)
    rounds.check(plain, 60)
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
