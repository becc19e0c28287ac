"""A block drafter in an engine: its drafts are those of a plain reading, and answers are the same to the bit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from block_draft_checkpoints import CONFIGS, FEATURES, save, tensors
from block_draft_reading import Reading
from draft_engine import Built, watch
from engine_harness import Answer, alone, engine, idle, in_turn, request, together
from test_engine_bits import COUNT, VOCAB, WAYS, mixed, same
from tiny_models import load_reference
from tiny_models import prompt as random_prompt

from headrace.engine.block_model import BlockDraftModel
from headrace.kernels.sample.philox import gumbel
from headrace.kernels.sample.truncate import truncate
from headrace.speculation.block_choice import BlockRow

TOKENS = 24


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> list[Answer]:
    return alone(tiny_llama, mixed(COUNT, max_tokens=TOKENS))


def method(layout: str) -> str:
    return "dspark" if layout.startswith("dspark") else "dflash"


def block_model(built: Built) -> BlockDraftModel:
    found = built.engines[-1].blocks
    assert found is not None
    assert found.failures == 0
    return found


@pytest.mark.parametrize("layout", CONFIGS)
def test_every_layout_in_a_batch_cold_then_warm(
    layout: str, tiny_llama: Path, wanted: list[Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = watch(monkeypatch)
    drafter = save(layout, tmp_path / layout)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"{method(layout)}:{drafter}") as client:
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            await idle(client)
            block_model(built)

    asyncio.run(main())
    assert built.counts.drafted > 50


class Rounds:
    """Records what a drafter is asked and what it answers."""

    def __init__(self, model: BlockDraftModel, patch: pytest.MonkeyPatch) -> None:
        self.found: list[tuple[list[int], Any, list[int]]] = []
        draft = model.draft

        def recording(names: Any) -> Any:
            made = draft(names)
            for (name, _), tokens in zip(names, made.tokens, strict=True):
                known = model._sequences[name]
                self.found.append((list(known.tokens), model._row(name), tokens))
            return made

        patch.setattr(model, "draft", recording)


def hidden_states(model: Any, tokens: list[int]) -> list[torch.Tensor]:
    """The outputs of the layers that drafters read, before any norm, of a model of transformers."""
    found: dict[int, torch.Tensor] = {}

    def keep(at: int) -> Any:
        return lambda layer, given, out: found.update({at: (out[0] if isinstance(out, tuple) else out).reshape(-1, 32)})

    hooks = [model.model.layers[at].register_forward_hook(keep(at)) for at in FEATURES]
    with torch.no_grad():
        model(torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return [found[at] for at in FEATURES]


def picking(row: BlockRow) -> Any:
    """The choice of the reference of `sample` for one row of a round."""

    def pick(scores: torch.Tensor, at: int) -> int:
        for token, value in (row.biases or {}).items():
            scores[token] += value
        if row.temperature < 1e-5:
            return int(scores.argmax())
        scaled = (scores - scores.max()) / row.temperature
        seed = torch.tensor([row.seed - 2**64 if row.seed >= 2**63 else row.seed])
        noise = gumbel(seed, torch.tensor([row.position + at]), len(scores))[0]
        return int((truncate(scaled, row.top_k, row.min_p, row.top_p) + noise).argmax())

    return pick


@pytest.mark.parametrize("sizes", [{}, {"chunk": 11, "seqs": 3}, {"blocks": 20, "chunk": 24}], ids=str)
@pytest.mark.parametrize("layout", ["zlab-windows", "dflash2", "dspark-rnn", "speculators"])
def test_drafts_are_those_of_the_definition(
    layout: str, sizes: dict[str, Any], tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the hidden states that transformers computes, at every place of texts that were computed in chunks, found in
    the cache, or computed again after a preemption."""
    built = watch(monkeypatch)
    drafter, ways = save(layout, tmp_path / layout), [way for way in WAYS if "allowed_token_ids" not in way]
    requests = [
        request(random_prompt(60, VOCAB)[: 1 + at * 11 % 60], f"r{at}", max_tokens=12, **ways[at % len(ways)])
        for at in range(8)
    ]

    async def main() -> list[Any]:
        async with engine(tiny_llama, speculate=f"{method(layout)}:{drafter}", **sizes) as client:
            rounds = Rounds(block_model(built), monkeypatch)
            await together(client, requests)
            await in_turn(client, requests[:3])
            await idle(client)
            return rounds.found

    found = asyncio.run(main())
    model = load_reference(tiny_llama)
    embedding, head = model.get_input_embeddings().weight.detach(), model.lm_head.weight.detach()
    plain = Reading(CONFIGS[layout], tensors(layout), embedding, head, 128)
    assert len(found) > 30
    right = 0
    for tokens, row, drafts in found[::3]:
        *text, anchor = tokens
        expected, _ = plain.draft([part[: len(text)] for part in hidden_states(model, tokens)], anchor, picking(row))
        right += drafts == expected
    # Two scores may be as close as rounding.
    assert right >= len(found[::3]) - 1
