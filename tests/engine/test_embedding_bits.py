"""Embeddings have the same bits however they are computed, and are those of transformers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedding_harness import embed, pooled, reference
from engine_harness import alone, answer, engine, idle, request
from tiny_models import load_reference
from tiny_models import prompt as random_prompt

from headrace.client.api import GenerateRequest
from headrace.structured_outputs import StructuredOutputs

VOCAB = 260
COUNT = 12


def mixed(count: int = COUNT) -> list[GenerateRequest]:
    """Prompts of many lengths, some with a common start, pooled in both ways."""
    shared = random_prompt(40, VOCAB)
    found = []
    for at in range(count):
        own = random_prompt(1 + at * 37 % 90, VOCAB)
        prompt = [*shared[: at * 7 % 41], *own] if at % 3 == 0 else own
        found.append(pooled(prompt, f"e{at}", ("last", "mean")[at % 2]))
    return found


async def each(client: Any, wanted: list[GenerateRequest]) -> list[bytes]:
    return [await embed(client, one) for one in wanted]


async def at_once(client: Any, wanted: list[GenerateRequest]) -> list[bytes]:
    with client.group():
        tasks = [asyncio.ensure_future(embed(client, one)) for one in wanted]
        await asyncio.sleep(0)
    return list(await asyncio.gather(*tasks))


@pytest.fixture(scope="module")
def wanted(tiny_llama: Path) -> list[bytes]:
    async def main() -> list[bytes]:
        async with engine(tiny_llama, caching=False, seqs=1) as client:
            return await each(client, mixed())

    return asyncio.run(main())


def test_are_those_of_transformers(tiny_llama: Path, wanted: list[bytes]) -> None:
    model = load_reference(tiny_llama)
    for one, found in zip(mixed(), wanted, strict=True):
        assert one.pooling is not None
        np.testing.assert_allclose(np.frombuffer(found, "<f4"), reference(model, one.prompt, one.pooling), atol=2e-4)


@pytest.mark.parametrize(
    "sizes",
    [{}, {"chunk": 16}, {"chunk": 7, "seqs": 5}, {"blocks": 20, "chunk": 16}, {"caching": False}],
    ids=str,
)
def test_cold_warm_in_company_and_chunks(tiny_llama: Path, wanted: list[bytes], sizes: dict[str, Any]) -> None:
    async def main() -> None:
        async with engine(tiny_llama, **sizes) as client:
            assert await at_once(client, mixed()) == wanted
            assert await at_once(client, mixed()) == wanted
            assert await each(client, mixed()) == wanted
            stats = await idle(client)
            assert stats.scheduler.cached_tokens > 0 or not sizes.get("caching", True)

    asyncio.run(main())


@pytest.mark.parametrize("speculate", [None, "ngram"])
def test_beside_generation(tiny_llama: Path, wanted: list[bytes], speculate: str | None) -> None:
    """In steps with decodes, with drafts and with constrained rows, neither kind changes the other."""
    ways: list[dict[str, Any]] = [{}, {"temperature": 0.9, "seed": 3}, {"prompt_logprobs": 1}]
    texts = [request(random_prompt(9 + at, VOCAB), f"g{at}", max_tokens=12, **ways[at % 3]) for at in range(6)]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = StructuredOutputs(json=schema)
    texts.append(request(random_prompt(11, VOCAB), "c", ignore_eos=False, max_tokens=20, structured_outputs=form))
    generated = [one.bits for one in alone(tiny_llama, texts)]

    async def main() -> None:
        async with engine(tiny_llama, chunk=24, speculate=speculate) as client:
            for _ in range(2):
                with client.group():
                    tasks = [asyncio.ensure_future(answer(client, one)) for one in texts]
                    others = [asyncio.ensure_future(embed(client, one)) for one in mixed()]
                    await asyncio.sleep(0)
                assert [one.bits for one in await asyncio.gather(*tasks)] == generated
                assert list(await asyncio.gather(*others)) == wanted
            await idle(client)

    asyncio.run(main())


def test_the_last_token_uses_the_prefix_cache_and_the_mean_does_not(tiny_llama: Path) -> None:
    async def cached(client: Any, wanted: GenerateRequest) -> int:
        (output,) = [output async for output in client.generate(wanted)]
        assert output.usage is not None
        return output.usage.cached_tokens

    async def main() -> None:
        prompt = random_prompt(80, VOCAB)
        async with engine(tiny_llama) as client:
            assert await cached(client, pooled(prompt, "a")) == 0
            assert await cached(client, pooled(prompt, "b")) == 79
            assert await cached(client, pooled(prompt, "c", "mean")) == 0

    asyncio.run(main())
