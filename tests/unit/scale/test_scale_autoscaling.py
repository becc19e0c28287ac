"""How many engines the load needs: by table, and over the course of a day."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headrace.route.load_book import LoadBook
from headrace.route.replica import Facts, Replica
from headrace.scale.autoscaling import Decision, Memory, Seen, Targets, decide
from headrace.scale.observing import observe

TARGETS = Targets(least=1, most=8, queue=4, ttft=2, up_after=3, down_after=60)
SHORT, IDLE, NEW = Memory(short_since=96.0), Memory(idle_since=30.0), Memory()


@pytest.mark.parametrize(
    ("seen", "memory", "count"),
    [
        # Below and above the bounds: at once.
        (Seen(100, ready=0), NEW, 1),
        (Seen(100, ready=9), NEW, 8),
        # The queue: as many as bring it to its target, at most twice as many.
        (Seen(100, ready=2, waiting=9), SHORT, 3),
        (Seen(100, ready=2, waiting=8), SHORT, 2),
        (Seen(100, ready=2, waiting=16), SHORT, 4),
        (Seen(100, ready=2, waiting=100), SHORT, 4),
        (Seen(100, ready=6, waiting=100), SHORT, 8),
        (Seen(100, ready=8, waiting=100), SHORT, 8),
        # Those that come count.
        (Seen(100, ready=2, coming=2, waiting=16), SHORT, 4),
        (Seen(100, ready=2, coming=1, waiting=16), SHORT, 4),
        (Seen(100, ready=1, coming=1, waiting=8), SHORT, 2),
        # First tokens: one more, and not as long as others come.
        (Seen(100, ready=2, waiting=3, ttft=2.5), SHORT, 3),
        (Seen(100, ready=2, waiting=3, ttft=1.5), SHORT, 2),
        (Seen(100, ready=2, coming=1, waiting=3, ttft=2.5), SHORT, 3),
        # No more requests wait than there are engines: another would not help.
        (Seen(100, ready=2, waiting=2, ttft=9), SHORT, 2),
        # Not before it has lasted.
        (Seen(98, ready=2, waiting=16), SHORT, 2),
        (Seen(98, ready=2, waiting=16), NEW, 2),
        # Fewer: one at a time, after a while.
        (Seen(100, ready=4, running=10, slots=32), IDLE, 3),
        (Seen(100, ready=4, running=10, slots=32), Memory(idle_since=41.0), 4),
        (Seen(100, ready=1, running=0, slots=32), IDLE, 1),
        # Not if it would be full, slow or waited for.
        (Seen(100, ready=4, running=58, slots=32), IDLE, 4),
        (Seen(100, ready=4, running=57, slots=32), IDLE, 3),
        (Seen(100, ready=4, running=1, slots=32, waiting=1), IDLE, 4),
        (Seen(100, ready=4, running=1, slots=32, ttft=1.1), IDLE, 4),
        (Seen(100, ready=3, coming=1, running=1, slots=32), IDLE, 4),
        # Engines that take no requests are there, and do no work: their part of the load needs others.
        (Seen(100, ready=1, away=1, waiting=8), SHORT, 3),
        (Seen(100, ready=1, away=1, waiting=100), SHORT, 3),
        (Seen(100, ready=1, away=1, waiting=3, ttft=2.5), SHORT, 3),
        (Seen(100, ready=3, away=1, running=10, slots=32), IDLE, 3),
        (Seen(100, ready=0, away=1), NEW, 1),
        (Seen(100, ready=0, away=2), IDLE, 2),
        # Slots that are not known hold nothing.
        (Seen(100, ready=4, running=1), IDLE, 4),
    ],
)
def test_the_number_of_engines(seen: Seen, memory: Memory, count: int) -> None:
    decision = decide(TARGETS, seen, memory)
    assert decision.engines == count
    assert bool(decision.why) == (count != seen.ready + seen.coming + seen.away)


def test_what_is_remembered() -> None:
    busy, calm = Seen(100, ready=2, waiting=16), Seen(100, ready=2, slots=8)
    assert decide(TARGETS, busy, NEW) == Decision(2, "", Memory(short_since=100))
    assert decide(TARGETS, busy, IDLE).memory == Memory(short_since=100)
    assert decide(TARGETS, calm, NEW) == Decision(2, "", Memory(idle_since=100))
    assert decide(TARGETS, calm, SHORT).memory == Memory(idle_since=100)
    # A change begins anew.
    assert decide(TARGETS, busy, SHORT).memory == decide(TARGETS, calm, IDLE).memory == NEW


def test_a_day_goes_up_and_down_without_swinging() -> None:
    """Each engine begins two requests a second, and loads for ten seconds."""
    targets = TARGETS._replace(least=1, most=6)
    ready, coming, queue, memory = 1, [], 0.0, NEW
    counts = []
    for now in range(1200):
        rate = 9.0 if 100 <= now < 400 else 0.5
        ready, coming = ready + sum(at <= now for at in coming), [at for at in coming if at > now]
        queue = max(0.0, queue + rate - 2.0 * ready)
        running = min(int(rate * 4), 8 * ready)
        seen = Seen(now, ready, len(coming), int(queue), running, 8, queue / max(1, 2 * ready))
        engines, _, memory = decide(targets, seen, memory)
        coming += [now + 10] * (engines - ready - len(coming))
        ready = min(ready, engines)
        counts.append(ready)
    assert max(counts) == 6
    assert counts[99] == counts[-1] == 1
    assert counts[399] >= 5
    more = [two > one for one, two in pairwise(counts) if one != two]
    assert more == sorted(more, reverse=True), "first more, then fewer, and never back and forth"


def replica(number: int, state: str = "ready") -> Replica:
    one = Replica(number, f"http://x:{number + 1}")
    one.facts = Facts("tiny", max_num_seqs=8 + number)
    one.state = state
    return one


def test_what_is_seen() -> None:
    first, second, third = replica(0), replica(1), replica(2, "ejected")
    old = first.load.open(10, 90.0, 1)
    tickets = [second.load.open(10, 99.0, 2) for _ in range(9)]
    for number, ticket in enumerate(tickets[:6]):
        ticket.first_token(99.1 + number / 10)
    tickets[0].close()
    third.load.open(10, 0.0, 3)
    assert observe([first, second, third], 2, 100.0) == Seen(100.0, 2, 2, 4, 5, 8, 10.0)
    old.close()
    seen = observe([first, second], 0, 100.0)
    assert (seen.waiting, round(seen.ttft, 3)) == (3, 1.0)
    for ticket in tickets:
        ticket.close()
    seen = observe([first, second], 0, 101.0)
    assert (seen.waiting, seen.running, round(seen.ttft, 3)) == (0, 0, 0.5)
    assert observe([first, second], 0, 200.0).ttft == 0, "what is long ago does not count"
    second.load.reported(7, 3)
    assert observe([first, second], 0, 200.0).waiting == 3, "requests of others wait, too"


def test_first_tokens_that_are_only_expected_are_no_measurement() -> None:
    book = LoadBook()
    ticket = book.open(100, 1.0, 1)
    assert (book.waiting, list(book.waiting_since)) == (1, [1.0])
    ticket.first_token()
    assert (book.waiting, len(book.first_tokens)) == (0, 0)
