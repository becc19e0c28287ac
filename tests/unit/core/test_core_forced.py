"""Tokens that a grammar forces: known, not sampled, and the same in any company."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, Record, request
from fake_core_device import choose, mark, names
from test_core_constrained import EOS, FakeMatcher, add

from headrace.core import CoreConfig
from headrace.types import Request, TokenLogprobs


class ForcingMatcher(FakeMatcher):
    """After half of the texts a run of one to six tokens must follow: a hash of the text."""

    def __init__(self, vocab: int, length: int = 1000, start: Sequence[int] = ()) -> None:
        self.run = list(start)
        super().__init__(vocab, length)

    def allowed(self) -> set[int]:
        # More than the forced token: a text can be cut into other tokens.
        return {self.run[0], (self.run[0] + 1) % self.vocab or 2} if self.run else super().allowed()

    def forced(self) -> list[int]:
        assert not self.stopped
        return self.run[: self.length - len(self.text)]

    def advance(self, token: int) -> str | None:
        assert token in self.allowed()
        if self.run:
            self.run = self.run[1:] if token == self.run[0] else []
        else:
            found = zlib.crc32(repr(("run", self.text, token)).encode())
            if found % 2:
                self.run = [2 + (found >> 3 * i) % (self.vocab - 2) for i in range(1 + found // 2 % 6)]
        self.text.append(token)
        self.stopped = token == EOS or len(self.text) == self.length
        self.mask = self._mask()
        return None


def expected_of(one: Request, matcher: ForcingMatcher, config: CoreConfig) -> Record:
    """The answer by the definition: forced tokens while there are any, otherwise one that the mask allows."""
    params, record, seed = one.params, Record(), one.params.seed or 0
    forces = not params.logit_bias and params.allowed_token_ids is None

    def scored(found: int, token: int, count: int) -> TokenLogprobs:
        top = tuple((t, -t / 64) for t in ((found + i) % config.vocab_size for i in range(count)))
        return TokenLogprobs(token, -(found % 997 / 8), found % 31 + 1, top)

    if params.prompt_logprobs is not None:
        marks = [(mark(one.prompt[:at], 0) + token, token) for at, token in enumerate(one.prompt[1:], 1)]
        record.prompt_logprobs = [None, *(scored(m, token, params.prompt_logprobs) for m, token in marks)]
    while record.reason is None:
        context = found = mark(one.prompt + tuple(record.tokens), seed)
        stops = set(params.stop_token_ids) | {EOS}
        run = matcher.forced() if forces else []
        if run and run[0] not in stops:
            token, found = run[0], found + run[0]
        else:
            forbidden = set(range(config.vocab_size)) - matcher.allowed()
            if not matcher.accepting:
                forbidden |= set(params.stop_token_ids)
            token = choose(found, config.vocab_size, 7, frozenset(forbidden))
        record.tokens.append(token)
        if params.logprobs is not None:
            entry = scored(found, token, params.logprobs)
            record.logprobs.append(replace(entry, top=names(context, params.logprob_token_ids) or entry.top))
        if token in stops:
            record.reason = "stop"
            break
        matcher.advance(token)
        if matcher.stopped:
            record.reason = "stop"
        elif len(record.tokens) == params.max_tokens:
            record.reason = "length"
    return record


def check(got: Record, expected: Record) -> None:
    assert (got.tokens, got.reason, got.error) == (expected.tokens, expected.reason, None)
    assert got.logprobs == expected.logprobs
    assert got.prompt_logprobs == expected.prompt_logprobs


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("blocks", "budget"), [(13, 32), (65, 32), (65, 9)])
@pytest.mark.parametrize("seed", range(4))
def test_the_tokens_of_the_definition_in_any_company(depth: int, blocks: int, budget: int, seed: int) -> None:
    config = replace(SMALL, num_blocks=blocks, max_num_batched_tokens=budget)
    rng = random.Random(seed)
    requests = [
        request(
            f"r{i}", [rng.randrange(2, 64) for _ in range(rng.randrange(1, 20))], rng.randrange(1, 30),
            arrival=float(i), seed=i, logprobs=rng.choice([None, 0, 2]), logprob_token_ids=(9, i) if i % 3 == 0 else (),
            prompt_logprobs=rng.choice([None, 1]),
            repetition_penalty=rng.choice([1.0, 1.2]), stop_token_ids=rng.choice([(), (9,)]),
        )
        for i in range(14)
    ]  # fmt: skip
    lengths = {one.id: rng.choice([6, 1000]) for one in requests}
    starts = {one.id: rng.choice([(), (5, 6, 7), (11,)]) for one in requests}
    driver = Driver(config, depth, eos_every=7)
    for i, one in enumerate(requests):
        made = ForcingMatcher(64, lengths[one.id], starts[one.id]) if i % 4 else None
        add(driver, one, made)
    records = driver.run()
    if (blocks, depth, seed) == (13, 2, 3):
        assert driver.scheduler.stats().preemptions > 0
    for i, one in enumerate(requests):
        if i % 4:
            check(records[one.id], expected_of(one, ForcingMatcher(64, lengths[one.id], starts[one.id]), config))


def test_a_text_without_any_choice_takes_one_step() -> None:
    driver = Driver(depth=2, eos_every=7)
    add(driver, request("r", [5, 6], 50), ForcingMatcher(64, length=5, start=(7, 8, 9, 10, 11)))
    record = driver.run()["r"]
    assert (record.tokens, record.reason) == ([7, 8, 9, 10, 11], "stop")
    assert driver.steps == 1


def test_forced_tokens_are_computed_in_one_step_and_scored() -> None:
    """The prompt with the first token's row, then the other forced tokens, whose rows score what follows them."""
    driver = Driver(depth=2, eos_every=7)
    one = request("r", [5, 6], 50, logprobs=1)
    add(driver, one, ForcingMatcher(64, length=5, start=(7, 8, 9, 10, 11)))
    record = driver.run()["r"]
    check(record, expected_of(one, ForcingMatcher(64, length=5, start=(7, 8, 9, 10, 11)), SMALL))
    assert driver.steps == 2


def test_the_limit_of_tokens_cuts_a_forced_run() -> None:
    driver = Driver(depth=2, eos_every=7)
    add(driver, request("r", [5, 6], 3), ForcingMatcher(64, start=(7, 8, 9, 10, 11)))
    record = driver.run()["r"]
    assert (record.tokens, record.reason) == ([7, 8, 9], "length")


def test_a_request_that_lists_its_tokens_is_forced_to_none() -> None:
    driver = Driver(depth=2, eos_every=7)
    add(driver, request("r", [5, 6], 1, allowed_token_ids=(8, 9)), ForcingMatcher(64, start=(7, 8)))
    assert driver.run()["r"].tokens == [8]


def test_aborts_and_failures_with_forced_tokens_under_way() -> None:
    driver = Driver(depth=2, eos_every=7)
    for i in range(6):
        add(driver, request(f"r{i}", range(5, 12 + i), 30, seed=i, logprobs=1), ForcingMatcher(64))
    for at in range(12):
        driver.step()
        if at == 3:
            driver.scheduler.abort("r0")
        if at == 7 and driver.in_flight:
            driver.fail("broken")
    records = driver.run()
    assert records["r0"].reason == "abort"
    for i in range(1, 6):
        one = request(f"r{i}", range(5, 12 + i), 30, seed=i, logprobs=1)
        expected, got = expected_of(one, ForcingMatcher(64), SMALL), records[f"r{i}"]
        assert got.tokens == expected.tokens[: len(got.tokens)]
        assert got.reason == "error" or got.tokens == expected.tokens
        assert got.logprobs == expected.logprobs[: len(got.logprobs)]
