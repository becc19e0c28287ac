"""Runs a crowd through a cache that is too small, and prints what each request got. Under `python -O` no assert
runs."""

from __future__ import annotations

import random
from dataclasses import replace

from core_driver import SMALL, Driver, request


def outcome() -> str:
    """Random requests that evict, preempt, share prefixes, abort and fail."""
    rng = random.Random(7)
    driver = Driver(
        replace(SMALL, num_blocks=24, block_size=4, max_num_seqs=6, max_num_batched_tokens=24), eos_every=9, check=False
    )
    for number in range(150):
        prefix = [rng.randrange(2, 5)] * rng.randrange(0, 24)
        prompt = [*prefix, *(rng.randrange(2, 60) for _ in range(rng.randrange(1, 16)))]
        logprobs = rng.choice([None, 0, 2])
        driver.add(request(f"r{number}", prompt, rng.randrange(1, 24), driver.now, logprobs=logprobs))
        for _ in range(rng.randrange(0, 4)):
            driver.step()
        if number % 20 == 19:
            driver.scheduler.abort(f"r{number}")
    records = driver.run()
    stats = driver.scheduler.stats()
    figures = (stats.running, stats.waiting, stats.blocks_held, stats.blocks_free + stats.blocks_cached)
    if not stats.preemptions or figures != (0, 0, 0, 23):
        raise SystemExit(f"not what this run is for: {stats}")
    return repr([(name, record.tokens, record.logprobs, record.reason) for name, record in records.items()])


if __name__ == "__main__":
    print(outcome())
