"""Stop strings of one character: the engine ends the sequence at the very token at which the client cuts the text."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from engine_fakes import ByteTokenizer, expected, in_process, make_engine, make_request

from headrace.client.api import Output
from headrace.client.stop_tokens import StopTokens
from headrace.engine.wire import Command, Finish
from headrace.types import SamplingParams


class Pairs(ByteTokenizer):
    """Tokens from 260 on are pairs of letters; 270 hides its second one."""

    def token_bytes(self, token_id: int) -> bytes:
        return b"a\n" if token_id == 261 else b".x" if token_id == 270 else super().token_bytes(token_id)

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Any = ()) -> Any:
        return PairStream(super().stream(skip_special_tokens))


class PairStream:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def push(self, token_id: int) -> str:
        texts = {261: "a\n", 270: "."}
        return texts[token_id] if token_id in texts else str(self._inner.push(token_id))


def read(tokenizer: ByteTokenizer) -> StopTokens:
    found = StopTokens(tokenizer, 300)
    found.of(SamplingParams(stop=("\n",)))  # begins to read the vocabulary
    found.wait()
    return found


def test_all_tokens_with_the_character() -> None:
    found = read(Pairs())
    assert found.of(SamplingParams(stop=("\n",))) == (10, 261)
    assert found.of(SamplingParams(stop=("a", "\n"))) == (97, 261, 10)
    assert found.of(SamplingParams()) == ()


@pytest.mark.parametrize(
    "params",
    [
        {"stop": ("\n\n",)},
        {"stop": ("é",)},
        {"stop": (" ",)},
        {"stop": ("x",)},
        {"stop": ("\n", "ab")},
        {"stop": ("\n",), "min_tokens": 2},
        {"stop": ("\n",), "skip_special_tokens": False},
    ],
)
def test_what_is_left_to_the_client(params: dict[str, Any]) -> None:
    assert read(Pairs()).of(SamplingParams(max_tokens=9, **params)) is None


@pytest.mark.parametrize("include", [False, True])
def test_the_answer_is_the_one_that_the_client_finds(include: bool) -> None:
    text = bytes(expected((97, 98), 16, seed=5))
    letter = next(chr(byte) for byte in text[4:] if 32 < byte < 127)

    async def run() -> None:
        sent: list[Command] = []
        async with in_process(make_engine()) as client:
            send = client._send
            client._send = lambda command: (sent.append(command), send(command))[1]  # type: ignore[assignment]

            async def answer(id: str, **fields: Any) -> list[Output]:
                params = {"stop": (letter,), "include_stop_str_in_output": include, "ignore_eos": True, "seed": 5}
                request = replace(make_request("ab", id, **params), **fields)
                return [one async for one in client.generate(request)]

            def joined(outputs: list[Output]) -> tuple[Any, ...]:
                last = outputs[-1]
                tokens = [token for one in outputs for token in one.token_ids]
                return "".join(one.text for one in outputs), tokens, last.finish_reason, last.stop_reason

            def unread(params: SamplingParams) -> None:
                """Begin to read the vocabulary, which this answer does not wait for, however slow this thread is."""
                StopTokens.of(client._stop_tokens, params)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(client._stop_tokens, "of", unread)
                first = joined(await answer("one"))
            assert sum(isinstance(one, Finish) for one in sent) == 1
            client._stop_tokens.wait()
            second = joined(await answer("two"))
            whole = await answer("three", whole=True)
            assert sum(isinstance(one, Finish) for one in sent) == 1, "the engine has ended it"
            assert first == second == joined(whole)
            assert first[2:] == ("stop", letter)
            assert len(whole) == 1
            own = await answer("four", params=SamplingParams(max_tokens=16, stop_token_ids=(ord(letter),), seed=5))
            assert own[-1].stop_reason == ord(letter), "a stop token of the request itself is none of the text"

    asyncio.run(run())
