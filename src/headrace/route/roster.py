"""Which engines a router has: each is watched from when it is added until it is removed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from headrace.route.fleet import Fleet
from headrace.route.model_reader import keep_reader
from headrace.route.replica import Replica
from headrace.route.replica_watch import ReplicaWatch, WatchTimes

__all__ = ["Roster"]


class Roster:
    """Thread: the event loop's."""

    def __init__(
        self, fleet: Fleet, times: WatchTimes, tokenizers: Mapping[str, str], api_key: str | None = None
    ) -> None:
        """`tokenizers`: folders by model. `api_key`: that the engines want."""
        self.fleet = fleet
        self._times, self._tokenizers, self._key = times, dict(tokenizers), api_key
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._watches: dict[str, ReplicaWatch] = {}

    def add(self, number: int, url: str) -> Replica:
        """Watch one more engine."""
        replica = Replica(number, url, self._key)
        self.fleet.replicas.append(replica)
        watch = self._watches[replica.name] = ReplicaWatch(self.fleet, replica, self._times, self._tokenizers)
        self._tasks[replica.name] = [
            asyncio.create_task(work) for work in (watch.check_health(), watch.follow_events())
        ]
        return replica

    def remove(self, replica: Replica) -> None:
        """Forget an engine. What it was asked and has not begun to answer goes elsewhere."""
        self.fleet.replicas.remove(replica)
        self._end(replica)
        if replica.facts is not None:
            keep_reader(self.fleet, replica.facts.model, self._tokenizers)

    def close(self) -> None:
        for replica in self.fleet.replicas:
            self._end(replica)
        for reader in self.fleet.readers.values():
            reader.close()

    async def all_checked(self) -> None:
        """Returns once the first check of every engine has ended, within the time of one."""
        waits = [asyncio.ensure_future(watch.checked.wait()) for watch in self._watches.values()]
        if waits:
            await asyncio.wait(waits, timeout=self._times.timeout)
        for wait in waits:
            wait.cancel()

    def _end(self, replica: Replica) -> None:
        for task in self._tasks.pop(replica.name):
            task.cancel()
        del self._watches[replica.name]
        replica.origin.abort("the engine has ended")
        self.fleet.index.forget(replica.name)
        self.fleet.texts.forget(replica.name)
