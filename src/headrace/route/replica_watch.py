"""Follows one engine: checks its health, and reads the events of its prefix cache into the index."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import msgspec

from headrace.deadlines import in_time
from headrace.route.fleet import Fleet
from headrace.route.model_reader import keep_reader
from headrace.route.replica import Facts, Replica
from headrace.route.upstream import Answer, UpstreamLost
from headrace.server.cache_forms import EVENTS_PATH, Changes, Contents, Load

__all__ = ["ReplicaWatch", "WatchTimes"]

_log = logging.getLogger(__name__)
_SILENCE = 15.0
"""Seconds without an event after which the stream of events is opened again. Engines report their load every second."""
_ROLE_EVERY = 4
"""Checks of the health for one look at the role."""
_MOST_EVENT = 1 << 28
"""Bytes of one event."""


class WatchTimes(msgspec.Struct, frozen=True):
    """Seconds."""

    interval: float = 0.5
    """Between two checks."""
    timeout: float = 3.0
    """For the answer to a check."""


class _Models(msgspec.Struct):
    data: list[dict[str, Any]]


class _Role(msgspec.Struct):
    role: str | None = None
    connector: str | None = None
    address: str | None = None


class _ErrorDetail(msgspec.Struct):
    message: str = ""


class _Error(msgspec.Struct):
    error: _ErrorDetail


_contents = msgspec.json.Decoder(Contents).decode
_changes = msgspec.json.Decoder(Changes).decode
_load = msgspec.json.Decoder(Load).decode


class ReplicaWatch:
    """Two tasks that run until they are cancelled. Thread: the event loop's."""

    def __init__(self, fleet: Fleet, replica: Replica, times: WatchTimes, tokenizers: dict[str, str]) -> None:
        """`tokenizers`: folders by model, for those that the engine's own path does not lead to."""
        self._fleet, self._replica, self._times, self._tokenizers = fleet, replica, times, tokenizers
        self._checks = count()
        self.checked = asyncio.Event()
        """Set once the first check has ended."""

    async def check_health(self) -> None:
        while True:
            try:
                await self._check()
            except Exception:
                # Without checks the engine would never come back.
                _log.exception("a check of replica %d failed", self._replica.number)
            self.checked.set()
            await asyncio.sleep(self._times.interval)

    async def follow_events(self) -> None:
        while True:
            try:
                if self._replica.state == "ready" and await self._read_events():
                    return
            except (UpstreamLost, asyncio.TimeoutError, msgspec.MsgspecError, ValueError) as error:
                _log.info("replica %d: its cache events ended: %s", self._replica.number, str(error) or "silence")
            except Exception:
                _log.exception("reading the cache events of replica %d failed", self._replica.number)
            self._fleet.index.forget(self._replica.name)
            self._replica.load.reported(0, 0)
            await asyncio.sleep(self._times.interval)

    async def _check(self) -> None:
        replica = self._replica
        try:
            status, body = await in_time(self._times.timeout, self._get(b"/health"))
            if status == 200 and replica.card is None:
                await in_time(self._times.timeout, self._read_card())
            if status == 200 and next(self._checks) % _ROLE_EVERY == 0:
                await in_time(self._times.timeout, self._read_role())
        except asyncio.TimeoutError:
            replica.failed(f"no answer within {self._times.timeout:g} s")
        except UpstreamLost as error:
            replica.failed(str(error))
        else:
            replica.answered(None if status == 200 else _why(status, body))
            if replica.state == "ready" and replica.facts is not None:
                replica.readied.set()

    async def _read_role(self) -> None:
        """Read the engine's part in a group that exchanges blocks, which may change at any time."""
        status, body = await self._get(b"/v1/engine/role")
        told = msgspec.json.decode(body, type=_Role) if status == 200 else _Role()
        replica = self._replica
        replica.role, replica.connector, replica.kv_address = told.role, told.connector, told.address

    async def _read_card(self) -> None:
        """Read what the engine serves, as long as its events have not said it."""
        status, body = await self._get(b"/v1/models")
        if status != 200:
            _log.warning("replica %d lists no models: %s", self._replica.number, _why(status, body))
            return
        cards = msgspec.json.decode(body, type=_Models).data
        if cards:
            self._replica.card = cards[0]
            if self._replica.facts is None:
                limit = cards[0].get("max_model_len") or Facts("").max_model_len
                self._replica.facts = Facts(str(cards[0].get("id")), max_model_len=limit)

    async def _get(self, target: bytes) -> tuple[int, bytes]:
        answer = await self._ask(target)
        try:
            pieces = []
            while piece := await answer.read():
                pieces.append(piece)
        finally:
            answer.close()
        return answer.status, b"".join(pieces)

    async def _ask(self, target: bytes) -> Answer:
        key = self._replica.api_key
        headers = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]
        return await self._replica.origin.ask(b"GET", target, headers)

    async def _read_events(self) -> bool:
        """Read events until a gap. True if the engine has none."""
        answer = await in_time(self._times.timeout, self._ask(EVENTS_PATH.encode()))
        try:
            if answer.status == 404:
                self._without_events()
                return True
            if answer.status != 200:
                raise UpstreamLost(f"status {answer.status}")
            async for name, data in _events(answer):
                if not self._apply(name, data):
                    return False
        finally:
            answer.close()
        return False

    def _without_events(self) -> None:
        _log.warning(
            "replica %d (%s) has no %s: its requests are placed by the beginnings of their texts, which is approximate",
            self._replica.number,
            self._replica.name,
            EVENTS_PATH,
        )

    def _apply(self, name: bytes, data: bytes) -> bool:
        """False: something was missed, and the contents are needed."""
        engine, index = self._replica.name, self._fleet.index
        if name == b"contents":
            self._replace(_contents(data))
        elif name == b"changes":
            changes = _changes(data)
            if not index.follow(engine, changes.epoch, changes.seq):
                return False
            for one in changes.events:
                names = [bytes.fromhex(text) for text in one.hashes]
                if one.kind == "stored":
                    index.store(engine, bytes.fromhex(one.parent), names, one.tier)
                elif one.kind == "removed":
                    index.remove(engine, names, one.tier)
                elif one.kind == "cleared":
                    index.clear(engine)
        elif name == b"load":
            load = _load(data)
            self._replica.load.reported(load.running + load.waiting, load.waiting)
        return True

    def _replace(self, contents: Contents) -> None:
        replica = self._replica
        facts = Facts(
            contents.model,
            contents.path,
            bytes.fromhex(contents.layout),
            contents.block_size,
            contents.max_model_len,
            contents.max_num_seqs,
            bytes.fromhex(contents.content),
            contents.files,
        )
        runs = (
            (bytes.fromhex(parent), tier, [bytes.fromhex(name) for name in names])
            for parent, tier, names in contents.runs
        )
        self._fleet.index.replace(replica.name, contents.epoch, contents.seq, runs)
        replica.facts = facts
        keep_reader(self._fleet, facts.model, self._tokenizers)


async def _events(answer: Answer) -> AsyncIterator[tuple[bytes, bytes]]:
    """(Name, data) of each event. Raises TimeoutError after a silence."""
    rest = b""
    while piece := await in_time(_SILENCE, answer.read()):
        *blocks, rest = (rest + piece).split(b"\n\n")
        if len(rest) > _MOST_EVENT:
            raise UpstreamLost(f"an event is larger than {_MOST_EVENT} bytes")
        for block in blocks:
            name, _, data = block.partition(b"\ndata: ")
            if name.startswith(b"event: ") and data:
                yield name[7:], data


def _why(status: int, body: bytes) -> str:
    try:
        message = msgspec.json.decode(body, type=_Error).error.message
    except msgspec.MsgspecError:
        message = ""
    return message or f"status {status}"
