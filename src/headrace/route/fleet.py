"""All engines of a router: which could take a request, what they hold of its prompt, and which one gets it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from headrace.route.load_book import Ticket
from headrace.route.policy import Candidate, Placement, Splitting, place, split
from headrace.route.prefix_index import Held, PrefixIndex
from headrace.route.prompt_client import PromptClient
from headrace.route.replica import Replica
from headrace.route.text_prefixes import PIECE_TOKENS, TextPrefixes

__all__ = ["Choice", "Fleet", "Query"]

_NOTHING = Held()
_DEFAULT_ANSWER = 128
Layout = tuple[bytes, int]
"""What the names of an engine's blocks begin with, and the tokens of a block."""


@dataclass(slots=True)
class Query:
    """What is known of a request when it is placed."""

    model: str | None
    tokens: int = 0
    """Of the prompt."""
    splits: bool = False
    """One engine may compute its prompt, and another answer it."""
    texts: list[bytes] = field(default_factory=list)
    """Hashes of its text, if its tokens cannot be read."""
    answer: int = _DEFAULT_ANSWER
    """Tokens that it may produce."""
    chains: dict[Layout, list[bytes]] = field(default_factory=dict)
    """The hashes of its blocks by layout; empty if its tokens are not known."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A request's engine."""

    replica: Replica
    placement: Placement
    ticket: Ticket
    prefill: Choice | None = None
    """The engine that computes the prompt first, if another than `replica`."""

    def close(self) -> None:
        """The request has ended."""
        self.ticket.close()
        if self.prefill is not None:
            self.prefill.ticket.close()


class Fleet:
    """Thread: the event loop's."""

    def __init__(self, replicas: Sequence[Replica], splitting: Splitting = "auto") -> None:
        self.replicas = list(replicas)
        self._splitting = splitting
        self.index = PrefixIndex()
        self.texts = TextPrefixes()
        self.readers: dict[str, PromptClient] = {}
        """By model."""
        self._numbers = count(1)

    def models(self) -> Iterator[str]:
        """Names of the models that are served, each once, also by engines that cannot be reached now."""
        seen = set()
        for replica in self.replicas:
            if replica.facts is not None and replica.facts.model not in seen:
                seen.add(replica.facts.model)
                yield replica.facts.model

    def reads(self, model: str) -> bool:
        """The prompts of a model are read as its engines read them."""
        return model in self.readers and self.readers[model].ready

    async def query(self, path: str, body: bytes, model: str | None, answer: int | None) -> Query:
        """Read a request. Its prompt is read only if there is a choice to make."""
        query = Query(model, answer=min(max(1, answer or _DEFAULT_ANSWER), 4 * _DEFAULT_ANSWER))
        reader = self.readers.get(model or next(self.models(), ""))
        if reader is not None and reader.ready:
            layouts = {(one.facts.layout, one.facts.block_size) for one in self.replicas if one.usable and one.facts}
            query.tokens, query.chains = await reader.read(path, body, sorted(layouts))
        elif body:
            query.texts = self.texts.chain(body)
            query.tokens = len(query.texts) * PIECE_TOKENS
        return query

    def choose(self, query: Query, without: Collection[Replica] = ()) -> Choice | None:
        """Place a request, and count it there. None if no engine can take it."""
        ready = {one.name: one for one in self.replicas if one.usable and one not in without and _serves(one, query)}
        # Those that only compute prompts answer only if nobody else can.
        plain = {name: one for name, one in ready.items() if one.role != "prefill"} or ready
        candidates = list(self._candidates(query, plain))
        placement = place(candidates, query.tokens, query.answer)
        if placement is None:
            return None
        replica = ready[placement.name]
        if query.texts:
            self.texts.sent(replica.name, query.texts)
        if query.splits and self._splitting != "never" and replica.role in ("decode", "both"):
            decode = next(one for one in candidates if one.name == placement.name)
            givers = {name: one for name, one in ready.items() if _gives(one, replica)}
            first = split(decode, self._candidates(query, givers), query.tokens, query.answer, self._splitting)
            if first is not None:
                giver = self._open(ready[first.name], first, query)
                return Choice(replica, placement, self._ticket(replica, 1), giver)
        return self._open(replica, placement, query)

    def _open(self, replica: Replica, placement: Placement, query: Query) -> Choice:
        return Choice(replica, placement, self._ticket(replica, max(1, query.tokens - placement.cached)))

    def _ticket(self, replica: Replica, new: int) -> Ticket:
        return replica.load.open(new, time.monotonic(), next(self._numbers))

    def _candidates(self, query: Query, ready: dict[str, Replica]) -> Iterator[Candidate]:
        by_layout: dict[Layout, dict[str, Held]] = {}
        texts = self.texts.held(query.texts) if query.texts else {}
        for name, replica in ready.items():
            facts, load = replica.facts, replica.load
            assert facts is not None
            held, size = texts.get(name, _NOTHING), PIECE_TOKENS
            key = (facts.layout, facts.block_size)
            if key in query.chains:
                size = facts.block_size
                if key not in by_layout:
                    by_layout[key] = self.index.held(query.chains[key])
                held = by_layout[key].get(name, _NOTHING)
            yield Candidate(name, held, size, load.queued, load.running, facts.max_num_seqs, load.rates, load.last_used)


def _gives(one: Replica, to: Replica) -> bool:
    """It computes prompts for others, which can fetch its blocks, and to which they mean the same."""
    if one is to or one.role != "prefill" or one.facts is None or to.facts is None:
        return False
    if one.kv_address is None or one.connector != to.connector or time.monotonic() < one.rests_until:
        return False
    return one.facts.fits(to.facts)


def _serves(replica: Replica, query: Query) -> bool:
    return query.model is None or (replica.facts is not None and replica.facts.model == query.model)
