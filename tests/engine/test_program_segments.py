"""Programs whose states stay in the engine: the same tokens as the same calls one by one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from engine_harness import PROGRAM_OPTIONS as OPTIONS

from headrace import LLM, AsyncLLM, SamplingParams
from headrace import lang as hl
from headrace.client.api import GenerateRequest, Output
from headrace.engine.chains import Chains
from headrace.errors import ProgramError
from headrace.lang.interpreter import Interpreter
from headrace.types import Request

Call = tuple[GenerateRequest, list[int]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """All requests with their tokens."""
    found: list[Call] = []
    generate = AsyncLLM.generate

    async def recording(self: AsyncLLM, request: GenerateRequest) -> AsyncIterator[Output]:
        tokens: list[int] = []
        found.append((request, tokens))
        async for output in generate(self, request):
            tokens += output.token_ids
            yield output

    monkeypatch.setattr(AsyncLLM, "generate", recording)
    return found


def check_alone(calls: list[Call], cold: LLM) -> None:
    """Each generation has the tokens that its request has alone."""
    made = [(request, tokens) for request, tokens in calls if request.params.max_tokens]
    calls.clear()
    assert made
    for request, tokens in made:
        (answer,) = cold.generate([list(request.prompt)], request.params)
        assert answer.outputs[0].token_ids == tokens


def blocks_held(llm: LLM) -> int:
    return llm.stats().scheduler.blocks_held


@hl.program
def chain(s: hl.State, turns: int) -> None:
    s.system("Answer.")
    with hl.for_(turns, max=8) as turn:
        s.user("Question ", turn, "?")
        with s.assistant():
            s.text("Well: ")
            s.gen("thought", max_tokens=9, stop=["e", "\n"])
            s.text(" So ")
            s.gen("answer", max_tokens=7, temperature=0.8)


@hl.program
def talk(s: hl.State, names: list[str]) -> None:
    """Messages, a loop and a condition between generations, and choices behind them."""
    s.system("Short.")
    with hl.for_(names, max=4) as name:
        s.user("I am ", name, ".")
        with s.assistant():
            s.gen("hello", max_tokens=4, ignore_eos=True)
            with hl.if_(name == "Ada"):
                s.text(" Countess,")
            s.gen("more", max_tokens=3, ignore_eos=True, temperature=0.7)
    s.user("Yes or no?")
    s.assistant("I say ", hl.gen("so", max_tokens=2, ignore_eos=True), ": ", hl.select("way", ["a", "b"]))


@hl.program
def text_chain(s: hl.State) -> None:
    s.text("Once")
    for at in range(4):
        s.gen(f"a{at}", max_tokens=11, ignore_eos=True, frequency_penalty=0.5, repetition_penalty=1.1)
        s.text(f" and {at} then")
    s.gen("n", type=int, max_tokens=20)
    s.text(".")
    s.gen("rest", max_tokens=5, logprobs=1)


@hl.program
def tree(s: hl.State) -> Any:
    s.text("A story of some length, so that there are blocks to share.")
    s.gen("start", max_tokens=10, ignore_eos=True)
    with s.fork(4) as branch:
        branch.text(" Way ", branch.index, ":")
        branch.gen("way", max_tokens=6, ignore_eos=True)
        branch.text(" Good? ")
        branch.select("good", ["yes", "no", "not at all"])
        branch.gen("why", max_tokens=3, ignore_eos=True)
    s.text(" The end:")
    s.gen("end", max_tokens=6, ignore_eos=True)
    return branch["way"]


@hl.program
def beside(s: hl.State) -> None:
    """Two states at the same time, one of which takes what the other has said."""
    notes = hl.new_state()
    notes.text("Notes of a long day, so that there is a block:")
    s.text("One,")
    for at in range(3):
        s.gen(f"n{at}", max_tokens=8, stop="e")
        notes.text(f" {at}:")
        notes.gen(f"m{at}", max_tokens=6, ignore_eos=True)
        s.text(" and ")
        s.select(f"c{at}", ["a", "b", "c"])
    s.text(notes["m2"])
    s.gen("end", max_tokens=5, ignore_eos=True)


PROGRAMS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "beside": (beside, ()),
    "chain": (chain, (3,)),
    "talk": (talk, (["Bob", "Ada", "Eve"],)),
    "text": (text_chain, ()),
    "tree": (tree, ()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_generation_is_the_request_alone(name: str, llm: LLM, cold: LLM, calls: list[Call]) -> None:
    program, args = PROGRAMS[name]
    first = llm.run(program, *args, seed=4)
    goes_on = any(request.extends for request, _ in calls)
    assert goes_on == (name != "tree"), "chains go on where they ended; forks and choices share what is parked"
    check_alone(calls, cold)
    again = llm.run(program, *args, seed=4)
    assert again.outputs == first.outputs
    assert llm.run(program, *args, seed=5).outputs != first.outputs
    assert blocks_held(llm) == 0


@pytest.mark.parametrize("name", ["beside", "chain", "talk", "text"])
def test_what_the_engine_begins_by_itself_is_the_same(name: str, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    program, args = PROGRAMS[name]
    begun: list[str] = []
    take = Chains.take_begun

    def taken(self: Chains) -> list[Request]:
        found = take(self)
        begun.extend(one.id for one in found)
        return found

    monkeypatch.setattr(Chains, "take_begun", taken)
    found = llm.run(program, *args, seed=6)
    # Stop strings end sequences in the engine once the vocabulary has been read.
    assert len(begun) in {"beside": range(2, 6), "chain": range(6), "talk": [7], "text": [5]}[name]
    monkeypatch.setattr(Interpreter, "_expected", lambda *args: [])
    assert llm.run(program, *args, seed=6).outputs == found.outputs
    assert blocks_held(llm) == 0


def test_with_drafts_too(tiny_llama: Path, cold: LLM, calls: list[Call]) -> None:
    with LLM(str(tiny_llama), **OPTIONS, speculate="ngram") as drafting:
        for program, args in PROGRAMS.values():
            drafting.run(program, *args, seed=8)
        assert blocks_held(drafting) == 0
    check_alone(calls, cold)


def test_generated_text_is_never_tokenised_again(llm: LLM, calls: list[Call]) -> None:
    found = llm.run(text_chain, seed=2)
    prompts = [request.prompt for request, _ in calls]
    for (request, tokens), later in zip(calls, prompts[1:], strict=False):
        kept = tokens[:-1] if request.params.structured_outputs else tokens  # An end token is no text.
        assert later[: len(request.prompt) + len(kept)] == request.prompt + tuple(kept)
    assert found.usage.encoded_tokens < found.usage.prompt_tokens / 4
    calls.clear()


def test_each_generation_in_a_chain_computes_only_what_is_new(llm: LLM) -> None:
    found = llm.run(text_chain, seed=3)
    before = found.nodes[0].usage
    for node in found.nodes[1:]:
        known = before.prompt_tokens + before.completion_tokens
        assert node.usage.cached_tokens >= known - 1
        before = node.usage


def test_under_pressure_and_among_other_requests(tiny_llama: Path, cold: LLM, calls: list[Call]) -> None:
    """So few blocks and slots that open sequences are closed and running ones preempted."""
    tight = {**OPTIONS, "num_blocks": 26, "max_num_seqs": 3}

    async def run() -> None:
        model = AsyncLLM(str(tiny_llama), **tight)
        await model.start()
        try:
            rng = random.Random(1)

            async def others() -> None:
                for at in range(12):
                    prompt = tuple(rng.randrange(5, 200) for _ in range(rng.randrange(1, 60)))
                    params = SamplingParams(max_tokens=rng.randrange(1, 20), seed=at, ignore_eos=True)
                    async for _ in model.generate(GenerateRequest(f"other-{at}", prompt, params)):
                        pass

            jobs = [program.arun(*args, on=model, seed=at) for at, (program, args) in enumerate(PROGRAMS.values())]
            await asyncio.gather(others(), *jobs)
            stats = (await model.stats()).scheduler
            assert stats.preemptions + stats.blocks_cached
            assert stats.blocks_held == 0
        finally:
            await model.close()

    asyncio.run(run())
    check_alone(calls, cold)


@pytest.mark.parametrize("steps", [0, 3, 9, 20])
def test_a_cancelled_run_leaves_nothing(tiny_llama: Path, llm: LLM, steps: int) -> None:
    async def run() -> None:
        seen = 0
        events = tree.astream(on=model, seed=1)
        async for _ in events:
            seen += 1
            if seen > steps:
                break
        await events.aclose()  # type: ignore[attr-defined]
        while (stats := (await model.stats()).scheduler).running or stats.waiting or stats.blocks_held:
            await asyncio.sleep(0)

    model = llm._client
    asyncio.run_coroutine_threadsafe(run(), llm._loop).result(60)


def test_a_failed_run_leaves_nothing(llm: LLM) -> None:
    @hl.program
    def fails(s: hl.State) -> None:
        s.text("Hello")
        word = s.gen("word", max_tokens=5)
        hl.require(word == "no such text", "it is another")

    with pytest.raises(ProgramError, match="it is another"):
        llm.run(fails)
    assert blocks_held(llm) == 0
