"""`headrace doctor --tape MODEL`: shows a recorded step, and the time of each of its operators."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from headrace.wording import counted

if TYPE_CHECKING:
    from headrace.bench.step_profile import StepProfile

__all__ = ["add_tape_options", "show_tape"]


def add_tape_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the tape of a step")
    add = group.add_argument
    add("--tape", metavar="MODEL", help="show the recorded step of a model: operators, shapes, bytes, times")
    add("--tokens", type=int, default=1, metavar="N", help="tokens of the step (default: 1, as in decoding)")
    add("--context", type=int, default=128, metavar="N", help="tokens before them (default: 128)")
    add("--threads", type=int, default=argparse.SUPPRESS, metavar="N", help="default: one per core")
    add("--dtype", default=argparse.SUPPRESS, help="as for serve (default: auto)")
    add("--quantize", default=argparse.SUPPRESS, help="as for serve (default: none)")


def show_tape(args: argparse.Namespace) -> int:
    from headrace.bench.step_profile import profile_step
    from headrace.cli.command_options import build_config
    from headrace.cli.model_fetch import fetch_model

    name, args.model = args.tape, str(fetch_model(args.tape))
    if args.platform is None:
        del args.platform
    report = profile_step(build_config(args), args.tokens, args.context)
    if args.json:
        print(json.dumps({"name": name, **asdict(report)}, indent=1))
    else:
        print("\n".join(render_tape(report)))
    return 0


def render_tape(report: StepProfile) -> Iterator[str]:
    """The profile as lines of text, the operator with the most time first."""
    limits = report.limits
    yield (
        f"{report.model}: a step of {counted(report.tokens, 'token')} of one sequence after {report.context}, on a "
        f"machine that reads {limits.read / 1e9:.1f} GB/s and multiplies {limits.float32 / 1e9:.0f} (float32), "
        f"{limits.bfloat16 / 1e9:.0f} (bfloat16), {limits.int8 / 1e9:.0f} (int8) Gop/s"
    )
    rows = [
        (
            one.name, one.weight, one.shapes, str(one.calls), f"{one.bytes / 1e6:.2f}", f"{one.operations / 1e6:.1f}",
            f"{one.seconds * 1e6:.1f}", f"{one.seconds / max(report.seconds, 1e-12):.1%}", f"{one.share:.0%}",
        )
        for one in sorted(report.operators, key=lambda one: -one.seconds)
    ]  # fmt: skip
    calls = str(sum(one.calls for one in report.operators))
    sums = (f"{report.bytes / 1e6:.2f}", f"{report.operations / 1e6:.1f}", f"{report.seconds * 1e6:.1f}", "100.0%")
    head = ("operator", "weight", "shapes", "calls", "MB", "Mop", "µs", "of time", "of the limit")
    table = [head, *rows, ("total", "", "", calls, *sums, f"{report.share:.0%}")]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    for row in table:
        cells = [
            cell.ljust(width) if i < 3 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
    yield f"from launch to result {report.wall * 1e6:.1f} µs; T, S, R: tokens, sequences, rows of logits of the step"
