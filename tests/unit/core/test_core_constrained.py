"""Sequences that follow a grammar: every token is one that it allows, in any company, ahead or not, preempted or
not."""

from __future__ import annotations

import copy
import random
import zlib
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from core_driver import SMALL, Driver, Record, request

from headrace.core import CoreConfig
from headrace.types import Request

EOS = 1


class FakeMatcher:
    """Allows a third of the tokens, which third being a hash of the text so far. Complete after each fourth token."""

    def __init__(
        self, vocab: int, length: int = 1000, broken_at: int = 1000, allow: frozenset[int] | None = None
    ) -> None:
        self.vocab, self.length, self.broken_at, self.only = vocab, length, broken_at, allow
        self.text: list[int] = []
        self.stopped = False
        self.mask = self._mask()

    @property
    def accepting(self) -> bool:
        return len(self.text) % 4 == 0

    def allowed(self) -> set[int]:
        if self.only is not None:
            return set(self.only)
        third = zlib.crc32(repr(self.text).encode()) % 3
        return {t for t in range(2, self.vocab) if t % 3 == third} | ({EOS} if self.accepting and self.text else set())

    def advance(self, token: int) -> str | None:
        assert not self.stopped
        assert token in self.allowed(), "a token that was not allowed"
        self.text.append(token)
        if len(self.text) == self.broken_at:
            return "it is too complex"
        self.stopped = token == EOS or len(self.text) == self.length
        self.mask = self._mask()
        return None

    def copy(self) -> FakeMatcher:
        copied = copy.copy(self)
        copied.text = [*self.text]
        return copied

    def forced(self) -> list[int]:
        """Nothing: each token is chosen."""
        return []

    def _mask(self) -> npt.NDArray[np.uint32]:
        bits = np.zeros(-(-self.vocab // 32) * 32, np.bool_)
        bits[sorted(self.allowed())] = True
        return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


def add(driver: Driver, one: Request, matcher: FakeMatcher | None) -> None:
    driver.scheduler.add(one, matcher)
    driver.requests[one.id] = one
    driver.records[one.id] = Record()


def alone(one: Request, matcher: FakeMatcher | None, config: CoreConfig) -> Record:
    driver = Driver(replace(config, num_blocks=129), depth=1, eos_every=7)
    add(driver, one, matcher)
    return driver.run()[one.id]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("blocks", [16, 65])
def test_the_same_tokens_in_any_batch(depth: int, blocks: int) -> None:
    config = replace(SMALL, num_blocks=blocks)
    rng = random.Random(blocks)
    requests = [
        request(
            f"r{i}", [rng.randrange(2, 64) for _ in range(rng.randrange(1, 20))], 24,
            arrival=float(i), seed=i, logprobs=1, repetition_penalty=1.2 if i % 3 else 1.0,
        )
        for i in range(12)
    ]  # fmt: skip
    driver = Driver(config, depth, eos_every=7)
    matchers = {one.id: FakeMatcher(64) if i % 2 else None for i, one in enumerate(requests)}
    for one in requests:
        add(driver, one, matchers[one.id])
    records = driver.run()
    if blocks < 65:
        assert driver.scheduler.stats().preemptions > 0
    for one in requests:
        expected = alone(one, FakeMatcher(64) if matchers[one.id] else None, config)
        assert records[one.id].tokens == expected.tokens
        assert records[one.id].logprobs == expected.logprobs
        assert records[one.id].reason == expected.reason
        matcher = matchers[one.id]
        if matcher is not None:
            assert matcher.text == expected.tokens[: len(matcher.text)]


def test_a_grammar_that_has_come_to_its_end_ends_the_request() -> None:
    driver = Driver()
    add(driver, request("r", [5, 6], 50), FakeMatcher(64, length=3))
    record = driver.run()["r"]
    assert (len(record.tokens), record.reason, record.error) == (3, "stop", None)


def test_a_grammar_that_cannot_go_on_ends_the_request_with_the_reason() -> None:
    driver = Driver()
    add(driver, request("r", [5, 6], 50), FakeMatcher(64, broken_at=2))
    add(driver, request("free", [5, 6], 9), None)
    records = driver.run()
    assert records["r"].reason == "error"
    assert "it is too complex" in str(records["r"].error)
    assert records["free"].reason == "length"


def test_a_fault_of_a_grammar_library_ends_its_own_request() -> None:
    class Faulty(FakeMatcher):
        def advance(self, token: int) -> str | None:
            raise RuntimeError("out of order")

    driver = Driver()
    add(driver, request("r", [5, 6], 50), Faulty(64))
    add(driver, request("free", [5, 6], 9), None)
    records = driver.run()
    assert records["r"].reason == "error"
    assert "RuntimeError: out of order" in str(records["r"].error)
    assert records["free"].reason == "length"


def test_a_stop_token_waits_for_the_text_to_be_complete() -> None:
    """The grammar always allows token 9, and complete texts have a multiple of four tokens."""
    driver = Driver()
    add(driver, request("r", [5, 6], 50, stop_token_ids=(9,)), FakeMatcher(64, allow=frozenset({9, 12})))
    record = driver.run()["r"]
    assert record.reason == "stop"
    assert record.tokens[-1] == 9
    assert record.tokens.count(9) == 1
    assert len(record.tokens) % 4 == 1


def test_only_what_both_the_grammar_and_the_request_allow_comes() -> None:
    driver = Driver()
    add(driver, request("r", [5, 6], 8, allowed_token_ids=(12, 13)), FakeMatcher(64, allow=frozenset({12, 20})))
    assert driver.run()["r"].tokens == [12] * 8


def test_abort_and_failure_leave_nothing_behind() -> None:
    driver = Driver(depth=2)
    for i in range(4):
        add(driver, request(f"r{i}", range(5, 12), 30, seed=i), FakeMatcher(64))
    for _ in range(5):
        driver.step()
    driver.scheduler.abort("r0")
    driver.fail("broken")
    records = driver.run()
    assert records["r0"].reason == "abort"
    assert {records[f"r{i}"].reason for i in range(1, 4)} <= {"error", "length", "stop"}
