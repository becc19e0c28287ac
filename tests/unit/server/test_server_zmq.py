"""The prefix cache's changes over ZeroMQ, as routers made for vLLM read them."""

from __future__ import annotations

import socket
import sys
from functools import partial
from typing import Any

import msgspec
import pytest
import zmq

from headrace.client.cache_feed import CacheFeed
from headrace.core.cache_events import CacheBatch, CacheEvent, CacheRun, CacheSnapshot
from headrace.engine.wire import CacheChanged, CacheContents, Command, WatchCache
from headrace.errors import ConfigError
from headrace.server.zmq_events import ZmqPublisher, check_endpoint

ONE, TWO, SALTED = b"1" * 16, b"2" * 16, b"s" * 16
FIRST = b"f" * 16


def number(name: bytes) -> int:
    return int.from_bytes(name[:8], "big")


def free_address() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{one.getsockname()[1]}"


def received(messages: list[CacheContents | CacheChanged]) -> list[tuple[int, Any]]:
    """(Number, events) of each batch that a subscriber gets."""
    sent: list[Command] = []
    feed = CacheFeed(sent.append)
    publisher = ZmqPublisher("tcp://127.0.0.1:*", feed, 2)
    assert sent == [WatchCache(True, True)]
    subscriber = zmq.Context.instance().socket(zmq.SUB)
    try:
        subscriber.setsockopt(zmq.SUBSCRIBE, b"")
        subscriber.connect(publisher._socket.getsockopt(zmq.LAST_ENDPOINT).decode())
        empty = CacheChanged(CacheBatch(1, 0, [CacheEvent("cleared", [])]))
        start = 0
        while not subscriber.poll(10):  # A subscriber gets nothing before its connection stands.
            feed.receive(empty)
            start += 1
        while int.from_bytes(subscriber.recv_multipart()[1], "big") != start - 1:
            pass
        for message in messages:
            feed.receive(message)
        frames = [subscriber.recv_multipart() for _ in messages]
    finally:
        subscriber.close(0)
        publisher.close()
    assert sent[-1] == WatchCache(False)
    found = []
    for topic, seq, payload in frames:
        stamp, events, rank = msgspec.msgpack.decode(payload)
        assert (topic, rank, stamp > 1e9) == (b"", 0, True)
        found.append((int.from_bytes(seq, "big") - start, events))
    return found


def test_contents_and_changes_come_in_order() -> None:
    runs = [CacheRun(FIRST, [ONE], "device", [5, 6]), CacheRun(FIRST, [SALTED], "device", [7, 8], "", True)]
    batch = CacheBatch(
        1,
        4,
        [
            CacheEvent("stored", [TWO], "device", ONE, [9, 10], "lora"),
            CacheEvent("stored", [TWO], "disk", ONE, [9, 10]),
            CacheEvent("removed", [SALTED, TWO]),
            CacheEvent("cleared", []),
        ],
    )
    assert received([CacheContents(CacheSnapshot(1, 3, runs)), CacheChanged(batch)]) == [
        (0, [["AllBlocksCleared"], ["BlockStored", [number(ONE)], None, [5, 6], 2, None, "GPU", None]]),
        (
            1,
            [
                ["BlockStored", [number(TWO)], number(ONE), [9, 10], 2, None, "GPU", "lora"],
                ["BlockStored", [number(TWO)], number(ONE), [9, 10], 2, None, "STORAGE", None],
                ["BlockRemoved", [number(TWO)], "GPU"],
                ["AllBlocksCleared"],
            ],
        ),
    ]


def test_an_address_that_cannot_be_used_is_named() -> None:
    for use in (check_endpoint, lambda address: ZmqPublisher(address, CacheFeed(lambda command: None), 16)):
        with pytest.raises(ConfigError, match=r"--kv-events-endpoint 'nowhere'.*tcp://\*:PORT"):
            use("nowhere")
    check_endpoint(free_address())


def test_a_feed_asks_while_someone_listens() -> None:
    sent: list[Command] = []
    feed = CacheFeed(sent.append)
    feed.renew()
    assert not sent, "nobody listens"
    got: list[tuple[str, object]] = []
    listeners = [partial(lambda name, event: got.append((name, event)), name) for name in "ab"]
    feed.open(listeners[0])
    feed.open(listeners[1], tokens=True)
    feed.renew()
    event = CacheContents(CacheSnapshot(1, 0, []))
    feed.receive(event)
    assert got == [("a", event), ("b", event)]
    feed.close(listeners[1])
    feed.close(listeners[1])
    feed.close(listeners[0])
    assert sent == [WatchCache(True), WatchCache(True, True), WatchCache(True, True), WatchCache(False)]


def test_tiers_are_media() -> None:
    """Of blocks beside the device hashes alone are known."""
    first = CacheContents(CacheSnapshot(1, 0, [CacheRun(b"", [ONE], "disk")]))
    events = [CacheEvent("stored", [TWO], "host"), CacheEvent("removed", [ONE], "disk")]
    (_, contents), (_, changes) = received([first, CacheChanged(CacheBatch(1, 1, events))])
    assert contents == [["AllBlocksCleared"], ["BlockStored", [number(ONE)], None, [], 0, None, "STORAGE", None]]
    assert changes == [
        ["BlockStored", [number(TWO)], None, [], 0, None, "CPU", None],
        ["BlockRemoved", [number(ONE)], "STORAGE"],
    ]


def test_a_missing_library_comes_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[events\]'"):
        check_endpoint("tcp://127.0.0.1:1")
