"""10^5 random operations: 30,000 calls of the scheduler against a naive model, 70,000 of the cache below it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from core_driver import SMALL, Driver, Record, naive, request, same

from headrace.core.invariants import check
from headrace.core.kv_cache import KVCache
from headrace.core.sequence import Sequence
from headrace.core.slots import Slots
from headrace.types import Request

TINY = replace(SMALL, num_blocks=20, block_size=3, max_num_seqs=4, max_num_batched_tokens=11, max_model_len=40)


def random_request(rng: random.Random, number: int, stems: list[list[int]]) -> Request:
    """Prompts share stems, so that they meet in the tree at every depth."""
    stem = rng.choice(stems)
    prompt = stem[: rng.randrange(1, len(stem))] + [rng.randrange(2, 6) for _ in range(rng.randrange(3))]
    return request(
        f"r{number}",
        prompt,
        rng.randrange(0, 39 - len(prompt)),
        arrival=float(number),
        priority=rng.choice([0, 0, 0, 1, -1]),
        salt=rng.choice(["", "", "s"]),
        seed=rng.choice([None, 1]),
        logprobs=rng.choice([None, None, 0, 2]),
        prompt_logprobs=(scored := rng.choice([None] * 4 + [0, 1, 2])),
        prompt_logprobs_start=0 if scored is None else rng.choice([0, 0, rng.randrange(len(prompt))]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
        min_tokens=rng.choice([0, 0, 5]),
        allowed_token_ids=rng.choice([None] * 4 + [tuple(range(0, 64, 3))]),
    )


class Fuzz:
    """Random calls in any order that the contract allows."""

    def __init__(self, seed: int, depth: int, caching: bool = True) -> None:
        self.rng = random.Random(seed)
        self.config = replace(TINY, prefix_caching=caching)
        self.driver = Driver(self.config, depth, eos_every=9)
        self.stems = [[self.rng.randrange(2, 6) for _ in range(30)] for _ in range(3)]
        self.number = 0
        self.expected: dict[str, Record] = {}
        self.gone: set[str] = set()
        """Aborted; the delta about it may still follow."""

    def one(self) -> None:
        driver, rng = self.driver, self.rng
        dice = rng.random()
        live = [id for id, record in driver.records.items() if record.reason is None and id not in self.gone]
        if dice < 0.12:
            driver.check()
        if dice < 0.08 and len(live) < 12:
            made = random_request(rng, self.number, self.stems)
            self.number += 1
            driver.add(made)
            self.expected[made.id] = naive(made, self.config, 9)
        elif dice < 0.10 and live:
            id = rng.choice(live)
            self.gone.add(id)
            assert driver.scheduler.abort(id)
            assert not driver.scheduler.abort(id)
        elif dice < 0.11 and live:
            id = rng.choice(live)
            assert driver.scheduler.finish(id)
            driver.records[id].reason = "abort"
        elif dice < 0.115:
            driver.scheduler.reset_cache()
        elif dice < 0.12 and driver.in_flight:
            self.fail()
        elif len(driver.in_flight) < driver.depth and (dice < 0.6 or not driver.in_flight):
            driver.schedule()
        elif driver.in_flight:
            driver.commit()
        if self.number % 50 == 0:
            self.settle()

    def fail(self) -> None:
        """A step, the oldest or the latest, has not run: what it and those after it wrote is garbage."""
        driver = self.driver
        at = self.rng.choice([0, len(driver.in_flight) - 1])
        plan, _ = driver.in_flight[at]
        for spoilt, result in list(driver.in_flight)[at:]:
            driver.device.kv.reshape(-1)[spoilt.slot_mapping] = -(2**50)
            driver.device.kv[[block for block, _ in spoilt.loads] or [0]] = -(2**50)
            if result is not None and result.stored is not None:
                result.stored[:] = 7
        del driver.in_flight[at]
        deltas = driver.take(driver.scheduler.fail(plan, "lost"))
        assert {d.request_id for d in deltas if d.finish_reason == "error"} <= set(plan.request_ids)

    def settle(self) -> None:
        """Compare what has ended, and forget it."""
        driver = self.driver
        driver.take(driver.scheduler.drain())
        for id in [id for id, record in driver.records.items() if record.reason is not None]:
            same(driver.records.pop(id), self.expected.pop(id))


@pytest.mark.parametrize(
    ("seed", "depth", "caching"), [(1, 1, True), (2, 2, True), (3, 2, True), (4, 2, False), (5, 3, True)]
)
def test_scheduler_against_the_model(seed: int, depth: int, caching: bool) -> None:
    fuzz = Fuzz(seed, depth, caching)
    for _ in range(6_000):
        fuzz.one()
    fuzz.driver.run()
    fuzz.settle()
    assert fuzz.number > 200
    assert fuzz.driver.scheduler.stats().preemptions > 10
    assert (fuzz.driver.scheduler.stats().cached_tokens > 300) == caching


class CacheFuzz:
    """The cache alone. `memory` is the naive model: what each block holds, and for whom."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cache = KVCache(24, 2, 5, 20, caching=True)
        self.slots = Slots(5)
        self.memory: dict[int, tuple[str, list[int]]] = {}
        self.running: list[Sequence] = []
        self.step = 1
        self.order = 0

    def write(self, seq: Sequence, end: int) -> None:
        """Compute tokens up to `end`: into the sequence's own blocks only."""
        size = self.cache.block_size
        for at in range(int(self.slots.computed[seq.slot]), end):
            index, offset = divmod(at, size)
            assert index >= seq.shared, "writes to a shared block"
            block = int(self.cache.table[seq.slot, index])
            _, tokens = self.memory.get(block, ("", []))
            self.memory[block] = (seq.namespace.salt, [*tokens[:offset], seq.tokens[at]])
        self.slots.computed[seq.slot] = end

    def read(self, seq: Sequence) -> None:
        """Every token that counts as computed is stored."""
        size = self.cache.block_size
        for at in range(int(self.slots.computed[seq.slot])):
            salt, tokens = self.memory[int(self.cache.table[seq.slot, at // size])]
            assert salt == seq.namespace.salt
            assert tokens[at % size] == seq.tokens[at]

    def assign(self) -> None:
        rng = self.rng
        self.order += 1
        prompt = [rng.randrange(2) for _ in range(rng.randrange(1, 14))]
        seq = Sequence.of(request(str(self.order), prompt, 6, salt=rng.choice(["", "x"])), self.order, 64)
        room = self.cache.available
        attached = self.cache.attach(seq, self.slots.free[-1], self.step, reserve=0)
        if attached is None:
            assert self.cache.available == room
            return
        self.slots.assign(seq, attached.cached)
        assert attached.cached < len(prompt)
        if attached.copy is not None:
            source, target = attached.copy
            self.memory[target] = (self.memory[source][0], list(self.memory[source][1]))
        elif attached.cached % 2:
            assert attached.cached // 2 >= seq.shared
        self.running.append(seq)
        self.read(seq)

    def compute(self, seq: Sequence) -> None:
        """A chunk: some of the known tokens, filled by this step and committed at once or with the next."""
        before = int(self.slots.computed[seq.slot])
        start = self.cache.reuse_cached(seq, before)
        self.slots.computed[seq.slot] = start
        end = min(len(seq.tokens), start + self.rng.randrange(1, 6))
        self.write(seq, end)
        self.cache.publish(seq, end, self.step)
        self.step += 1
        self.read(seq)
        if self.rng.random() < 0.7:
            seq.filled = end
            self.cache.commit_blocks(seq, self.step - 1)
            self.read(seq)

    def generate(self, seq: Sequence) -> None:
        seq.filled = len(seq.tokens)
        self.cache.commit_blocks(seq, self.step)
        if len(seq.tokens) % 2 == 0 and not self.cache.grow(seq):
            assert self.cache.available == 0
            return
        seq.tokens.append(self.rng.randrange(2))
        self.write(seq, len(seq.tokens))
        self.step += 1

    def one(self) -> None:
        dice, rng = self.rng.random(), self.rng
        if dice < 0.2 and self.slots.free:
            self.assign()
        elif dice < 0.205:
            self.cache.tree.reset()
        elif self.running:
            seq = rng.choice(self.running)
            done = int(self.slots.computed[seq.slot]) == len(seq.tokens)
            if dice < 0.35:
                self.running.remove(seq)
                slot = seq.slot
                self.cache.release(seq, self.step - 1, self.step - 1, keep=dice < 0.33)
                self.slots.release(slot)
            elif not done:
                self.compute(seq)
            elif len(seq.tokens) < seq.end:
                self.generate(seq)
        check(self.cache, self.slots, self.running)


@pytest.mark.parametrize("seed", [11, 12])
def test_cache_against_the_model(seed: int) -> None:
    fuzz = CacheFuzz(seed)
    for _ in range(35_000):
        fuzz.one()
