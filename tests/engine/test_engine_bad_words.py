"""`bad_words` with the real engine: the output is a plain reading's, in company, warm, in chunks, with drafts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from engine_harness import answer, choices, engine, request, together
from tiny_models import load_reference, reference_logits
from tiny_models import prompt as random_prompt

from headrace.client.api import GenerateRequest
from headrace.errors import InvalidRequest
from headrace.tokenization.tokenizer import load_tokenizer

LETTERS = "abcdefgh"
COUNT = 16
WORDS = ("c", "ab", "hea", "ff", " ga")


def wished(at: int, **params: Any) -> GenerateRequest:
    letters = tuple(sorted(letter_ids().values()))
    return request(
        random_prompt(5 + 11 * at, 260),
        f"w{at}",
        max_tokens=COUNT,
        allowed_token_ids=letters,
        bad_words=WORDS,
        **params,
    )


def letter_ids() -> dict[str, int]:
    return {letter: 4 + sorted_bytes().index(letter) for letter in (*LETTERS, " ")}


def sorted_bytes() -> list[str]:
    """The byte vocabulary's order; a space is written as its own letter there."""
    from tokenizers import pre_tokenizers

    return [" " if char == "\u0120" else char for char in sorted(pre_tokenizers.ByteLevel.alphabet())]


def plain_reading(model: Any, wanted: GenerateRequest) -> list[int]:
    ids = letter_ids()
    words = [tuple(ids[letter] for letter in word.strip()) for word in WORDS]
    found: list[int] = []
    for _ in range(COUNT):
        row = reference_logits(model, [*wanted.prompt, *found])[-1]
        fits = [
            token
            for token in wanted.params.allowed_token_ids or ()
            if not any(tuple([*found, token][-len(word) :]) == word for word in words)
        ]
        found.append(max(fits, key=lambda token: float(row[token])))
    return found


def test_the_plain_reading(tiny_llama: Path) -> None:
    model = load_reference(tiny_llama)

    async def main() -> None:
        async with engine(tiny_llama, caching=False) as client:
            for at in range(4):
                wanted = wished(at)
                assert (await answer(client, wanted)).ids == plain_reading(model, wanted)

    asyncio.run(main())


@pytest.mark.parametrize("speculate", [None, "ngram"])
@pytest.mark.parametrize("sizes", [{}, {"chunk": 16, "seqs": 5}, {"blocks": 20}], ids=str)
def test_the_same_bits_in_company(tiny_llama: Path, sizes: dict[str, Any], speculate: str | None) -> None:
    ways: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 5}, {"temperature": 0.7, "seed": 6, "top_p": 0.9}]
    jobs = [wished(at, **ways[at % 3]) for at in range(6)]

    async def main() -> None:
        async with engine(tiny_llama, caching=False, seqs=1) as client:
            wanted = [(await answer(client, job)).bits for job in jobs]
        async with engine(tiny_llama, speculate=speculate, **sizes) as client:
            for _ in range(2):
                found = await together(client, jobs)
                assert [one.bits for one in found] == wanted
        tokenizer = load_tokenizer(tiny_llama)
        for one in found:
            text = tokenizer.decode(one.ids)
            assert len(text) == COUNT
            assert not any(word.strip() in text for word in WORDS)

    asyncio.run(main())


def test_several_choices(tiny_llama: Path) -> None:
    async def main() -> None:
        async with engine(tiny_llama) as client:
            many = await choices(client, wished(2, temperature=1.2, seed=3, n=3))
            for at, one in enumerate(many):
                assert one.ids == (await answer(client, wished(2, temperature=1.2, seed=3 + at))).ids
            assert len({tuple(one.ids) for one in many}) > 1

    asyncio.run(main())


def test_a_word_without_characters_is_refused(tiny_llama: Path) -> None:
    async def main() -> None:
        async with engine(tiny_llama) as client:
            with pytest.raises(InvalidRequest, match="`bad_words` strings have 1 to 4096 characters") as caught:
                await answer(client, request([5], bad_words=("",)))
            assert caught.value.param == "bad_words"
            assert (await answer(client, request([5]))).finish[0] == "length"

    asyncio.run(main())
