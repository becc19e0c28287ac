"""Kills processes that write to one folder of KV blocks, at random moments, and checks every block after each.

    python ci/disk_kills.py [KILLS] [SEED]

Two processes write to the folder at a time, evict each other's blocks from it, and one of them is killed. No block may
ever be delivered with other bytes than its own, nothing may raise, and no unfinished file may stay for ever.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from headrace.tiers.block_folder import BlockFolder
from headrace.tiers.disk_tier import DiskTier
from headrace.transfer.chain import chain, first_hash
from headrace.types import Request, SamplingParams

LAYOUT, SIZE, BLOCKS = b"layout-of-16-byt", 40_000, 200
NAMES = list(chain(first_hash(LAYOUT), ((at,) for at in range(BLOCKS))))
LIMIT = 60 * SIZE


def content(name: bytes) -> bytes:
    return name * (SIZE // len(name))


def write_for_ever(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    tier = DiskTier(folder, LIMIT, LAYOUT, SIZE, 16)
    while True:
        name = rng.choice(NAMES)
        if tier.wants(name, evicted=False):
            tier.offer([name], [content(name)])
        else:
            time.sleep(0.0005)


def start(folder: Path, seed: int) -> int:
    """A process that writes; its id."""
    child = os.fork()
    if child:
        return child
    try:
        write_for_ever(folder, seed)
    finally:
        os._exit(1)


def check(folder: Path) -> int:
    """Read every block; returns their number. Raises AssertionError for one with other bytes, TransferError or OSError
    for a file that is not sound."""
    found = BlockFolder(folder, LAYOUT)
    stored = [block.name for block in found.scan()]
    count = 0
    for name in stored:
        try:
            payload = found.read(name, SIZE)
        except FileNotFoundError:
            continue  # the other process has evicted it
        assert payload == content(name), f"wrong bytes under {name.hex()}"
        count += 1
    return count


def run(folder: Path, kills: int, seed: int = 0) -> int:
    """Kill so many writers; returns the number of blocks that were read and right."""
    rng = random.Random(seed)
    survivor = start(folder, seed)
    checked = 0
    try:
        for kill in range(kills):
            victim = start(folder, seed + 1 + kill)
            time.sleep(rng.random() * 0.02)
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            checked += check(folder)
            if kill % 50 == 49:
                os.kill(survivor, signal.SIGKILL)
                os.waitpid(survivor, 0)
                survivor = start(folder, seed - kill)
    finally:
        os.kill(survivor, signal.SIGKILL)
        os.waitpid(survivor, 0)
    tier = DiskTier(folder, LIMIT, LAYOUT, SIZE, 16)
    answer = tier.lookup(NAMES, Request("r", (1,), SamplingParams(max_tokens=1)))
    assert answer is not None
    tier.close()
    return checked


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        right = run(Path(place), count, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(f"{count} kills, {right} blocks read, all right, {time.monotonic() - began:.0f} s")
