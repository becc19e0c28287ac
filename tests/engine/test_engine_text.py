"""Text, stops and parameters on the real engine and a real tokenizer."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from engine_harness import Answer, alone, answer, engine, idle, in_turn, request, together
from tiny_models import prompt as random_prompt

from headrace.errors import ContextOverflow, InvalidRequest, NeverFits
from headrace.tokenization.tokenizer import Tokenizer, load_tokenizer

VOCAB = 260
EOS = 2
PROMPT = random_prompt(12, VOCAB)
ASCII = {"allowed_token_ids": tuple(range(4 + 32, 4 + 94)), "max_tokens": 40}
"""Bytes of printable letters, so that every token is a character."""


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


@pytest.fixture(scope="module")
def whole(tiny_llama: Path) -> Answer:
    """The text that is generated without a stop."""
    (found,) = alone(tiny_llama, [request(PROMPT, temperature=1.0, seed=1, **ASCII)])
    assert len(found.text) == 40
    return found


def ask(model: Path, **params: Any) -> Answer:
    async def main() -> Answer:
        async with engine(model) as client:
            found = await answer(client, request(PROMPT, **{"temperature": 1.0, "seed": 1, **ASCII, **params}))
            await idle(client)
            return found

    return asyncio.run(main())


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_over_several_tokens(tiny_llama: Path, whole: Answer, include: bool) -> None:
    stop = whole.text[10:15]
    at = whole.text.index(stop)
    found = ask(tiny_llama, stop=(stop,), include_stop_str_in_output=include)
    assert found.text == whole.text[: at + 5 if include else at]
    assert found.finish == ("stop", stop)
    assert found.ids == whole.ids[: at + 5]
    assert found.logprobs == whole.logprobs[: at + 5]
    assert found.usage.completion_tokens == at + 5


def test_a_stop_that_never_completes_is_flushed_once(tiny_llama: Path, whole: Answer) -> None:
    found = ask(tiny_llama, stop=(whole.text[-5:] + "\0",))
    assert (found.text, found.finish) == (whole.text, ("length", None))


def test_the_earliest_of_overlapping_stops(tiny_llama: Path, whole: Answer) -> None:
    late, early = whole.text[12:20], whole.text[9:14]
    found = ask(tiny_llama, stop=(late, early))
    assert found.text == whole.text[: whole.text.index(early)]
    assert found.finish == ("stop", early)


def test_tokens_and_stops_after_min_tokens(tiny_llama: Path, whole: Answer) -> None:
    stop = whole.text[3]
    first = whole.text.find(stop, 8)
    found = ask(tiny_llama, stop=(stop,), min_tokens=8)
    assert found.text == (whole.text[:first] if first >= 0 else whole.text)


def test_stop_token_ids(tiny_llama: Path, whole: Answer) -> None:
    token = whole.ids[7]
    at = whole.ids.index(token)
    found = ask(tiny_llama, stop_token_ids=(token,))
    assert (found.ids, found.text, found.finish) == (whole.ids[: at + 1], whole.text[:at], ("stop", token))
    included = ask(tiny_llama, stop_token_ids=(token,), include_stop_str_in_output=True)
    assert included.text == whole.text[: at + 1]


@pytest.mark.parametrize("ignore", [False, True])
def test_end_token(tiny_llama: Path, ignore: bool) -> None:
    params = {"logit_bias": ((EOS, 100.0),), "allowed_token_ids": None, "ignore_eos": ignore, "max_tokens": 5}
    found = ask(tiny_llama, **params)
    assert set(found.ids) == {EOS}
    assert (len(found.ids), found.text) == ((5, "") if ignore else (1, ""))
    assert found.finish == (("length", None) if ignore else ("stop", EOS))


def test_min_tokens_forbid_the_end(tiny_llama: Path) -> None:
    params = {"logit_bias": ((EOS, 100.0),), "allowed_token_ids": None, "ignore_eos": False}
    found = ask(tiny_llama, min_tokens=6, **params)
    assert EOS not in found.ids[:6]
    assert found.ids[6:] == [EOS]


def test_characters_of_many_bytes_are_never_cut(tiny_llama: Path, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        async with engine(tiny_llama) as client:
            one = request(PROMPT, temperature=2.0, seed=4, max_tokens=80)
            text, ids = "", []
            async for output in client.generate(one):
                text += output.text
                ids += output.token_ids
                assert not text or tokenizer.decode(ids).startswith(text)
            assert text == tokenizer.decode(ids)

    asyncio.run(main())


def test_bytes_in_logprobs(tiny_llama: Path, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("😀😀😀")
    (found,) = alone(tiny_llama, [request(prompt, echo=True, prompt_logprobs=5, logprobs=5, max_tokens=2)])
    assert found.text.startswith("😀😀😀")
    assert b"".join(entry.raw for entry in found.logprobs[: len(prompt)]) == "😀😀😀".encode()
    for entry in found.logprobs:
        for text in (entry.token, *(text for _, text, _, _ in entry.top)):
            assert text.encode().decode() == text
        assert entry.raw.decode(errors="replace") == entry.token or entry.token_id < 4


@pytest.mark.parametrize(
    "params",
    [
        {"top_k": 1, "temperature": 1.0},
        {"temperature": 1e-8},
        {"logit_bias": tuple((token, -100.0) for token in range(VOCAB)), "temperature": 1.0},
        {"temperature": 1e4, "top_p": 1e-9},
        {"repetition_penalty": 1e4, "frequency_penalty": 1e4},
    ],
    ids=str,
)
def test_no_number_is_infinite(tiny_llama: Path, params: dict[str, Any]) -> None:
    (found,) = alone(tiny_llama, [request(PROMPT, echo=True, prompt_logprobs=5, logprobs=5, **params)])
    values = [value for entry in found.logprobs for value in (entry.logprob, *(top[3] for top in entry.top))]
    assert all(math.isfinite(value) for value in values if value is not None)


def test_greedy_ignores_what_narrows_a_draw(tiny_llama: Path) -> None:
    ways = [{}, {"top_p": 0.01}, {"top_k": 1}, {"min_p": 1.0}, {"temperature": 1e-9}, {"temperature": 1.0, "top_k": 1}]
    found = alone(tiny_llama, [request(PROMPT, **way) for way in ways])
    assert len({tuple(one.ids) for one in found}) == 1


def test_biases_and_masks(tiny_llama: Path) -> None:
    banned, forced, masked = alone(
        tiny_llama,
        [
            request(PROMPT, logit_bias=((alone(tiny_llama, [request(PROMPT)])[0].ids[0], -100.0),)),
            request(PROMPT, logit_bias=((77, 100.0),)),
            request(PROMPT, allowed_token_ids=(50, 51), temperature=1.0, seed=0, max_tokens=30),
        ],
    )
    assert banned.ids[0] != forced.ids[0]
    assert set(forced.ids) == {77}
    assert set(masked.ids) == {50, 51}


def test_penalties_keep_tokens_from_coming_back(tiny_llama: Path) -> None:
    plain, punished = alone(
        tiny_llama, [request(PROMPT, max_tokens=40), request(PROMPT, max_tokens=40, presence_penalty=1e4)]
    )
    assert len(set(plain.ids)) < 40
    assert len(set(punished.ids)) == 40


def test_refusals_and_the_next_request(tiny_llama: Path) -> None:
    async def main() -> None:
        async with engine(tiny_llama, blocks=10, context=512) as client:
            for wrong, error, match in (
                (request((1,) * 140, max_tokens=10), NeverFits, "holds 144 tokens.*needs 149"),
                (request((1,) * 512), ContextOverflow, "512.*520"),
                (request((VOCAB,)), InvalidRequest, "prompt"),
                (request((1,), stop_token_ids=(VOCAB,)), InvalidRequest, "stop_token_ids"),
            ):
                with pytest.raises(error, match=match):
                    await answer(client, wrong)
                assert len((await answer(client, request(PROMPT))).ids) == 8
            await idle(client)

    asyncio.run(main())


def test_the_prompt_may_fill_the_context(tiny_llama: Path) -> None:
    prompt = random_prompt(512, VOCAB)

    async def main() -> None:
        async with engine(tiny_llama) as client:
            found = await in_turn(
                client,
                [
                    request(prompt, max_tokens=0, echo=True),
                    request(prompt, max_tokens=0, echo=True, prompt_logprobs=0),
                    request(prompt[:-1], max_tokens=1),
                ],
            )
            assert [one.usage.completion_tokens for one in found] == [0, 0, 1]
            assert found[0].ids == found[1].ids == prompt
            assert len(found[1].logprobs) == 512
            assert [one.finish for one in found] == [("length", None)] * 3

    asyncio.run(main())


def test_aborts_at_every_moment_behind_two_slots(tiny_llama: Path) -> None:
    """50 requests are left while they wait, in each chunk of their prompt, while they generate, and at their end."""

    async def main() -> None:
        async with engine(tiny_llama, seqs=2, chunk=16, blocks=60) as client:

            async def leave(at: int) -> None:
                one = request(random_prompt(40, VOCAB), f"req-{at}", max_tokens=6)
                task = asyncio.create_task(answer(client, one))
                await asyncio.sleep(at * 0.004)
                task.cancel()
                await asyncio.wait([task])

            survivor = request(PROMPT, "req-1x", max_tokens=4)
            *_, found = await asyncio.gather(*(leave(at) for at in range(50)), answer(client, survivor))
            assert found is not None
            assert found.bits == (await answer(client, survivor)).bits
            await idle(client)

    asyncio.run(main())


def test_many_short_ones(tiny_llama: Path) -> None:
    async def main() -> None:
        async with engine(tiny_llama) as client:
            found = await together(client, [request((5 + at % 50,), f"r{at}", max_tokens=2) for at in range(200)])
            assert {len(one.ids) for one in found} == {2}
            assert [one.bits for one in found[:50]] == [one.bits for one in found[50:100]]
            await idle(client)

    asyncio.run(main())
