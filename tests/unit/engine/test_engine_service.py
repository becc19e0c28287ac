"""The loop around the engine: what it waits for, and how it reports a step that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from engine_fakes import HeldRunner, expected, in_process, make_engine, make_request

from headrace.engine.service import StallClock, serve
from headrace.engine.wire import Abort, Add, Command, Deltas, Event, GetStats, Refused, Shutdown, StatsReply
from headrace.errors import EngineDead
from headrace.types import Request, SamplingParams


def run(script: list[list[Command]]) -> tuple[list[Event], list[float]]:
    """Serve a script of what arrives at each turn; then Shutdown once all is done. Returns events and the waits asked
    for."""
    engine, sent, waits = make_engine(), [], []
    turns: Iterator[list[Command]] = iter(script)

    def receive(wait: float) -> list[Command]:
        waits.append(wait)
        commands = next(turns, None)
        if commands is not None:
            return commands
        return [Shutdown()] if wait == 1.0 else []

    serve(engine.core, receive, sent.append, StallClock())
    return sent, waits


def request(id: str = "a", **params: object) -> Request:
    return Request(id, (1, 2, 3), SamplingParams(**{"max_tokens": 4, **params}))  # type: ignore[arg-type]


def tokens(events: list[Event], id: str) -> list[int]:
    deltas = [delta for event in events if isinstance(event, Deltas) for delta in event.deltas]
    return [token for delta in deltas if delta.request_id == id for token in delta.token_ids]


def test_children_get_their_own_ids_and_seeds() -> None:
    sent, _ = run([[Add(request(), [("x", 5), ("y", 6)])]])
    assert tokens(sent, "x") == expected((1, 2, 3), 4, seed=5)
    assert tokens(sent, "y") == expected((1, 2, 3), 4, seed=6)


def test_it_sleeps_only_while_idle() -> None:
    _, waits = run([[], [Add(request(), [("x", 0)])]])
    assert waits[:2] == [0.0, 1.0]
    assert set(waits[2:-1]) == {0.0}
    assert waits[-1] == 1.0


def test_a_refusal_names_every_child() -> None:
    (refused,), _ = run([[Add(request(max_tokens=1000), [("x", 0), ("y", 1)])]])
    assert isinstance(refused, Refused)
    assert refused.ids == ["x", "y"]
    assert refused.error.kind == "HeadraceError"


def test_aborted_before_it_ran() -> None:
    sent, _ = run([[Add(request(), [("x", 0)]), Abort(["x"])], [GetStats(7)]])
    assert [type(event) for event in sent] == [StatsReply]


def test_the_stall_clock_measures_how_long_a_step_hangs() -> None:
    now = [10.0]
    pulse = StallClock(lambda: now[0])
    assert pulse.stalled() == 0
    pulse.beat(busy=True)
    now[0] = 13.5
    assert pulse.stalled() == 3.5
    pulse.beat(busy=False)
    assert pulse.stalled() == 0


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("did not happen within a minute")


def test_a_step_that_never_ends_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = HeldRunner()

    async def main() -> None:
        async with in_process(make_engine(runner)) as client:
            await client.check_health()
            stream = client.generate(make_request("hey", max_tokens=20))
            await anext(stream)
            monkeypatch.setattr("headrace.client.in_process_client._STALL", 0.1)
            monkeypatch.setattr("headrace.client.base_client._STATS_TIMEOUT", 0.1)
            await until(lambda: client._stall_clock.stalled() > 0.1)
            with pytest.raises(EngineDead, match="not ended"):
                await client.check_health()
            with pytest.raises(EngineDead, match="answer"):
                await client.stats()
            monkeypatch.setattr("headrace.client.in_process_client._STALL", 600.0)
            runner.go.set()
            assert [output.finish_reason async for output in stream][-1] == "length"
            await client.check_health()

    asyncio.run(main())


def test_a_long_step_gives_the_last_known_stats(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = HeldRunner()

    async def main() -> None:
        async with in_process(make_engine(runner)) as client:
            assert (await client.stats()).scheduler.running == 0
            stream = client.generate(make_request("hey", max_tokens=20))
            await anext(stream)
            sent: list[Command] = []
            put = client._send
            monkeypatch.setattr(client, "_send", lambda command: (sent.append(command), put(command)))
            await until(lambda: client._stall_clock.stalled() > 0.1)
            monkeypatch.setattr("headrace.client.base_client._FRESH_TIMEOUT", 0.0)
            for _ in range(5):
                assert (await client.stats()).scheduler.running == 0
            # Questions that nobody answers do not pile up.
            assert [type(command) for command in sent] == [GetStats]
            monkeypatch.setattr("headrace.client.base_client._FRESH_TIMEOUT", 600.0)
            runner.go.set()
            assert (await client.stats()).steps > 0
            assert [output.finish_reason async for output in stream][-1] == "length"

    asyncio.run(main())


def test_many_slow_readers_hold_one_piece_each() -> None:
    async def main() -> None:
        engine = make_engine(num_blocks=2000, max_num_seqs=32, max_num_batched_tokens=64)
        async with in_process(engine) as client:
            streams = [
                client.generate(make_request((at, 1), id=f"r{at}", max_tokens=120, seed=at, logprobs=1))
                for at in range(32)
            ]
            firsts = [await anext(stream) for stream in streams]
            quick = [o async for o in client.generate(make_request("hey", id="quick", max_tokens=100, seed=0))]
            assert [i for o in quick for i in o.token_ids] == expected(tuple(b"hey"), 100)
            await until(lambda: not engine.core.has_work())
            await client.stats()
            for at, stream in enumerate(streams):
                rest = [output async for output in stream]
                assert len(rest) <= 1
                ids = [i for output in (firsts[at], *rest) for i in output.token_ids]
                assert ids == expected((at, 1), 120, seed=at)
                assert sum(len(output.logprobs or []) for output in (firsts[at], *rest)) == 120

    asyncio.run(main())
