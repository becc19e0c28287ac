"""A block drafter in an engine: its drafts are those of a plain reading, and answers are the same to the bit."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from block_draft_checkpoints import CONFIGS, FEATURES, save, save_chain, tensors
from block_draft_reading import Reading
from draft_engine import Built, watch
from engine_harness import Answer, alone, config_of, engine, idle, in_turn, request, together
from test_engine_bits import COUNT, VOCAB, WAYS, crowded, leave_half, mixed, same
from tiny_models import load_reference
from tiny_models import prompt as random_prompt

from headrace.client.in_process_client import InProcessClient
from headrace.config import ParallelConfig
from headrace.engine import draft_depth
from headrace.engine.block_model import BlockDraftModel
from headrace.engine.block_rounds import BlockRounds
from headrace.engine.drafting import Drafting
from headrace.errors import DeviceLost, PlatformError
from headrace.kernels.sample.philox import gumbel
from headrace.kernels.sample.truncate import truncate
from headrace.llm import LLM
from headrace.platforms.cpu.native import missing
from headrace.speculation.block_choice import BlockRow
from headrace.structured_outputs import StructuredOutputs
from headrace.tokenization.tokenizer import load_tokenizer
from headrace.types import SamplingParams, StepPlan

TOKENS = 24


@pytest.fixture(scope="module")
def target_model(tiny_llama: Path) -> Any:
    """In transformers."""
    return load_reference(tiny_llama)


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> list[Answer]:
    return alone(tiny_llama, mixed(COUNT, max_tokens=TOKENS))


def method(layout: str) -> str:
    return "dspark" if layout.startswith("dspark") else "dflash"


def block_model(built: Built) -> BlockRounds:
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
@pytest.mark.parametrize("layout", ["zlab-windows", "dflash2", "dspark", "dspark-rnn", "speculators"])
def test_drafts_are_those_of_the_definition(
    layout: str,
    sizes: dict[str, Any],
    tiny_llama: Path,
    target_model: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the hidden states that transformers computes, at every place of texts that were computed in chunks, found in
    the cache, or computed again after a preemption."""
    monkeypatch.setattr(draft_depth, "draft_depth", lambda *given: draft_depth.DraftDepth(0))
    built = watch(monkeypatch)
    drafter, ways = save(layout, tmp_path / layout), [way for way in WAYS if "allowed_token_ids" not in way]
    requests = [
        request(random_prompt(60, VOCAB)[: 1 + at * 11 % 60], f"r{at}", max_tokens=12, **ways[at % len(ways)])
        for at in range(8)
    ]

    async def main() -> list[Any]:
        async with engine(tiny_llama, speculate=f"{method(layout)}:{drafter}", **sizes) as client:
            model = block_model(built)
            assert isinstance(model, BlockDraftModel)
            rounds = Rounds(model, monkeypatch)
            await together(client, requests)
            await in_turn(client, requests[:3])
            await idle(client)
            return rounds.found

    found = asyncio.run(main())
    embedding, head = (x.weight.detach() for x in (target_model.get_input_embeddings(), target_model.lm_head))
    plain = Reading(CONFIGS[layout], tensors(layout), embedding, head, 128)
    assert len(found) > 30
    right = 0
    for tokens, row, drafts in found[::3]:
        *text, anchor = tokens
        states = [part[: len(text)] for part in hidden_states(target_model, tokens)]
        expected, _ = plain.draft(states, anchor, picking(row))
        right += drafts == expected
    # Two scores may be as close as rounding.
    assert right >= len(found[::3]) - 1


@pytest.mark.parametrize("layout", ["dspark", "dflash2", "speculators"])
@pytest.mark.parametrize(
    "sizes",
    [{"chunk": 16}, {"chunk": 11, "seqs": 3}, {"blocks": 20, "chunk": 24}, {"caching": False}, {"seqs": 1}],
    ids=str,
)
def test_any_schedule(
    layout: str,
    sizes: dict[str, Any],
    tiny_llama: Path,
    wanted: list[Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = watch(monkeypatch)
    drafter = save(layout, tmp_path / layout)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"{method(layout)}:{drafter}", **sizes) as client:
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            same(await in_turn(client, mixed(COUNT, max_tokens=TOKENS)[::-2]), wanted[::-2])
            await idle(client)
            block_model(built)

    asyncio.run(main())
    assert built.counts.drafted > 10


def test_preempted(tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = watch(monkeypatch)
    drafter = save("dspark-gated", tmp_path / "dspark-gated")
    requests = crowded()
    expected = alone(tiny_llama, requests[::5])

    async def main() -> None:
        async with engine(tiny_llama, blocks=41, chunk=16, speculate=f"dspark:{drafter}") as client:
            same((await together(client, requests))[::5], expected)
            assert (await idle(client)).scheduler.preemptions > 0
            block_model(built)

    asyncio.run(main())
    assert built.counts.drafted > 100


def test_requests_that_are_left_free_every_block(
    tiny_llama: Path, wanted: list[Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = watch(monkeypatch)
    drafter, rng = save("zlab", tmp_path / "zlab"), random.Random(3)

    async def main() -> None:
        async with engine(tiny_llama, blocks=40, chunk=32, speculate=f"dflash:{drafter}") as client:
            for _ in range(6):
                await leave_half(client, mixed(COUNT, max_tokens=TOKENS), rng, wanted)
            assert (await idle(client)).scheduler.blocks_held == 0
            assert not block_model(built)._sequences

    asyncio.run(main())
    assert built.counts.rounds > 0


def test_the_end_of_the_context(tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last blocks reach beyond the text, and beyond the blocks of its cache."""
    built = watch(monkeypatch)
    drafter = save("zlab", tmp_path / "zlab")
    requests = [request(random_prompt(50, VOCAB), f"e{at}", max_tokens=None, seed=at, temperature=1.0) for at in (1, 2)]

    async def main() -> list[Answer]:
        async with engine(tiny_llama, context=64, speculate=f"dflash:{drafter}") as client:
            found = await together(client, requests)
            await idle(client)
            block_model(built)
            return found

    async def plain() -> list[Answer]:
        async with engine(tiny_llama, context=64, caching=False, seqs=1) as client:
            return await in_turn(client, requests)

    expected = asyncio.run(plain())
    same(asyncio.run(main()), expected)
    assert built.counts.drafted > 5


@pytest.mark.parametrize("lost", [False, True])
def test_a_round_that_fails_ends_drafting_alone(
    lost: bool,
    tiny_llama: Path,
    wanted: list[Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    built = watch(monkeypatch)
    drafter = save("dflash2", tmp_path / "dflash2")

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"dflash:{drafter}") as client:
            model, calls = block_model(built), [0]
            assert isinstance(model, BlockDraftModel)
            guess, error = model._guess, DeviceLost("it is gone") if lost else PlatformError("a kernel failed")

            def failing(*given: Any) -> Any:
                calls[0] += 1
                if calls[0] > 5:
                    raise error
                return guess(*given)

            monkeypatch.setattr(model, "_guess", failing)
            same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            await idle(client)

    if lost:
        with pytest.raises(Exception, match="it is gone"):
            asyncio.run(main())
        return
    asyncio.run(main())
    assert built.engines[-1].blocks is not None
    assert built.engines[-1].blocks.failures == 1
    assert caplog.text.count("failed, and drafts no more: a kernel failed") == 1


@pytest.mark.parametrize("layout", ["dspark", "zlab"])
def test_the_policy_lets_a_useless_drafter_rest(
    layout: str, tiny_llama: Path, wanted: list[Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random weights guess at most a quarter of the tokens right, at places that cost half a step each, so drafts are
    tried rarely. What is measured depends on the numbers of tokens alone, not on the machine's load."""
    built, settle = watch(monkeypatch, eager=False), Drafting.settle

    def measured(drafting: Drafting, plan: StepPlan, emitted: int, seconds: float) -> None:
        settle(drafting, plan, emitted, 0.005 * (1 + plan.num_tokens))

    def timed(drafting: Drafting, found: Any) -> tuple[Any, float]:
        return found.drafts._replace(seconds=0.005 if found.drafts.choice.total else 0.0), 0.0

    monkeypatch.setattr(Drafting, "settle", measured)
    monkeypatch.setattr(Drafting, "_timed", timed)
    drafter = save(layout, tmp_path / layout)

    async def main() -> None:
        async with engine(tiny_llama, speculate=f"{method(layout)}:{drafter}") as client:
            for _ in range(2):
                same(await together(client, mixed(COUNT, max_tokens=TOKENS)), wanted)
            await idle(client)
            block_model(built)

    asyncio.run(main())
    assert built.counts.rounds < COUNT * TOKENS // 4


@pytest.mark.parametrize("layout", ["dspark", "zlab"])
def test_grammars(layout: str, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts end before the first token that a grammar does not allow."""
    built, texts = watch(monkeypatch), []
    drafter = save(layout, tmp_path / layout)
    # Random drafts are allowed now and then.
    forms = [StructuredOutputs(regex="[ -~]{30,60}"), StructuredOutputs(choice=["yes, it is", "no, never"])]
    for speculate in (None, f"{method(layout)}:{drafter}"):
        llm = LLM(str(tiny_llama), platform="cpu", threads=1, num_blocks=100, packed_cache=0, speculate=speculate)
        with llm:
            params = [
                SamplingParams(max_tokens=24, temperature=heat, seed=at, structured_outputs=form)
                for form in forms
                for at, heat in enumerate((0.0, 1.0, 1.4))
            ]
            found = [llm.generate("Hello", one)[0].outputs[0] for one in params]
            texts.append([(one.text, one.token_ids, one.finish_reason) for one in found])
    assert texts[0] == texts[1]
    assert built.counts.drafted > 5


@pytest.mark.skipif(missing() is not None, reason="the native kernels are not built")
def test_two_ranks(tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 alone has the drafter, with whole matrices of its own."""
    requests, drafter = mixed(6, max_tokens=12), save("zlab", tmp_path / "zlab")

    async def run(speculate: str | None) -> list[Answer]:
        config = config_of(tiny_llama, chunk=16, speculate=speculate)
        ranks = {"parallel": ParallelConfig(tensor_parallel_size=2)}
        client = InProcessClient(config.model_copy(update=ranks), load_tokenizer(tiny_llama))
        await client.start()
        try:
            return await in_turn(client, requests)
        finally:
            await client.close()

    expected = asyncio.run(run(None))
    built = watch(monkeypatch)
    same(asyncio.run(run(f"dflash:{drafter}")), expected)
    block_model(built)
    assert built.counts.drafted > 10


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.8}, {"temperature": 1.6, "top_k": 9}], ids=str
)
def test_a_drafter_that_knows_its_target_is_always_right(
    params: dict[str, Any], tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, drafter = save_chain(tmp_path, tiny_llama)
    ids = tuple(range(4, 120))
    requests = [
        request(random_prompt(5 + at, VOCAB), f"o{at}", max_tokens=40, seed=at, allowed_token_ids=ids, **params)
        for at in range(4)
    ]
    expected = alone(target, requests)
    built = watch(monkeypatch)

    async def main() -> None:
        async with engine(target, speculate=f"dspark:{drafter}") as client:
            same(await together(client, requests), expected)
            await idle(client)
            block_model(built)

    asyncio.run(main())
    counts = built.counts
    assert counts.drafted > 40
    assert counts.accepted == counts.drafted
