"""Messages between two processes: complete, in order, without waiting, and the exit of the other end."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator

import pytest

from headrace.engine.channel import Channel

Pair = tuple[Channel, Channel]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = (Channel(sock) for sock in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def received(channel: Channel, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count and not channel.closed:
        found += channel.receive(10)
    return found


def test_messages_of_any_length_stay_complete_and_in_order(pair: Pair) -> None:
    drawn = random.Random(0)
    messages = [drawn.randbytes(drawn.choice((0, 1, 7, 8, 1000, 300_000))) for _ in range(60)]
    threading.Thread(target=lambda: [pair[0].send(one) for one in messages] and pair[0].flush_for(60)).start()
    assert received(pair[1], 60) == messages


def test_a_message_that_comes_in_pieces() -> None:
    raw, end = socket.socketpair()
    with raw:
        channel = Channel(end)
        for piece in (b"\3\0\0", b"\0\0\0\0\0ab", b"c\1" + bytes(7), b"d" + b"\2"):
            raw.sendall(piece)
            found = channel.receive(10)
            assert found == {b"c\1" + bytes(7): [b"abc"], b"d\2": [b"d"]}.get(piece, [])
        channel.close()


def test_a_sender_does_not_wait_for_a_reader(pair: Pair) -> None:
    """Far more than a socket holds is kept, and leaves when it can."""
    messages = [bytes([at]) * 100_000 for at in range(100)]
    taken = [pair[0].send(one) for one in messages]
    assert not all(taken)
    assert not pair[0].flush()
    found: list[bytes] = []
    while len(found) < 100:
        found += pair[1].receive()
        # Who receives sends meanwhile what is left.
        assert pair[0].receive() == []
    assert found == messages
    assert pair[0].flush()


def test_both_ways_at_once(pair: Pair) -> None:
    """Two ends that only send would otherwise wait for each other for ever."""
    for at in range(50):
        for end in pair:
            end.send(bytes([at]) * 50_000)
    found: tuple[list[bytes], list[bytes]] = ([], [])
    while min(map(len, found)) < 50:
        for end, place in zip(pair, found, strict=True):
            place.extend(end.receive())
    assert found[0] == found[1] == [bytes([at]) * 50_000 for at in range(50)]


def test_any_thread_may_send(pair: Pair) -> None:
    def send(who: int) -> None:
        for at in range(300):
            pair[0].send(bytes([who]) + bytes(at * 10))

    threads = [threading.Thread(target=send, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    found: list[bytes] = []
    while len(found) < 1200:
        found += pair[1].receive(0.01)
        pair[0].flush()
    for thread in threads:
        thread.join()
    for who in range(4):
        assert [len(one) for one in found if one[0] == who] == [1 + at * 10 for at in range(300)]


def test_the_last_messages_arrive_before_the_end(pair: Pair) -> None:
    pair[0].send(b"last words")
    assert not pair[1].other_end_closed(0)
    pair[0].close()
    assert pair[1].other_end_closed(10)
    assert pair[1].receive(10) == [b"last words"]
    assert pair[1].receive(10) == []
    assert pair[1].closed
    assert pair[1].send(b"nobody reads this"), "dropped, and nothing is left of it"


def test_the_end_amid_a_message() -> None:
    raw, end = socket.socketpair()
    channel = Channel(end)
    raw.sendall(b"\5\0\0\0\0\0\0\0ab")
    raw.close()
    assert channel.receive(10) == channel.receive(10) == []
    assert channel.closed
    channel.close()


def test_it_does_not_wait_longer_than_requested(pair: Pair) -> None:
    assert pair[0].receive(0.001) == []
    assert not pair[0].other_end_closed(0.001)
    pair[0].send(bytes(10_000_000))
    pair[0].flush_for(0.001)
    assert not pair[0].flush()
