"""Compare ways to place requests over many simulated engines: round robin, least loaded, and the router's own, which
knows what each engine has cached. The same seed gives the same table."""

from __future__ import annotations

import argparse
from pathlib import Path

from headrace.errors import ConfigError
from headrace.wording import counted

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    engines = parser.add_argument_group("engines")
    engines.add_argument("--engines", type=int, default=1000, help="their number (default: 1000)")
    engines.add_argument("--slots", type=int, default=32, help="sequences that run at once on each (default: 32)")
    engines.add_argument("--cache-tokens", type=int, default=60_000, help="KV cache of each (default: 60000)")
    engines.add_argument(
        "--prefill-ms", type=float, default=0.4, help="milliseconds per computed prompt token (default: 0.4)"
    )
    engines.add_argument("--step-ms", type=float, default=12.0, help="milliseconds of a decode step (default: 12)")
    load = parser.add_argument_group("load")
    load.add_argument("--trace", metavar="FILE", help="recorded requests in place of drawn ones (docs/routing.md)")
    load.add_argument("--conversations", type=int, default=4000, help="drawn conversations (default: 4000)")
    load.add_argument("--rate", type=float, default=400.0, help="conversations that begin in a second (default: 400)")
    load.add_argument("--turns", type=int, default=5, help="mean turns of a conversation (default: 5)")
    load.add_argument("--seed", type=int, default=1, help="of the draw (default: 1)")


def run(args: argparse.Namespace) -> int:
    for name in ("engines", "slots", "cache_tokens", "conversations", "rate", "turns", "prefill_ms", "step_ms"):
        if getattr(args, name) <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be more than 0, got {getattr(args, name)}")
    from headrace.route.policy import Rates
    from headrace.route.simulation import POLICIES, SimSettings, simulate
    from headrace.route.traces import Conversations, read_trace

    settings = SimSettings(
        args.engines, args.slots, args.cache_tokens, args.step_ms, rates=Rates(prefill=args.prefill_ms)
    )
    work = (
        Conversations(args.conversations, args.rate, args.turns, seed=args.seed)
        if args.trace is None
        else read_trace(Path(args.trace))
    )
    print(f"{counted(args.engines, 'engine')}, {'seed ' + str(args.seed) if args.trace is None else args.trace}")
    print(f"{'policy':<14}{'requests':>9}{'TTFT ms':>9}{'p50':>8}{'p99':>9}{'tokens/s':>10}{'hits':>7}{'busiest':>9}")
    for policy in POLICIES:
        out = simulate(policy, settings, work)
        mean = sum(out.ttft) / max(1, len(out.ttft))
        speed = out.answer_tokens / max(1e-9, out.seconds)
        print(
            f"{policy:<14}{out.requests:>9}{mean:>9.1f}{out.percentile(0.5):>8.1f}{out.percentile(0.99):>9.1f}"
            f"{speed:>10.0f}{out.hit_rate:>7.1%}{out.busiest:>8.2f}x"
        )
    return 0
