#!/usr/bin/env python3
"""Two prefill and two decode engines of a real model behind a router, mixed requests, and every fault in turn.

    python ci/group_faults.py --requests 1000

Each request must end with the single engine's answer or with one clear error, and no engine may hold a block at the
end; otherwise the run fails. Prints a line of JSON for each fault: how many requests ended how, and in what time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from headrace.hub.catalogue import resolve_model

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "engine"), str(ROOT / "tests")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

from group_harness import DECODE, PREFILL, Group, cut, damaged, delayed, mixed  # noqa: E402

Strike = Callable[[], object]


def faults(group: Group) -> dict[str, tuple[Strike, Strike]]:
    """What happens while requests run, and what is done afterwards."""

    def line(change: Callable[[int, bytes], bytes | None]) -> tuple[Strike, Strike]:
        return lambda: setattr(group.line, "now", change), lambda: setattr(group.line, "now", lambda at, data: data)

    def device_killed(number: int) -> tuple[Strike, Strike]:
        return group.servers[number].engine.kill, lambda: None

    def server_killed(number: int) -> tuple[Strike, Strike]:
        return group.servers[number].process.kill, lambda: group.restart(number)

    stopped = group.servers[PREFILL[0]].engine, psutil.Process(group.servers[DECODE[0]].process.pid)
    router: tuple[Strike, Strike] = group.router.kill, lambda: setattr(group, "router", group.new_router())
    standing = [
        ((lambda one=one: one.send_signal(signal.SIGSTOP)), (lambda one=one: one.send_signal(signal.SIGCONT)))
        for one in stopped
    ]
    return {
        "none": (lambda: None, lambda: None),
        "prefill engine stands still": standing[0],
        "decode server stands still": standing[1],
        "prefill device killed": device_killed(PREFILL[0]),
        "decode device killed": device_killed(DECODE[0]),
        "prefill server killed": server_killed(PREFILL[1]),
        "decode server killed": server_killed(DECODE[1]),
        "blocks damaged": line(damaged),
        "connections cut": line(cut),
        "blocks delayed": line(delayed),
        "router killed": router,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--length", type=int, default=1400, help="characters of long prompts")
    args = parser.parse_args()
    options = {
        "cache": {"num_blocks": 600},
        "model": {"max_model_len": 1024},
        "scheduler": {"max_num_seqs": 8, "max_num_batched_tokens": 256},
    }
    with tempfile.TemporaryDirectory() as folder:
        group = Group(resolve_model(args.model), Path(folder) / "group", options, args.length)
        try:
            table = faults(group)
            each = -(-args.requests // (len(table) + 1))
            for number, (name, (strike, mend)) in enumerate(table.items()):
                report(group, name, each, number, strike, mend)
            with group.full_disk():
                report(group, "disk full", each, len(table), lambda: None, lambda: None)
        finally:
            group.close()


def report(group: Group, name: str, count: int, seed: int, strike: Strike, mend: Strike) -> None:
    requests = mixed(count, group.length, seed)
    for asked in set(requests):
        group.expected(asked)
    began = time.monotonic()
    ends = group.storm(requests, strike)
    seconds = time.monotonic() - began
    mend()
    group.ready()
    group.settled()
    print(json.dumps({"fault": name, "requests": count, "seconds": round(seconds, 1), **ends}), flush=True)


if __name__ == "__main__":
    main()
