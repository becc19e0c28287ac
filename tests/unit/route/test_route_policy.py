"""Where a request goes."""

from __future__ import annotations

import pytest

from headrace.route.load_book import LoadBook
from headrace.route.policy import Candidate, Rates, cached_tokens, cost, least_loaded, place, round_robin, split
from headrace.route.prefix_index import Held

IDLE = Candidate("idle", Held(), 16, 0, 0, 8)


def test_an_idle_engine_with_the_prefix_wins() -> None:
    holder = IDLE._replace(name="holder", held=Held(10), last_used=9)
    chosen = place([IDLE, holder], 200)
    assert chosen is not None
    assert (chosen.name, chosen.cached) == ("holder", 160)


def test_a_long_queue_outweighs_a_short_prefix() -> None:
    holder = IDLE._replace(name="holder", held=Held(2), queued=4000)
    chosen = place([IDLE, holder], 200)
    assert chosen is not None
    assert (chosen.name, chosen.cached) == ("idle", 0)


def test_running_sequences_count() -> None:
    full = IDLE._replace(name="full", running=8)
    half = IDLE._replace(name="half", running=4)
    assert cost(full, 100, 50) > cost(half, 100, 50) > cost(IDLE, 100, 50)
    assert cost(full, 100, 50) - cost(full._replace(slots=9), 100, 50) > 0, "no slot is free"


def test_a_slower_tier_is_worth_less() -> None:
    prices = [cost(IDLE._replace(held=held), 200, 10) for held in (Held(10), Held(0, 10), Held(0, 0, 10), Held())]
    assert prices == sorted(prices)
    assert len(set(prices)) == 4


def test_a_tier_that_is_slower_than_computing_is_no_reason() -> None:
    slow = Rates(disk=2.0)
    disk = IDLE._replace(name="disk", held=Held(0, 0, 10), rates=slow)
    chosen = place([disk, IDLE], 200)
    assert chosen is not None
    assert chosen.name == "idle"


def test_equal_engines_take_turns() -> None:
    engines = [IDLE._replace(name=str(i), last_used=10 - i) for i in range(4)]
    chosen = place(engines, 100)
    assert chosen is not None
    assert chosen.name == "3", "it got a request the longest ago"


def test_the_last_token_is_always_computed() -> None:
    assert cached_tokens(IDLE._replace(held=Held(10)), 160) == 159


def test_a_long_prompt_is_computed_elsewhere_if_many_decode() -> None:
    busy, giver = IDLE._replace(name="busy", running=6), IDLE._replace(name="giver")
    chosen = split(busy, [giver], 2000)
    assert chosen is not None
    assert chosen.name == "giver"
    assert split(IDLE, [giver], 2000) is None, "nobody is disturbed"
    assert split(busy, [giver], 200) is None, "too short"
    assert split(busy._replace(held=Held(120)), [giver], 2000) is None, "little is left to compute"
    assert split(busy, [giver._replace(queued=20_000)], 2000) is None, "it is busy, too"
    assert split(busy, [], 2000) is None


def test_no_engine_no_place() -> None:
    assert place([], 10) is None
    assert round_robin([], 10) is None
    assert least_loaded([], 10) is None


def test_the_plain_policies() -> None:
    one = IDLE._replace(name="one", last_used=1, running=3, held=Held(10))
    two = IDLE._replace(name="two", last_used=2)
    first, second = round_robin([two, one], 200), least_loaded([one, two], 200)
    assert first is not None
    assert second is not None
    assert (first.name, second.name) == ("one", "two")


def test_load_is_counted_when_a_request_is_sent() -> None:
    book = LoadBook()
    one, two = book.open(100, 0.0, 1), book.open(50, 0.0, 2)
    assert (book.queued, book.running, book.tickets, book.last_used) == (150, 0, 2, 2)
    one.first_token(0.1)
    one.first_token(0.2)
    assert (book.queued, book.running) == (50, 1)
    two.close()
    one.close()
    one.close()
    assert (book.queued, book.running, book.tickets) == (0, 0, 0)


def test_the_rate_is_measured_over_all_tokens_before_the_first_one() -> None:
    book = LoadBook(Rates(prefill=1.0))
    book.open(100, 0.0, 1)
    book.open(100, 0.0, 2).first_token(0.4)
    assert round(book.rates.prefill, 6) == 0.9 * 1.0 + 0.1 * 2.0
    book.open(10, 0.0, 3)
    before = book.rates
    LoadBook(before).open(10, 0.0, 1).first_token(5.0)
    assert book.rates == before, "a short prompt says nothing"


def test_sequences_of_others_count_too() -> None:
    book = LoadBook()
    book.open(10, 0.0, 1)
    book.reported(4)
    assert book.running == 3
    book.reported(0)
    assert book.running == 0


def test_the_rate_is_learned_from_whole_answers_too() -> None:
    book = LoadBook(Rates(prefill=1.0))
    ticket = book.open(100, 0.0, 1)
    ticket.told(0.3)
    assert book.rates.prefill == pytest.approx(0.9 * 1.0 + 0.1 * 3.0)
    assert (book.queued, book.running) == (0, 1)
    ticket.close()
    assert book.running == 0


def test_a_tier_is_dearer_than_the_device_and_hardly_dearer_than_computing() -> None:
    def price(held: Held, **rates: float) -> float:
        return cost(Candidate("a", held, 16, 0, 0, 8, Rates(**rates)), 1600, 10)

    places = [Held(device=50), Held(host=50), Held(disk=50), Held()]
    assert sorted(places, key=price) == places
    fast = [price(held, prefill=0.01) for held in places]
    assert fast[0] < fast[3] < fast[1] == fast[2] < 1.05 * fast[3]
