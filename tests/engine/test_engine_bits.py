"""The same bits however it is computed: cold, warm, in chunks, in company, preempted, read slowly."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_harness import BLOCK, Answer, alone, answer, choices, engine, idle, in_turn, request, together
from tiny_models import prompt as random_prompt
from transformers import AutoModelForCausalLM

from headrace.client.api import GenerateRequest
from headrace.client.in_process_client import InProcessClient

VOCAB = 260
COUNT = 14
WAYS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 11},
    {"temperature": 1.5, "seed": 12, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.7},
    {"temperature": 1.0, "seed": 2**64 - 1, "repetition_penalty": 1.2, "frequency_penalty": -0.5},
    {"logit_bias": ((65, 5.0), (66, -100.0)), "prompt_logprobs": 2},
    {"allowed_token_ids": tuple(range(60, 90)), "temperature": 1.0, "seed": 5},
    {"logprob_token_ids": (7, 250, 65), "temperature": 0.9, "seed": 3, "prompt_logprobs": 0},
]


def mixed(count: int, longest: int = 90, **params: Any) -> list[GenerateRequest]:
    """Prompts of many lengths, some of them with a common start, under all kinds of sampling."""
    shared = random_prompt(40, VOCAB)
    found = []
    for at in range(count):
        own = random_prompt(1 + at * 37 % longest, VOCAB)
        prompt = [*shared[: at * 7 % 41], *own] if at % 3 == 0 else own
        found.append(request(prompt, f"r{at}", **{**WAYS[at % len(WAYS)], **params}))
    return found


def crowded() -> list[GenerateRequest]:
    """More and longer sequences than 41 blocks hold."""
    return [
        request(random_prompt(64 + at, VOCAB)[:64], f"p{at}", max_tokens=64, **WAYS[at % len(WAYS)]) for at in range(16)
    ]


def same(found: list[Answer], wanted: list[Answer]) -> None:
    for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
        assert one.bits == other.bits, at


async def leave_half(
    client: InProcessClient, requests: list[GenerateRequest], rng: random.Random, wanted: list[Answer] | None = None
) -> None:
    """Send requests at once and leave half of them at random moments; the others get the answers `wanted`."""
    tasks = [asyncio.create_task(together(client, [one])) for one in requests]
    for task in rng.sample(tasks, len(tasks) // 2):
        for _ in range(rng.randrange(30)):
            await asyncio.sleep(0)
        task.cancel()
    await asyncio.wait(tasks)
    for task, expected in zip(tasks, wanted or [None] * len(tasks), strict=True):
        if expected is not None and not task.cancelled():
            same(task.result(), [expected])


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> list[Answer]:
    return alone(tiny_llama, mixed(COUNT))


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"chunk": 16},
        {"chunk": 7, "seqs": 5},
        {"seqs": 3},
        {"blocks": 24},
        {"blocks": 20, "chunk": 16},
        {"caching": False},
    ],
    ids=str,
)
def test_in_a_batch_cold_then_warm(tiny_llama: Path, wanted: list[Answer], sizes: dict[str, Any]) -> None:
    async def main() -> None:
        async with engine(tiny_llama, **sizes) as client:
            same(await together(client, mixed(COUNT)), wanted)
            same(await together(client, mixed(COUNT)), wanted)
            stats = await idle(client)
            assert stats.scheduler.cached_tokens > 0 or not sizes.get("caching", True)

    asyncio.run(main())


def test_one_after_the_other_warm(tiny_llama: Path, wanted: list[Answer]) -> None:
    async def main() -> None:
        async with engine(tiny_llama) as client:
            same(await in_turn(client, mixed(COUNT)), wanted)
            same(await in_turn(client, mixed(COUNT)[::-1]), wanted[::-1])

    asyncio.run(main())


def test_greedy_tokens_are_those_of_transformers(tiny_llama: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama).eval()
    model.generation_config.eos_token_id = None
    requests = [request(random_prompt(length, VOCAB), max_tokens=20) for length in (1, 5, 16, 33, 100)]
    for one, found in zip(requests, alone(tiny_llama, requests), strict=True):
        ids = torch.tensor([list(one.prompt)])
        whole = model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)
        assert found.ids == whole[0, len(one.prompt) :].tolist()


def test_preempted(tiny_llama: Path) -> None:
    """A pool of 40 blocks, chunks of 16, 16 requests of 64 + 64 tokens."""
    requests = crowded()
    expected = alone(tiny_llama, requests[::3])

    async def main() -> None:
        async with engine(tiny_llama, blocks=41, chunk=16) as client:
            found = await together(client, requests)
            assert (await idle(client)).scheduler.preemptions > 0
            same(found[::3], expected)
            for one in found:
                assert len(one.ids) == len(one.logprobs) == one.usage.completion_tokens == 64
                assert one.usage.prompt_tokens == 64

    asyncio.run(main())


def test_any_batch_any_time(tiny_llama: Path) -> None:
    residents = [request(random_prompt(3 + at % 11, VOCAB), f"s{at}", max_tokens=30) for at in range(63)]
    probe = request(random_prompt(50, VOCAB), "probe", max_tokens=8)
    (expected,) = alone(tiny_llama, [probe])

    async def main() -> None:
        async with engine(tiny_llama) as client:
            tasks = [asyncio.create_task(answer(client, one)) for one in residents]
            for _ in range(5):
                assert (await answer(client, probe)).bits == expected.bits
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await idle(client)

    asyncio.run(main())


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_block_aligned_prompts_twice(tiny_llama: Path, blocks: int) -> None:
    async def main() -> None:
        async with engine(tiny_llama) as client:
            for length in (blocks * BLOCK - 1, blocks * BLOCK, blocks * BLOCK + 1):
                one = request([length, *random_prompt(length - 1, VOCAB)])
                cold, warm = await in_turn(client, [one, one])
                assert cold.bits == warm.bits
                assert cold.usage.cached_tokens == 0
                assert length - 2 <= warm.usage.cached_tokens <= length - 1

    asyncio.run(main())


@pytest.mark.parametrize("chunk", [512, 16])
def test_prompt_logprobs_do_not_depend_on_the_cache(tiny_llama: Path, chunk: int) -> None:
    """A cached prefix serves as far as its logprobs are known, and these are the bits of the cold cache."""
    prompt = random_prompt(64, VOCAB)
    scored = request(prompt, echo=True, prompt_logprobs=3)
    half = request(prompt[:32] + random_prompt(32, VOCAB), echo=True, prompt_logprobs=3)
    fewer, more = (request(prompt, echo=True, prompt_logprobs=count) for count in (1, 5))
    wanted = dict(zip("shfm", alone(tiny_llama, [scored, half, fewer, more]), strict=True))
    expected = wanted["s"]

    async def main() -> None:
        async with engine(tiny_llama, chunk=chunk) as client:
            await answer(client, request(prompt))
            asked = (("s", 0), ("h", 31), ("s", 63), ("f", 63), ("m", 0), ("s", 63), ("m", 63), ("h", 63))
            for name, cached in asked:
                one = {"s": scored, "h": half, "f": fewer, "m": more}[name]
                found = await answer(client, one)
                assert found.bits == wanted[name].bits
                assert found.usage.cached_tokens == cached

    asyncio.run(main())
    assert len(expected.logprobs) == len(expected.ids) == 64 + 8
    assert expected.ids[:64] == prompt
    assert [entry.logprob is None for entry in expected.logprobs] == [True] + [False] * 71


@pytest.mark.parametrize("chunk", [512, 64])
def test_texts_with_several_endings_are_scored_once_for_all(tiny_llama: Path, chunk: int) -> None:
    """As harnesses ask: the text with each of its choices, all at once, with the logprobs of all tokens."""
    text = random_prompt(170, VOCAB)
    asked = [
        request([*text, *random_prompt(3 + at, VOCAB)[:3]], f"c{at}", echo=True, max_tokens=0, prompt_logprobs=at % 2)
        for at in range(4)
    ]
    asked[0] = replace(asked[0], params=replace(asked[0].params, prompt_logprobs=1))
    wanted = alone(tiny_llama, asked)

    async def main() -> None:
        async with engine(tiny_llama, chunk=chunk) as client:
            found = await together(client, asked)
            same(found, wanted)
            assert sum(173 - one.usage.cached_tokens for one in found) < 173 + 3 * 64
            again = await together(client, asked)
            same(again, wanted)
            assert {one.usage.cached_tokens for one in again} == {172}

    asyncio.run(main())


@pytest.mark.parametrize("start", [1, 17, 48, 63])
def test_logprobs_from_a_start_are_those_of_the_whole_prompt(tiny_llama: Path, start: int) -> None:
    prompt = random_prompt(64, VOCAB)
    params: dict[str, Any] = {"max_tokens": 0, "prompt_logprobs": 3}
    (whole,) = alone(tiny_llama, [request(prompt, **params)])
    part = request(prompt, prompt_logprobs_start=start, **params)

    async def main() -> None:
        async with engine(tiny_llama) as client:
            cold = await answer(client, part)
            await answer(client, request(prompt))
            crowd = [replace(one, id=f"r{at}") for at, one in enumerate((part, request(prompt[:40]), part))]
            warm = await asyncio.gather(*(answer(client, one) for one in crowd))
            assert warm[0].usage.cached_tokens == 63, "it was scored by the first one"
            for one in (cold, warm[0], warm[2]):
                assert (one.prompt_logprobs or [])[start:] == (whole.prompt_logprobs or [])[start:]
                assert [entry.token_id for entry in one.prompt_logprobs or []] == prompt
                assert all(entry.logprob is None for entry in (one.prompt_logprobs or [])[:start])

    asyncio.run(main())


def test_prompt_logprobs_are_the_models(tiny_llama: Path) -> None:
    prompt = random_prompt(30, VOCAB)
    (found,) = alone(tiny_llama, [request(prompt, max_tokens=0, prompt_logprobs=2)])
    model = AutoModelForCausalLM.from_pretrained(tiny_llama).eval()
    with torch.no_grad():
        logprobs = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    entries = found.prompt_logprobs or []
    assert found.ids == []
    for at in range(1, 30):
        assert entries[at].logprob == pytest.approx(logprobs[at - 1, prompt[at]].item(), abs=1e-4)
        assert entries[at].rank == 1 + int((logprobs[at - 1] > logprobs[at - 1, prompt[at]]).sum())
        assert [token for token, *_ in entries[at].top] == logprobs[at - 1].topk(2).indices.tolist()


def test_two_conversations_in_turns(tiny_llama: Path) -> None:
    """Each request finds the complete history of its own conversation in the cache, and never the other's."""
    talks = {name: random_prompt(30 + at, VOCAB) for at, name in enumerate("ab")}

    async def main() -> None:
        async with engine(tiny_llama) as client, engine(tiny_llama, caching=False) as cold:
            for turn in range(4):
                for name, past in talks.items():
                    one = request(past, name, max_tokens=10)
                    found = await answer(client, one)
                    assert found.bits == (await answer(cold, one)).bits
                    # All but the last token generated before has been computed.
                    assert found.usage.cached_tokens == (0 if turn == 0 else len(past) - 6)
                    talks[name] = [*past, *found.ids, *random_prompt(5 + turn, VOCAB)[:5]]
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_choices_are_those_of_their_seeds(tiny_llama: Path) -> None:
    prompt = random_prompt(40, VOCAB)
    singles = [request(prompt, f"s{at}", temperature=1.0, seed=100 + at) for at in range(8)]
    expected = alone(tiny_llama, singles)

    async def main() -> None:
        async with engine(tiny_llama) as client:
            for _ in range(2):
                found = await choices(client, request(prompt, n=8, temperature=1.0, seed=100))
                same(found, expected)
            assert len({tuple(one.ids) for one in found}) == 8
            assert found[-1].usage.prompt_tokens == 40
            assert max(one.usage.completion_tokens for one in found) == 8 * 8

    asyncio.run(main())


def test_reading_slowly_changes_nothing(tiny_llama: Path, wanted: list[Answer]) -> None:
    async def main() -> None:
        async with engine(tiny_llama) as client:
            one = mixed(COUNT)[4]
            stream = client.generate(one)
            pieces = [await anext(stream)]
            await answer(client, request(random_prompt(20, VOCAB), "other", max_tokens=60))
            pieces += [piece async for piece in stream]
            assert 1 <= len(pieces) <= 2
            assert "".join(piece.text for piece in pieces) == wanted[4].text
            assert [i for piece in pieces for i in piece.token_ids] == wanted[4].ids
            assert [e for piece in pieces for e in piece.logprobs or []] == wanted[4].logprobs

    asyncio.run(main())
