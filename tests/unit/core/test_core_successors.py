"""What follows a sequence begins with the step behind its last token, before that token is known."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from core_driver import SMALL, Driver, naive, request, same

from headrace.errors import NeverFits
from headrace.types import Delta, Request


def ids(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(2, SMALL.vocab_size) for _ in range(count)]


class Link:
    """One request of a chain: text, and then so many tokens."""

    def __init__(self, text: Iterable[int], tokens: int, **params: Any) -> None:
        self.text, self.tokens, self.params = tuple(text), tokens, params


def chained(name: str, links: Sequence[Link], **more: Any) -> Request:
    """The first request, which names the others."""
    then: Request | None = None
    for at in reversed(range(len(links))):
        link = links[at]
        made = request(f"{name}{at}", link.text, link.tokens, **more, **link.params)
        then = replace(made, keep=True, then=then)
    assert then is not None
    return then


class Chains(Driver):
    """Plays the engine's part: adds what follows, unless it has begun by itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.begun: list[str] = []
        self.added: list[str] = []

    def begin(self, first: Request) -> None:
        self.know(first.then)
        self.add(first)

    def know(self, request: Request | None) -> None:
        while request is not None:
            self.requests[request.id] = request
            request = request.then

    def take(self, deltas: list[Delta]) -> list[Delta]:
        found = super().take(deltas)
        for delta in found:
            before = self.requests[delta.request_id]
            if delta.finish_reason not in ("stop", "length") or before.then is None:
                assert not delta.went_on
                continue
            tokens = self.records[before.id].tokens
            kept = tokens if delta.stop_token is None else tokens[:-1]
            prompt = (*before.prompt, *kept, *before.then.prompt)
            params = before.then.params.behind(len(before.prompt) + len(kept))
            follows = replace(before.then, prompt=prompt, params=params, extends=before.id)
            if delta.went_on:
                self.begun.append(follows.id)
                self.requests[follows.id] = follows
                self.records[follows.id] = type(self.records[before.id])()
            else:
                self.added.append(follows.id)
                self.add(follows)
        return found

    def finish(self) -> None:
        """Run to the end; each request has the tokens that it has alone."""
        while self.scheduler.has_work():
            self.step()
        self.take(self.scheduler.drain())
        for name, record in self.records.items():
            same(record, naive(self.requests[name], self.scheduler.config, self.device.eos_every))
            self.scheduler.abort(name)
        self.scheduler.drain()
        self.idle()


TEXTS = [Link(ids(7), 4), Link(ids(5, 1), 1), Link((), 3), Link(ids(9, 2), 1), Link(ids(1, 3), 2)]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_tokens_are_those_of_the_requests_one_by_one(depth: int) -> None:
    driver = Chains(depth=depth)
    driver.begin(chained("a", TEXTS, ignore_eos=True))
    driver.finish()
    assert len(driver.begun) == (4 if depth > 1 else 0)
    assert len(driver.begun) + len(driver.added) == 4


def test_no_step_passes_between_two_requests() -> None:
    driver = Chains()
    driver.begin(chained("a", TEXTS, ignore_eos=True))
    driver.finish()
    assert driver.steps == sum(link.tokens for link in TEXTS), "each step has a token of the chain"


@pytest.mark.parametrize("eos_every", [2, 5])
def test_a_stop_token_in_the_last_place_is_no_text(eos_every: int) -> None:
    for seed in range(30):
        driver = Chains(eos_every=eos_every)
        links = [Link(ids(3, seed), 3), Link(ids(2, seed + 1), 2), Link(ids(6, seed), 1), Link(ids(2, 5), 2)]
        driver.begin(chained("a", links))
        driver.begin(chained("b", links[::-1], salt="b"))
        driver.finish()
        assert len(driver.begun) + len(driver.added) == 6


def test_what_begins_in_vain_is_counted_once() -> None:
    for seed in range(10):
        driver = Chains(eos_every=2)
        driver.begin(chained("a", [Link(ids(3, seed), 3), Link(ids(2, seed + 1), 2), Link(ids(6, seed), 1)]))
        driver.finish()
        stats, names = driver.scheduler.stats(), driver.begun + driver.added
        assert stats.cached_tokens == sum(driver.records[name].cached for name in names)
        assert stats.prompt_tokens == sum(len(driver.requests[name].prompt) for name in ["a0", *names])


@pytest.mark.parametrize("params", [{"repetition_penalty": 1.2}, {"logprobs": 2}, {"seed": 5, "prompt_logprobs": 1}])
def test_with_other_parameters(params: dict[str, Any]) -> None:
    driver = Chains()
    links = [Link(ids(6), 3, **params), Link(ids(4, 1), 2, **params), Link(ids(3, 2), 1), Link(ids(3, 2), 2, **params)]
    driver.begin(chained("a", links, ignore_eos=True))
    driver.finish()
    assert len(driver.begun) == 3


def test_choices_are_scored_behind_a_generation() -> None:
    driver = Chains()
    scored = Link(ids(4, 1), 0, prompt_logprobs=0, prompt_logprobs_start=3)
    driver.begin(chained("a", [Link(ids(6), 3), scored], ignore_eos=True))
    driver.finish()
    assert driver.begun == ["a1"]
    assert driver.steps == 4
    found = driver.records["a1"].prompt_logprobs
    assert found is not None
    assert len([one for one in found if one is not None]) == 1


def test_long_texts_that_are_cached_are_not_computed_again() -> None:
    links = [Link(ids(6), 3), Link(ids(12, 1), 2), Link(ids(2, 2), 2), Link(ids(9, 3), 1)]
    driver = Chains()
    driver.begin(chained("a", links, ignore_eos=True))
    driver.finish()
    assert driver.begun == ["a1", "a2", "a3"]
    computed = driver.device.computed
    driver.begin(chained("b", links, ignore_eos=True))
    driver.finish()
    assert driver.begun[3:] == ["b2"], "a short text is not worth a step"
    assert driver.added == ["b1", "b3"]
    assert driver.device.computed - computed < computed / 2
    driver.begin(chained("c", [*links[:3], Link(ids(9, 6), 1)], ignore_eos=True))
    driver.finish()
    assert driver.begun[4:] == ["c2", "c3"]


def test_what_cannot_take_over_is_added_at_the_end() -> None:
    first = chained("a", [Link(ids(6), 3), Link(ids(3, 1), 2)], ignore_eos=True)
    assert first.then is not None
    driver = Chains()
    driver.begin(replace(first, then=replace(first.then, salt="other")))
    driver.finish()
    assert driver.added == ["a1"]


def test_what_needs_states_of_all_tokens_is_added_at_the_end() -> None:
    first = chained("a", [Link(ids(1), 2), Link(ids(4, 1), 0)], ignore_eos=True)
    assert first.then is not None
    driver = Chains()
    driver.begin(replace(first, then=replace(first.then, pooling="mean")))
    while not driver.added:
        driver.step()
    assert (driver.added, driver.begun) == (["a1"], [])
    driver.scheduler.abort("a1")
    driver.check()


def test_what_never_fits_is_refused_when_it_is_added() -> None:
    first = chained("a", [Link(ids(6), 3), Link(ids(20), 2)], ignore_eos=True)
    driver = Chains(replace(SMALL, num_blocks=5))
    driver.begin(first)
    with pytest.raises(NeverFits, match="KV blocks"):
        driver.finish()
    driver.check()
    driver.scheduler.abort("a0")
    driver.idle()


@pytest.mark.parametrize("what", ["abort", "finish", "abort then", "fail", "fail launched"])
@pytest.mark.parametrize("at", range(1, 14))
def test_ended_at_any_moment_it_leaves_nothing(what: str, at: int) -> None:
    driver = Chains(depth=2)
    driver.begin(chained("a", TEXTS, ignore_eos=True))
    driver.begin(chained("b", TEXTS, salt="b", ignore_eos=True))
    for _ in range(at):
        driver.schedule()
        if what == "fail launched" and driver.steps >= at:
            break
        if len(driver.in_flight) >= 2:
            if what == "fail" and driver.steps >= at:
                break
            driver.commit()
    ran = next(name for name in reversed(driver.records) if name.startswith("a"))
    if what.startswith("fail"):
        plan, _ = driver.in_flight.pop() if what == "fail launched" else driver.in_flight.popleft()
        driver.take([one for one in driver.scheduler.fail(plan, "broken") if one.request_id in driver.records])
    elif what == "abort then":
        then = driver.requests[ran].then
        driver.scheduler.abort("unknown" if then is None else then.id)
    else:
        getattr(driver.scheduler, what)(ran)
    driver.check()
    driver.take(driver.scheduler.drain())
    while driver.scheduler.has_work():
        driver.step()
    for name, record in driver.records.items():
        if record.reason is not None:
            same(record, naive(driver.requests[name], driver.scheduler.config))
        driver.scheduler.abort(name)
    driver.scheduler.drain()
    driver.idle()


@pytest.mark.parametrize("seed", range(12))
def test_random_chains_under_pressure(seed: int) -> None:
    """Few blocks and slots: sequences are preempted, open ones closed, and some begin without a step between."""
    rng = random.Random(seed)
    driver = Chains(replace(SMALL, num_blocks=30, max_num_seqs=3), depth=rng.choice([2, 2, 3]), eos_every=9)
    for at in range(12):
        links = [
            Link(ids(rng.randrange(1 if not n else 0, 9), rng.randrange(4)), rng.randrange(1, 6), seed=rng.randrange(3))
            for n in range(rng.randrange(1, 5))
        ]
        driver.begin(chained(f"{at}-", links, ignore_eos=rng.random() < 0.5))
        for _ in range(rng.randrange(4)):
            driver.step()
    driver.finish()
    assert driver.begun
