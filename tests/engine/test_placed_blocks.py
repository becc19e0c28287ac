"""Blocks of drafts inside overlapping steps: drawn by the device as defined, where the last right token is."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from block_draft_checkpoints import CONFIGS, save, tensors
from block_draft_reading import Reading
from draft_engine import Built, FailedPass, watch
from engine_harness import Answer, alone, engine, idle, in_turn, request, together
from safetensors.torch import load_file, save_file
from test_block_drafts_bits import hidden_states, method, picking
from test_draft_heads import Placed, Rounds
from test_engine_bits import COUNT, VOCAB, WAYS, crowded, mixed, same
from tiny_models import load_reference
from tiny_models import prompt as random_prompt

from headrace.client.api import GenerateRequest
from headrace.engine import unwaited_rounds
from headrace.engine.placed_blocks import PlacedBlocks
from headrace.errors import PlatformError
from headrace.platforms.cpu.native import missing
from headrace.speculation.block_choice import BlockRow

pytestmark = pytest.mark.skipif(missing() is not None, reason="the native kernels are not built")
TOKENS = 24


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> list[Answer]:
    return alone(tiny_llama, mixed(COUNT, max_tokens=TOKENS))


def placed_blocks(built: Built) -> PlacedBlocks:
    found = built.engines[-1].blocks
    assert isinstance(found, PlacedBlocks)
    assert found.failures == 0
    return found


class BlockRecord(Rounds):
    """The rounds of a drafter of blocks, each of which is waited for."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.found, self.ahead = [], 0
        self._placed: dict[str, list[Placed]] = {}
        timed, end = PlacedBlocks._timed, PlacedBlocks.end

        def timing(drafter: PlacedBlocks, groups: Sequence[Sequence[Any]]) -> Any:
            made = timed(drafter, groups)
            for (_, seq, most), own in zip([one for group in groups for one in group], made[0], strict=True):
                drafts = own[:most]
                if seq.placed:
                    placed = Placed(seq.known + seq.wrong, seq.known, seq.uncertain, drafts)
                    self._placed.setdefault(seq.request.id, []).append(placed)
                elif seq.request.id != "warm-up":
                    self.found.append((list(seq.tokens), len(drafts), drafts))
            return made

        def ending(drafter: PlacedBlocks, sequence: str, keep: bool) -> None:
            self._resolve(self._placed.pop(sequence, []), list(drafter._sequences[sequence].tokens))
            end(drafter, sequence, keep)

        patch.setattr(PlacedBlocks, "_timed", timing)
        patch.setattr(PlacedBlocks, "end", ending)
        patch.setattr(PlacedBlocks, "_measures", lambda *given: True)


def row_of(work: Sequence[GenerateRequest], tokens: list[int]) -> BlockRow:
    """The draws of the request that this text is of."""
    params = next(one.params for one in work if tokens[: len(one.prompt)] == list(one.prompt))
    return BlockRow(
        tokens[-1],
        len(tokens),
        params.seed or 0,
        params.temperature,
        params.top_k,
        params.top_p,
        params.min_p,
        dict(params.logit_bias),
    )


@pytest.mark.parametrize("sizes", [{}, {"chunk": 11, "seqs": 3}, {"blocks": 20, "chunk": 24}], ids=str)
@pytest.mark.parametrize(
    "layout", ["zlab-windows", "zlab-mask-vector", "speculators", "dspark", "dspark-speculators", "dspark-specforge"]
)
def test_drafts_are_those_of_the_definition(
    layout: str, sizes: dict[str, Any], tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the hidden states that transformers computes, whatever was in flight when a block was launched."""
    built, record = watch(monkeypatch), BlockRecord(monkeypatch)
    drafter, ways = save(layout, tmp_path / layout), [way for way in WAYS if "allowed_token_ids" not in way]
    # Each begins with a token of its own.
    work = [
        request([at, *random_prompt(60, VOCAB)[: at * 11 % 60]], f"r{at}", max_tokens=12, **ways[at % len(ways)])
        for at in range(8)
    ]

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"{method(layout)}:{drafter}", **sizes) as client:
            placed_blocks(built)
            await together(client, work)
            await in_turn(client, work[:3])
            await idle(client)

    asyncio.run(main())
    model = load_reference(tiny_llama)
    embedding, head = model.get_input_embeddings().weight.detach(), model.lm_head.weight.detach()
    plain = Reading(CONFIGS[layout], tensors(layout), embedding, head)
    assert record.ahead > 5
    assert len(record.found) > 30
    right, checked = 0, record.found[::3]
    for tokens, count, drafts in checked:
        *text, anchor = tokens
        states = [part[: len(text)] for part in hidden_states(model, tokens)]
        expected, _ = plain.draft(states, anchor, picking(row_of(work, tokens)))
        right += drafts == expected[:count]
    # Two scores may be as close as rounding.
    assert right >= len(checked) - 1


def save_oracle(target: Path, drafter: Path, model: Path, shift: int = 0) -> None:
    """A target that says the same at every place, which so depends on the draw alone, and a drafter that knows it, but
    for a shift of its tokens."""
    shutil.copytree(model, target)
    weights = load_file(model / "model.safetensors")
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] = torch.zeros_like(weights[name])
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:1].repeat(VOCAB, 1)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    own = {name: torch.zeros_like(one) for name, one in tensors("zlab").items() if name.endswith(("o_proj.weight",))}
    own |= {name: torch.zeros_like(one) for name, one in tensors("zlab").items() if name.endswith("down_proj.weight")}
    own["norm.weight"] = weights["model.norm.weight"]
    if shift:
        own["lm_head.weight"] = weights["lm_head.weight"].roll(shift, 0)
    save("zlab", drafter, **own)


@pytest.mark.parametrize(
    "params",
    [*[way for way in WAYS if "frequency_penalty" not in way], {"min_tokens": 9, "temperature": 1.0, "seed": 4}],
    ids=str,
)
def test_a_drafter_that_knows_the_target_is_always_right(
    params: dict[str, Any], tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn with the target's own random numbers, under its bias and its allowed tokens."""
    save_oracle(tmp_path / "target", tmp_path / "drafter", tiny_llama)
    work = [request(random_prompt(9 + at, VOCAB), f"o{at}", **{"max_tokens": TOKENS, **params}) for at in range(4)]
    expected = alone(tmp_path / "target", work)
    built = watch(monkeypatch)

    async def main() -> None:
        async with engine(tmp_path / "target", speculate=f"dflash:{tmp_path / 'drafter'}") as client:
            same(await together(client, work), expected)
            same(await in_turn(client, work[:2]), expected[:2])
            await idle(client)
            placed_blocks(built)

    asyncio.run(main())
    assert built.counts.drafted == built.counts.accepted > 40


def test_a_drafter_that_is_always_wrong_changes_nothing(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the token after the one that comes."""
    save_oracle(tmp_path / "target", tmp_path / "drafter", tiny_llama, 1)
    work = [request(random_prompt(9 + at, VOCAB), f"o{at}", max_tokens=TOKENS) for at in range(4)]
    expected = alone(tmp_path / "target", work)
    built = watch(monkeypatch)

    async def main() -> None:
        async with engine(tmp_path / "target", speculate=f"dflash:{tmp_path / 'drafter'}") as client:
            same(await together(client, work), expected)
            await idle(client)
            placed_blocks(built)

    asyncio.run(main())
    assert built.counts.drafted > 40
    assert built.counts.accepted == 0


def test_no_round_is_waited_for_where_the_device_tells_its_time(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_oracle(tmp_path / "target", tmp_path / "drafter", tiny_llama)
    built, waited, timed = watch(monkeypatch), [0], PlacedBlocks._timed

    def timing(drafter: PlacedBlocks, groups: Sequence[Sequence[Any]]) -> Any:
        waited[0] += bool(built.engines)
        return timed(drafter, groups)

    monkeypatch.setattr(PlacedBlocks, "_timed", timing)
    monkeypatch.setattr(unwaited_rounds, "_MEASURED", 2)

    async def main() -> None:
        async with engine(tmp_path / "target", speculate=f"dflash:{tmp_path / 'drafter'}") as client:
            await together(client, [request(random_prompt(9, VOCAB), "o", max_tokens=3 * TOKENS)])
            await idle(client)
            assert placed_blocks(built).unwaited > 0

    asyncio.run(main())
    assert waited == [0]


@pytest.mark.parametrize("layout", ["zlab-mask-vector", "dspark"])
def test_masks_whose_rows_give_no_token_do_no_harm(
    layout: str, tiny_llama: Path, wanted: list[Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mask with a vector of its own is no token, and nothing is drawn in its place if all logits are infinite. Where
    a token depends on the one before it, there is none then."""
    built = watch(monkeypatch)
    own = {"lm_head.weight": torch.full((VOCAB, 32), 3e38), "mask_embedding": torch.ones(32)}
    drafter = save(layout, tmp_path / "drafter", {"mask_token_id": None}, **own)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"{method(layout)}:{drafter}") as client:
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            await idle(client)
            placed_blocks(built)

    asyncio.run(main())
    assert built.counts.drafted > 50


@pytest.mark.parametrize("layout", ["speculators", "dspark-speculators"])
def test_preempted(layout: str, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = watch(monkeypatch)
    drafter = save(layout, tmp_path / layout)
    work = crowded()
    expected = alone(tiny_llama, work[::5])

    async def main() -> None:
        async with engine(tiny_llama, blocks=41, chunk=16, speculate=f"{method(layout)}:{drafter}") as client:
            same((await together(client, work))[::5], expected)
            assert (await idle(client)).scheduler.preemptions > 0
            placed_blocks(built)

    asyncio.run(main())
    assert built.counts.drafted > 50


@pytest.mark.parametrize("layout", ["zlab", "dspark"])
@pytest.mark.parametrize("launch", [True, False])
def test_a_pass_that_nothing_waits_for_may_fail(
    launch: bool,
    layout: str,
    tiny_llama: Path,
    wanted: list[Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At its launch, or later: then its error is found with a later round. Answers stay the same."""
    built, calls, launched = watch(monkeypatch), [0], PlacedBlocks._launch
    drafter = save(layout, tmp_path / layout)

    def failing(model: PlacedBlocks, *given: Any) -> Any:
        calls[0] += bool(built.engines)
        if launch and calls[0] > 5:
            raise PlatformError("a kernel failed")
        found = launched(model, *given)
        return found._replace(drawn=FailedPass()) if calls[0] > 5 else found

    monkeypatch.setattr(PlacedBlocks, "_launch", failing)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"{method(layout)}:{drafter}") as client:
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            await idle(client)

    asyncio.run(main())
    assert built.engines[-1].blocks is not None
    assert built.engines[-1].blocks.failures == 1
    assert caplog.text.count("failed, and drafts no more: a kernel failed") == 1
