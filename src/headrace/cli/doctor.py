"""Show what this machine can run, which implementation each operator has, and why not a faster one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["configure", "render", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--platform", metavar="NAME", help="look at the operators of this platform (default: the best)")


def run(args: argparse.Namespace) -> int:
    """0; 1 where no model can be served here."""
    from headrace.cli.diagnosis import diagnose

    report = diagnose(args.platform)
    print(json.dumps(report, indent=2) if args.json else "\n".join(render(report)))
    return 0 if report["usable"] else 1


def render(report: Mapping[str, Any]) -> Iterator[str]:
    """Lines for people."""
    machine = report["machine"]
    yield "machine"
    yield f"  {machine['processor']}, {machine['cores']} cores, {machine['system']}"
    yield f"  {machine['memory_free'] / 2**30:.1f} of {machine['memory_total'] / 2**30:.1f} GiB memory free"
    yield f"  instruction sets: {' '.join(machine['features']) or 'none that matter'}"
    yield "versions"
    yield "  " + ", ".join(f"{name} {version or 'missing'}" for name, version in report["versions"].items())
    yield "plugins"
    for plugin in report["plugins"]:
        state = plugin["error"] or ", ".join(plugin["hooks"])
        yield f"  {plugin['name']:<12}{plugin['distribution']} {plugin['version']}: {state}"
    yield "platforms"
    for platform in report["platforms"]:
        mark = "*" if platform["chosen"] else " "
        score = f"score {platform['score']}" if platform["score"] > 0 else "unusable"
        yield f" {mark}{platform['name']:<12}{score}: {platform['reason']}"
        for device in platform["devices"]:
            yield f"  {'':<12}device {device['index']}: {device['name']}, {device['memory'] / 2**30:.1f} GiB"
    native = report["native"]
    yield "native kernels"
    yield f"  {native['problem'] or native['library'] + ' (' + native['instruction_set'] + ')'}"
    if report["operators"]:
        yield f"operators on {report['operators']['platform']}"
        for operator in report["operators"]["bound"]:
            yield f"  {operator['name']:<18}{operator['implementation']:<27} {operator['reason']}"
    yield "remedies"
    yield from (f"  - {remedy}" for remedy in report["remedies"])
    if not report["remedies"]:
        yield "  nothing to mend"
