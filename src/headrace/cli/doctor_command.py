"""Show which platforms this machine can run, which implementation each operator uses, and why not a faster one."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from headrace.arguments import add_device_option
from headrace.cli.command_options import positive
from headrace.cli.tape_view import add_tape_options, show_tape

__all__ = ["configure", "render", "run"]

_INDENT = " " * 14
_NARROWEST = 40


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument(
        "--platform", metavar="NAME", help="show the operators of this platform alone (default: of all)"
    )
    parser.add_argument("--speculate", metavar="METHOD", help="mark this method, and check it as for serve")
    parser.add_argument(
        "--pipeline-parallel-size", metavar="N", type=positive, default=1, help="of that server (default: 1)"
    )
    add_device_option(parser, {})
    add_tape_options(parser)


def run(args: argparse.Namespace) -> int:
    """Returns 0, or 1 if no model can be served here, or not with the method that was asked for."""
    if args.tape is not None:
        return show_tape(args)
    from headrace.cli.diagnosis import diagnose

    report = diagnose(
        args.platform, options=args.device_options, speculate=args.speculate, stages=args.pipeline_parallel_size
    )
    width = max(shutil.get_terminal_size().columns, _NARROWEST) if sys.stdout.isatty() else None
    print(json.dumps(report, indent=2, default=str) if args.json else "\n".join(render(report, width)))
    return 0 if report["usable"] else 1


def render(report: Mapping[str, Any], width: int | None = None) -> Iterator[str]:
    """The report as lines of text. Lines longer than `width` columns go on in the next one, below their text; a word,
    such as a path, stays whole. None: one line for each fact, for a file or `grep`."""
    for line in _lines(report):
        if width is None:
            yield line
        else:
            yield from wrap(line, width, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    from headrace.cli.doctor_facts import operator_lines, platform_lines
    from headrace.cli.speculation_facts import speculation_lines

    machine = report["machine"]
    yield "machine"
    yield f"  {machine['processor']}, {machine['cores']} cores, {machine['system']}"
    yield f"  {machine['memory_free'] / 2**30:.1f} of {machine['memory_total'] / 2**30:.1f} GiB memory free"
    yield f"  instruction sets: {' '.join(machine['features']) or 'none that kernels use'}"
    yield "versions"
    yield "  " + ", ".join(f"{name} {version or 'missing'}" for name, version in report["versions"].items())
    yield "plugins"
    for plugin in report["plugins"]:
        state = plugin["error"] or ", ".join(plugin["hooks"])
        yield f"  {plugin['name']:<12}{plugin['distribution']} {plugin['version']}: {state}"
    yield "platforms"
    yield from platform_lines(report["platforms"])
    native = report["native"]
    yield "native kernels"
    yield f"  {native['problem'] or native['library'] + ' (' + native['instruction_set'] + ')'}"
    for operators in report["operators_by_platform"].values():
        yield from operator_lines(operators)
    yield from speculation_lines(report["speculation"])
    yield "remedies"
    yield from (f"  - {' '.join(remedy.split())}" for remedy in report["remedies"])
    if not report["remedies"]:
        yield "  nothing to repair"
