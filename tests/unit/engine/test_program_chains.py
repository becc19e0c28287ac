"""Generations that the engine itself goes on with, where the one before has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from engine_fakes import ChatTokenizer, FakeEngine, FakeRunner, expected, in_process, make_engine

from headrace import lang as hl
from headrace.client.api import GenerateRequest
from headrace.client.batch import SequenceLimiter
from headrace.client.in_process_client import InProcessClient
from headrace.lang.interpreter import Interpreter
from headrace.programs import EngineBackend
from headrace.types import Request, SamplingParams

LENGTH = 256
PROMPT = tuple(b"begin")


class Engine:
    """An engine, its client, and the ids of what has begun without being asked for."""

    def __init__(self, engine: FakeEngine, client: InProcessClient) -> None:
        self.engine, self.client = engine, client
        self.begun: list[str] = []
        chains = engine.core.chains
        take = chains.take_begun

        def taken() -> list[Request]:
            found = take()
            self.begun += [one.id.partition("#")[0] for one in found]
            return found

        chains.take_begun = taken  # type: ignore[method-assign]

    async def ask(self, request: GenerateRequest) -> list[int]:
        """The tokens of an answer."""
        return [token async for output in self.client.generate(request) for token in output.token_ids]

    async def idle(self) -> None:
        """Wait for the end of all work; nothing may be left of it."""
        while (stats := (await self.client.stats()).scheduler).running or stats.waiting:
            await asyncio.sleep(0)
        assert stats.blocks_held == 0
        assert not len(self.engine.core.chains)
        assert not self.client._begun
        assert not self.client._streams
        self.engine.scheduler.check()


def on_an_engine(work: Callable[[Engine], Awaitable[None]], slots: int = 4, blocks: int = 200) -> None:
    async def run() -> None:
        sizes = {"num_blocks": blocks, "max_num_seqs": slots, "max_num_batched_tokens": 64, "max_model_len": LENGTH}
        engine = make_engine(FakeRunner(slots, LENGTH + 1), **sizes)
        async with in_process(engine) as client:
            await work(Engine(engine, client))

    asyncio.run(run())


def gen(id: str, prompt: tuple[int, ...] = PROMPT, then: GenerateRequest | None = None, **more: Any) -> GenerateRequest:
    params = {"max_tokens": 5, "ignore_eos": True, "seed": 3, **more.pop("params", {})}
    return GenerateRequest(id, prompt, SamplingParams(**params), keep=True, then=then, **more)


def test_the_engine_begins_what_follows_and_the_same_request_takes_it_over() -> None:
    async def work(engine: Engine) -> None:
        third = gen("c", tuple(b" third"))
        second = gen("b", tuple(b" second"), third)
        first = gen("a", then=second)
        one = await engine.ask(first)
        assert one == expected(PROMPT, 5, seed=3)
        prompt = (*PROMPT, *one, *b" second")
        two = await engine.ask(replace(second, prompt=prompt, extends="a"))
        assert two == expected(prompt, 5, seed=3)
        prompt = (*prompt, *two, *b" third")
        assert await engine.ask(replace(third, prompt=prompt, extends="b")) == expected(prompt, 5, seed=3)
        assert engine.begun == ["b", "c"]
        engine.client.release(["c"])
        await engine.idle()

    on_an_engine(work)


@pytest.mark.parametrize("change", [{"params": {"seed": 4}}, {"prompt": (*PROMPT, 1, 2, 3)}, {"salt": "other"}])
def test_another_request_ends_what_was_begun_and_has_its_own_answer(change: dict[str, Any]) -> None:
    async def work(engine: Engine) -> None:
        second = gen("b", tuple(b" second"), gen("c", tuple(b" third"), params={"max_tokens": 90}))
        one = await engine.ask(gen("a", then=second))
        prompt = change.get("prompt", (*PROMPT, *one, *b" second"))
        other = gen("b", prompt, extends="a", **{key: value for key, value in change.items() if key != "prompt"})
        assert await engine.ask(other) == expected(prompt, 5, other.params.seed or 0)
        assert engine.begun[0] == "b"
        engine.client.release(["b"])
        await engine.idle()

    on_an_engine(work)


def test_releasing_a_request_ends_what_was_begun_behind_it() -> None:
    async def work(engine: Engine) -> None:
        await engine.ask(gen("a", then=gen("b", (7,), gen("c", (8,), params={"max_tokens": 100}))))
        while len(engine.begun) < 2:
            await asyncio.sleep(0)
        engine.client.release(["a"])
        await engine.idle()

    on_an_engine(work)


def test_a_parked_request_that_others_go_on_with_is_released() -> None:
    """Its pin on cached blocks goes with the release, not with the end of a lease."""

    async def work(engine: Engine) -> None:
        first = gen("first")
        tokens = await engine.ask(first)
        engine.client.park(first.id)
        for name in ("one", "other"):
            follow = gen(name, (*first.prompt, *tokens, *b" and on"), extends=first.id)
            await engine.ask(follow)
            engine.client.release([name])
        engine.client.release([first.id])
        await engine.idle()

    on_an_engine(work)


@pytest.mark.parametrize("turns", range(0, 60, 3))
def test_leaving_at_any_moment_leaves_nothing(turns: int) -> None:
    async def work(engine: Engine) -> None:
        task = asyncio.ensure_future(engine.ask(gen("a", then=gen("b", (7,), gen("c", (8,))))))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        engine.client.release(["a"])
        await engine.idle()

    on_an_engine(work)


def test_a_stop_token_is_no_text_and_what_follows_stands_in_its_place() -> None:
    tokens = expected(PROMPT, 5, seed=3)
    stop = chr(next(one for one in tokens[1:] if 32 < one < 127))
    kept = tokens[: tokens.index(ord(stop))]

    async def work(engine: Engine) -> None:
        await engine.ask(gen("w", params={"stop": (stop,)}))
        engine.client._stop_tokens.wait()  # The vocabulary has been read.
        second = gen("b", tuple(b" second"))
        await engine.ask(gen("a", then=second, params={"stop": (stop,)}))
        prompt = (*PROMPT, *kept, *b" second")
        assert await engine.ask(replace(second, prompt=prompt, extends="a")) == expected(prompt, 5, seed=3)
        assert engine.begun == ["b"]
        engine.client.release(["w", "b"])
        await engine.idle()

    on_an_engine(work)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({"stop": ("\0\0",)}, {}),  # Only the client finds it.
        ({"include_stop_str_in_output": True}, {}),
        ({}, {"max_tokens": LENGTH - 5}),  # It might not fit.
    ],
)
def test_what_the_engine_cannot_know_is_left_to_the_client(first: dict[str, Any], then: dict[str, Any]) -> None:
    async def work(engine: Engine) -> None:
        await engine.ask(gen("a", then=gen("b", tuple(b" second"), params=then), params=first))
        engine.client.release(["a"])
        await engine.idle()
        assert not engine.begun

    on_an_engine(work)


@hl.program
def letter(s: hl.State, name: str) -> None:
    s.text("Dear ", name, ", ")
    for at in range(5):
        s.gen(f"part{at}", max_tokens=3 + at % 2, ignore_eos=True)
        s.text(f" and {at}, ")
    with s.fork(3) as branch:
        branch.gen("close", max_tokens=2, ignore_eos=True)
        branch.text(" of ", branch.index)
        branch.gen("end", max_tokens=3, ignore_eos=True)


@hl.program
def talk(s: hl.State, names: list[str]) -> None:
    """Messages, loops and conditions between generations, and choices behind them."""
    with hl.for_(names, max=4) as name:
        s.user("I am ", name, ".")
        s.assistant(hl.gen("hello", max_tokens=3, ignore_eos=True), " and ", hl.gen("more", max_tokens=1))
    s["n"] = 0
    with hl.while_(lambda: s["n"] < 2, max=5):
        s["n"] = s["n"] + 1
        s.user("No. ", s["n"])
        with s.assistant():
            with hl.if_(s["n"] == 2):
                s.text("Well: ")
            s.gen("said", max_tokens=2, ignore_eos=True)
    s.user("So?")
    s.assistant(hl.gen("so", max_tokens=2, ignore_eos=True), ": ", hl.select("way", ["a", "b", "c"]))
    s.assistant(hl.gen("end", max_tokens=2, ignore_eos=True))


async def run(engine: Engine, program: Any, **given: Any) -> tuple[dict[str, Any], int]:
    """The outputs and the engine's steps."""
    backend = EngineBackend(engine.client, ChatTokenizer(), SequenceLimiter(1000))
    before = engine.engine.runner.steps
    outputs, _ = await Interpreter(program.compile(), backend, {}, seed=1).run(given)
    await engine.idle()
    return outputs, engine.engine.runner.steps - before


def test_a_program_gives_the_same_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(engine: Engine) -> None:
        found, _ = await run(engine, letter, name="Ada")
        assert len(engine.begun) == 4 + 3
        monkeypatch.setattr(Interpreter, "_expected", lambda *args: [])
        assert (await run(engine, letter, name="Ada"))[0] == found
        assert len(engine.begun) == 4 + 3

    on_an_engine(work)


def test_it_goes_on_over_messages_loops_and_into_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(engine: Engine) -> None:
        found, steps = await run(engine, talk, names=["Bob", "Ada"])
        assert len(engine.begun) == 3 + 2 + 1 + 1
        monkeypatch.setattr(Interpreter, "_expected", lambda *args: [])
        again, without = await run(engine, talk, names=["Bob", "Ada"])
        assert again == found
        assert steps <= without
        assert len(engine.begun) == 7

    on_an_engine(work)


def test_a_template_that_changes_what_was_said_costs_nothing_but_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages end in another way than was foreseen, if the generated text ends with an even character."""

    async def render(self: ChatTokenizer, inputs: Any) -> str:
        texts = [f"<{one['role'][0]}>{one['content']}" for one in inputs.messages]
        ends = ["!" if one["content"] and ord(one["content"][-1]) % 2 == 0 else "." for one in inputs.messages]
        if inputs.continue_final_message:
            ends[-1] = ""
        return "".join(map("".join, zip(texts, ends, strict=True))) + "<a>" * inputs.add_generation_prompt

    monkeypatch.setattr(ChatTokenizer, "apply_chat_template_async", render)

    async def work(engine: Engine) -> None:
        found, _ = await run(engine, talk, names=["Bob", "Ada", "Eve"])
        assert engine.begun
        monkeypatch.setattr(Interpreter, "_expected", lambda *args: [])
        assert (await run(engine, talk, names=["Bob", "Ada", "Eve"]))[0] == found

    on_an_engine(work)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_sequences_are_under_way_than_may_be(most: int) -> None:
    async def work(engine: Engine) -> None:
        counts: list[int] = []
        schedule = engine.engine.scheduler.schedule

        def counted(now: float) -> Any:
            counts.append(len(engine.engine.scheduler._requests))
            return schedule(now)

        engine.engine.scheduler.schedule = counted  # type: ignore[method-assign]
        places = SequenceLimiter(most)
        names = ["Ada", "Bob", "Eve", "Dan"]
        given = [(letter, {"name": name}) for name in names] + [(talk, {"names": names[:at]}) for at in range(1, 4)]
        backend = EngineBackend(engine.client, ChatTokenizer(), places)
        runs = [Interpreter(program.compile(), backend, {}, seed=1) for program, _ in given]
        await asyncio.gather(*(one.run(inputs) for one, (_, inputs) in zip(runs, given, strict=True)))
        await engine.idle()
        assert max(counts) == most
        assert places._free == most
        assert not places._kept

    on_an_engine(work, slots=8)


def test_no_step_passes_between_generations_whose_end_is_known() -> None:
    """Each step has a token of the chain: the text behind a generation is computed by the step behind its last one."""

    @hl.program
    def alone(s: hl.State) -> None:
        s.text("Dear all, ")
        for at in range(6):
            s.gen(f"part{at}", max_tokens=1 + at % 3, ignore_eos=True)
            s.text(f" and {at}, ")
        s.select("way", ["a", "b"])

    async def work(engine: Engine) -> None:
        _, steps = await run(engine, alone)
        assert engine.begun == sorted(engine.begun)
        assert len(engine.begun) == 6
        assert steps == 12 + 1

    on_an_engine(work)


def test_texts_that_depend_on_the_answer_are_not_foreseen() -> None:
    @hl.program
    def echo(s: hl.State) -> None:
        s.text("Say: ")
        s.gen("a", max_tokens=3, ignore_eos=True)
        s.text("x", s["a"])
        s.gen("b", max_tokens=3, ignore_eos=True)
        s.text("y", s["a"])
        s.gen("c", max_tokens=3, ignore_eos=True)
        hl.require(s["c"] != "never", "no")
        s.gen("d", max_tokens=3, ignore_eos=True)

    async def work(engine: Engine) -> None:
        outputs, _ = await run(engine, echo)
        assert len(outputs["d"]) > 0
        assert len(engine.begun) == 1, "c alone follows b with a text that is known when b begins"

    on_an_engine(work)


def test_a_priority_is_that_of_all_requests() -> None:
    async def work(engine: Engine) -> None:
        found: list[Request] = []
        add = engine.engine.scheduler.add

        def added(request: Request, matcher: Any = None) -> None:
            found.append(request)
            add(request, matcher)

        engine.engine.scheduler.add = added  # type: ignore[method-assign]
        backend = EngineBackend(engine.client, ChatTokenizer(), SequenceLimiter(9)).with_priority(4)
        await Interpreter(letter.compile(), backend, {}).run({"name": "Ada"})
        await engine.idle()
        while found:
            then = found.pop()
            assert then.priority == 4
            found += [] if then.then is None else [then.then]

    on_an_engine(work)
