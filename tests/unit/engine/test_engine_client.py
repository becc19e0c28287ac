"""The client in this process, on the real scheduler and a fake runner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from engine_fakes import (
    ByteTokenizer,
    FakeEngine,
    FakeRunner,
    HeldRunner,
    expected,
    in_process,
    make_engine,
    make_request,
)

from headrace.client.api import GenerateRequest, Output, Usage
from headrace.client.in_process_client import InProcessClient
from headrace.config import Config
from headrace.errors import (
    CheckpointError,
    ContextOverflow,
    DeviceLost,
    EngineDead,
    InvalidRequest,
    NeverFits,
    Overloaded,
)
from headrace.types import StepPlan

Test = Callable[[], Coroutine[Any, Any, None]]
LONG = {"max_tokens": 100, "seed": 0}


async def collect(client: InProcessClient, request: GenerateRequest) -> list[Output]:
    return [output async for output in client.generate(request)]


async def ids_of(client: InProcessClient, request: GenerateRequest) -> list[int]:
    return [i for output in await collect(client, request) for i in output.token_ids]


async def idle(client: InProcessClient) -> None:
    """The leak check."""
    for _ in range(6000):
        stats = (await client.stats()).scheduler
        if (stats.running, stats.waiting, stats.blocks_held) == (0, 0, 0):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"still held: {stats}")


def test_one_request() -> None:
    async def main() -> None:
        async with in_process() as c:
            outputs = await collect(c, make_request("hey", max_tokens=8, seed=3))
            assert [i for o in outputs for i in o.token_ids] == expected(tuple(b"hey"), 8, seed=3)
            assert outputs[-1].finish_reason == "length"
            assert outputs[-1].usage == Usage(3, 8, 0)
            assert (outputs[0].queue_time or -1) >= 0
            await idle(c)

    asyncio.run(main())


def test_end_tokens_that_only_the_tokenizer_has_end_a_request() -> None:
    """And those beyond the model's rows are left out: no token can be one."""

    async def main() -> None:
        tokens = expected(tuple(b"hey"), 8, seed=3)
        tokenizer = ByteTokenizer((tokens[4], 10**9))
        client = InProcessClient(Config(), tokenizer, build=lambda config, progress: make_engine())
        await client.start()
        try:
            ended = await collect(client, make_request("hey", max_tokens=8, seed=3))
            assert ended[-1].finish_reason == "stop"
            assert len([i for o in ended for i in o.token_ids]) == tokens.index(tokens[4]) + 1
            on = await collect(client, make_request("hey", max_tokens=8, seed=3, ignore_eos=True))
            assert [i for o in on for i in o.token_ids] == tokens
            await collect(client, make_request("hey", max_tokens=8, seed=3, min_tokens=7))
        finally:
            await client.close()

    asyncio.run(main())


def test_many_at_once_are_each_as_alone() -> None:
    async def main() -> None:
        async with in_process() as c:
            prompts = [tuple(range(i, i + 3 + i % 7)) for i in range(40)]
            requests = [make_request(p, id=f"r{i}", max_tokens=12, seed=i) for i, p in enumerate(prompts)]
            found = await asyncio.gather(*(ids_of(c, r) for r in requests))
            assert found == [expected(p, 12, seed=i) for i, p in enumerate(prompts)]
            await idle(c)

    asyncio.run(main())


def test_choices_have_their_own_seeds() -> None:
    async def main() -> None:
        async with in_process() as c:
            outputs = await collect(c, make_request("hey", n=5, max_tokens=6, seed=10))
            for index in range(5):
                own = [o for o in outputs if o.index == index]
                assert [i for o in own for i in o.token_ids] == expected(tuple(b"hey"), 6, seed=10 + index)
                assert [o.finish_reason for o in own if o.finish_reason] == ["length"]
            assert outputs[-1].usage == Usage(3, 30, 0)

    asyncio.run(main())


def test_a_seed_is_drawn_where_none_is_given() -> None:
    async def main() -> None:
        async with in_process() as c:
            found = [tuple(await ids_of(c, make_request("hey", seed=None))) for _ in range(6)]
            assert len(set(found)) > 1

    asyncio.run(main())


def test_the_stop_string_frees_the_blocks_at_once() -> None:
    async def main() -> None:
        async with in_process(make_engine(FakeRunner(vocab=128), num_blocks=32)) as c:
            whole = bytes(expected(tuple(b"hey"), 100, vocab=128)).decode()
            stop = whole[10:13]
            outputs = await collect(c, make_request("hey", stop=(stop,), **LONG))
            assert "".join(o.text for o in outputs) == whole[: whole.index(stop)]
            assert outputs[-1].finish_reason == "stop"
            await idle(c)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"max_tokens": 10**9}, ContextOverflow),
        ({"text": (1,) * 70, "max_tokens": 40}, NeverFits),
        ({"temperature": -1.0}, InvalidRequest),
        ({"n": 0}, InvalidRequest),
    ],
)
def test_refusals_come_before_the_first_output(fields: dict[str, Any], error: type[Exception]) -> None:
    async def main() -> None:
        async with in_process(make_engine(num_blocks=20)) as c:
            with pytest.raises(error):
                await collect(c, make_request(**fields))
            assert await ids_of(c, make_request("hey", max_tokens=3, seed=0)) == expected(tuple(b"hey"), 3)
            await idle(c)

    asyncio.run(main())


def test_a_full_queue() -> None:
    async def main() -> None:
        async with in_process(make_engine(max_waiting=3)) as c:
            with pytest.raises(Overloaded):
                await collect(c, make_request("hey", n=4))
            await idle(c)

    asyncio.run(main())


def test_an_id_in_use() -> None:
    async def main() -> None:
        runner = HeldRunner()
        async with in_process(make_engine(runner)) as c:
            first = c.generate(make_request("hey", **LONG))
            await anext(first)
            with pytest.raises(InvalidRequest, match="'r'"):
                await collect(c, make_request("hey"))
            await first.aclose()
            runner.go.set()
            assert len(await ids_of(c, make_request("hey", max_tokens=3))) == 3

    asyncio.run(main())


def test_prompt_alone_without_the_engine() -> None:
    async def main() -> None:
        async with in_process() as c:
            outputs = await collect(c, make_request("hey", max_tokens=0, echo=True, n=2))
            assert [(o.index, o.text, o.finish_reason) for o in outputs] == [(0, "hey", "length"), (1, "hey", "length")]
            assert (await c.stats()).steps == 0

    asyncio.run(main())


def test_scored_prompt_of_the_full_context() -> None:
    async def main() -> None:
        async with in_process() as c:
            prompt = tuple(i % 200 for i in range(128))
            outputs = await collect(c, make_request(prompt, max_tokens=0, echo=True, prompt_logprobs=1, logprobs=1))
            (out,) = outputs
            assert (out.token_ids, out.finish_reason) == (list(prompt), "length")
            assert [e.token_id for e in out.logprobs or []] == list(prompt)
            assert [e.logprob is None for e in out.logprobs or []] == [True] + [False] * 127
            assert out.usage == Usage(128, 0, 0)

    asyncio.run(main())


def test_abort_ends_the_stream_and_no_other() -> None:
    async def main() -> None:
        runner = HeldRunner(held="req-1")
        async with in_process(make_engine(runner)) as c:
            other = asyncio.create_task(ids_of(c, make_request("hey", id="req-10", max_tokens=30, seed=0)))
            outputs = []
            async for output in c.generate(make_request("hey", id="req-1", **LONG)):
                outputs.append(output)
                if len(outputs) == 1:
                    await c.abort("req-1")
                    await c.abort("nobody")
                    runner.go.set()
            assert outputs[-1].finish_reason == "abort"
            assert sum(len(o.token_ids) for o in outputs) < 100
            assert await other == expected(tuple(b"hey"), 30)
            await idle(c)

    asyncio.run(main())


def test_closing_the_iterator_aborts() -> None:
    async def main() -> None:
        runner = HeldRunner()
        async with in_process(make_engine(runner)) as c:
            stream = c.generate(make_request("hey", n=3, **LONG))
            await anext(stream)
            await stream.aclose()
            runner.go.set()
            await idle(c)
            assert (await c.stats()).steps < 50

    asyncio.run(main())


def test_abort_storm_leaves_nothing_behind() -> None:
    async def main() -> None:
        engine = make_engine(FakeRunner(delay=0.0005), max_num_seqs=2, num_blocks=40)
        async with in_process(engine) as c:

            async def one(at: int) -> None:
                request = make_request(tuple(range(at % 40 + 1)), id=f"s{at}", max_tokens=40, seed=0)
                task = asyncio.create_task(collect(c, request))
                await asyncio.sleep(at % 17 * 0.002)
                task.cancel()
                await asyncio.wait([task])

            await asyncio.gather(*(one(at) for at in range(50)))
            await idle(c)
            engine.scheduler.check()
            assert await ids_of(c, make_request("hey", max_tokens=5, seed=0)) == expected(tuple(b"hey"), 5)

    asyncio.run(main())


def test_a_slow_reader_gets_everything_and_delays_no_other() -> None:
    async def main() -> None:
        runner = HeldRunner(held="slow")
        async with in_process(make_engine(runner)) as c:
            slow = c.generate(make_request("slow", id="slow", **LONG))
            first = await anext(slow)
            runner.go.set()
            assert await ids_of(c, make_request("hey", id="fast", **LONG)) == expected(tuple(b"hey"), 100)
            await idle(c)
            rest = [output async for output in slow]
            assert len(rest) == 1
            assert first.token_ids + rest[0].token_ids == expected(tuple(b"slow"), 100)

    asyncio.run(main())


def test_a_lost_device_fails_what_runs_and_what_comes() -> None:
    def fail(plan: StepPlan) -> Exception | None:
        return DeviceLost("fell off the bus") if plan.step == 10 else None

    async def main() -> None:
        async with in_process(make_engine(FakeRunner(fail=fail))) as c:
            with pytest.raises(EngineDead, match="fell off the bus"):
                await collect(c, make_request("hey", **LONG))
            with pytest.raises(EngineDead):
                await collect(c, make_request("hey"))
            with pytest.raises(EngineDead):
                await c.check_health()

    asyncio.run(main())


def test_a_loading_error_is_raised_by_start() -> None:
    def build(config: object, progress: object) -> FakeEngine:
        raise CheckpointError("truncated", "model.gguf")

    async def main() -> None:
        c = InProcessClient(Config(), ByteTokenizer(), build=build)
        with pytest.raises(CheckpointError, match="truncated"):
            await c.start()
        await c.close()

    asyncio.run(main())


def test_progress_is_reported() -> None:
    seen: list[tuple[str, float]] = []

    def build(config: object, progress: Callable[[str, float], None]) -> FakeEngine:
        progress("weights", 0.5)
        return make_engine()

    async def main() -> None:
        c = InProcessClient(Config(), ByteTokenizer(), lambda stage, done: seen.append((stage, done)), build)
        await c.start()
        await c.close()

    asyncio.run(main())
    assert seen == [("weights", 0.5)]


def test_close_ends_what_runs_and_is_harmless_twice() -> None:
    async def main() -> None:
        runner = HeldRunner()
        async with in_process(make_engine(runner)) as c:
            stream = c.generate(make_request("hey", **LONG))
            await anext(stream)
            runner.go.set()  # Nothing that it does from here on is seen before the client is closed.
            await c.close()
            assert [output.finish_reason async for output in stream][-1] == "abort"
            await c.close()
            with pytest.raises(EngineDead, match="closed"):
                await collect(c, make_request("hey"))

    asyncio.run(main())


def test_health_before_start_and_after() -> None:
    async def main() -> None:
        fresh = InProcessClient(Config(), ByteTokenizer(), build=lambda config, progress: make_engine())
        with pytest.raises(EngineDead):
            await fresh.check_health()
        with pytest.raises(EngineDead):
            _ = fresh.info
        async with in_process() as c:
            await c.check_health()
            assert c.info.max_model_len == 128
            assert c.info.name == "smollm2"

    asyncio.run(main())
