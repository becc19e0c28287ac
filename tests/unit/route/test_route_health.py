"""Engines that fail, drain and come back, and the events of their caches."""

from __future__ import annotations

import asyncio
import json

import pytest
from route_harness import HASTY, routed, until
from stub_engine import LAYOUT, Stub, contents
from test_route_relay import run

from headrace.route.upstream import UpstreamLost
from headrace.transfer.chain import chain, first_hash


def changes(seq: int, *events: tuple[str, list[bytes], bytes], epoch: int = 5) -> bytes:
    rows = [
        {"kind": kind, "hashes": [name.hex() for name in names], "tier": "device", "parent": parent.hex()}
        for kind, names, parent in events
    ]
    return f"event: changes\ndata: {json.dumps({'epoch': epoch, 'seq': seq, 'events': rows})}\n\n".encode()


def eventful() -> Stub:
    stub = Stub()
    stub.events = asyncio.Queue()
    return stub


def test_a_dead_engine_is_ejected_and_comes_back() -> None:
    async def check() -> None:
        async with routed([Stub(), Stub()]) as it:
            first, second = it.fleet.replicas
            it.stubs[0].stop()
            await until(lambda: first.state == "ejected")
            for _ in range(3):
                assert (await it.ask()).headers["x-headrace-replica"] == "1"
            it.stubs[1].stop()
            await until(lambda: second.state == "ejected")
            reply = await it.ask()
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "no_engine")
            assert (await it.http.get("/health")).status_code == 503
            await it.stubs[0].start(it.stubs[0].port)
            await until(lambda: first.usable)
            assert (await it.ask()).status_code == 200
            assert (await it.http.get("/health")).status_code == 200
            assert it.figures()['headrace_router_ejections{replica="0"}'] == 1

    run(check())


def test_a_check_that_fails_strangely_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with routed([eventful()]) as it:
            first = it.fleet.replicas[0]
            seen = 0

            async def strange(*args: object) -> None:
                nonlocal seen
                seen += 1
                raise RuntimeError

            with monkeypatch.context() as patched:
                patched.setattr(first.origin, "ask", strange)
                it.stubs[0].stop()
                await until(lambda: seen > 3)
            await until(lambda: first.state == "ejected")
            await it.stubs[0].start(it.stubs[0].port)
            opened = it.stubs[0].opened
            await until(lambda: first.usable and it.stubs[0].opened > opened)

    run(check())


def test_a_connection_that_ends_at_once_is_a_lost_engine() -> None:
    """It may end before the request is written to it."""

    async def check() -> None:
        async with routed([Stub()], watch=False) as it:
            origin = it.fleet.replicas[0].origin
            connection = await origin._connect()
            connection.close()
            origin.keep(connection)
            origin._idle.append((asyncio.get_running_loop().time(), connection))
            connection.usable = True  # As if its end had come after it was taken.
            with pytest.raises(UpstreamLost, match="closed at once"):
                await origin.ask(b"GET", b"/health", [])
            assert (await it.ask()).status_code == 200

    run(check())


def test_requests_on_an_engine_that_hangs_go_elsewhere() -> None:
    async def check() -> None:
        hanging = Stub(mode="hang")
        async with routed([hanging, Stub()]) as it:
            it.fleet.replicas[1].held_back = True
            asked = asyncio.create_task(it.ask())
            await until(lambda: hanging.posts)
            it.fleet.replicas[1].held_back = False

            def healthy() -> bool:
                """The checks after this one are not answered, and wait for a short time only."""
                before, it.watches[0]._times = it.watches[0]._times, HASTY
                return before is not HASTY

            hanging.healthy = healthy
            reply = await asked
            assert (reply.status_code, reply.headers["x-headrace-replica"]) == (200, "1")
            assert it.fleet.replicas[0].state == "ejected"

    run(check())


def test_an_engine_that_drains_keeps_what_it_has() -> None:
    async def check() -> None:
        stub = Stub()
        async with routed([stub, Stub()]) as it:
            it.fleet.replicas[1].held_back, stub.gate = True, asyncio.Event()
            asked = asyncio.create_task(it.ask())
            await until(lambda: stub.posts)
            it.fleet.replicas[1].held_back = False
            draining = it.fleet.replicas[0]
            was, stub.mode = stub.mode, "draining"
            await until(lambda: draining.state == "busy")
            stub.mode = was
            stub.gate.set()
            assert (await asked).headers["x-headrace-replica"] == "0"
            assert draining.ejections == 0

    run(check())


def test_events_fill_the_index_and_a_gap_asks_for_the_contents() -> None:
    async def check() -> None:
        stub = eventful()
        assert stub.events is not None
        first = first_hash(LAYOUT)
        names = list(chain(first, [(1, 2, 3, 4), (5, 6, 7, 8)]))
        stub.events.put_nowait(contents())
        async with routed([stub]) as it:
            index, name = it.fleet.index, it.fleet.replicas[0].name
            stub.events.put_nowait(changes(1, ("stored", names, first)))
            await until(lambda: index.size(name) == 2)
            stub.events.put_nowait(changes(2, ("removed", names[1:], b"")))
            await until(lambda: index.size(name) == 1)
            opened = stub.opened
            stub.events.put_nowait(changes(4, ("stored", names[1:], names[0])))
            await until(lambda: stub.opened > opened)
            assert index.size(name) == 0
            stub.events.put_nowait(contents(4, runs=[(first.hex(), "device", [one.hex() for one in names])]))
            await until(lambda: index.size(name) == 2)
            stub.events.put_nowait(changes(5, ("cleared", [], b"")))
            await until(lambda: index.size(name) == 0 and index.known(name))
            facts = it.fleet.replicas[0].facts
            assert facts is not None
            assert (facts.block_size, facts.max_num_seqs) == (4, 8)

    run(check())


def test_a_restarted_engine_starts_with_nothing() -> None:
    async def check() -> None:
        stub = eventful()
        assert stub.events is not None
        stub.events.put_nowait(contents(runs=[(first_hash(LAYOUT).hex(), "device", ["aa" * 16])]))
        async with routed([stub]) as it:
            index, name = it.fleet.index, it.fleet.replicas[0].name
            await until(lambda: index.size(name) == 1)
            stub.events.put_nowait(contents(epoch=6))
            await until(lambda: index.size(name) == 0)
            assert index.known(name)

    run(check())


def test_an_engine_without_events_is_known_by_texts() -> None:
    async def check() -> None:
        async with routed([Stub(), Stub()]) as it:
            long = "word " * 400
            first = await it.ask(messages=[{"role": "user", "content": long}])
            assert it.stubs[int(first.headers["x-headrace-replica"])].opened == 0
            for turn in range(4):
                again = await it.ask(messages=[{"role": "user", "content": f"{long} {turn}"}])
                assert again.headers["x-headrace-replica"] == first.headers["x-headrace-replica"]
                await it.ask(messages=[{"role": "user", "content": "short"}])

    run(check())


def test_the_load_of_others_is_heard() -> None:
    async def check() -> None:
        stub = eventful()
        assert stub.events is not None
        stub.events.put_nowait(contents())
        async with routed([stub]) as it:
            stub.events.put_nowait(b'event: load\ndata: {"running": 3, "waiting": 2}\n\n')
            await until(lambda: it.fleet.replicas[0].load.running == 5)

    run(check())
