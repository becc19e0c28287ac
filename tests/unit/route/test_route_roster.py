"""The engines of a router come and go."""

from __future__ import annotations

from test_route_relay import run

from headrace.route.fleet import Fleet
from headrace.route.replica_watch import WatchTimes
from headrace.route.roster import Roster


def test_nothing_is_kept_of_an_engine_that_has_left() -> None:
    async def check() -> None:
        fleet = Fleet([])
        roster = Roster(fleet, WatchTimes(), {})
        first, second = (roster.add(number, f"http://127.0.0.1:{number + 1}") for number in range(2))
        chain = fleet.texts.chain(b'{"prompt": "%s"}' % (b"a" * 600))
        for one in (first, second):
            fleet.texts.sent(one.name, chain)
        roster.remove(first)
        assert list(fleet.texts.held(chain)) == [second.name]
        roster.close()

    run(check())
