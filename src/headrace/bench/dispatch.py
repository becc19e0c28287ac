"""`headrace bench VERB`: runs one of the benchmarks."""

from __future__ import annotations

import argparse
import contextlib
import importlib
from collections.abc import Sequence

from headrace.argument_parser import ArgumentParser
from headrace.errors import ConfigError
from headrace.progress import activity

__all__ = ["main"]

VERBS = {
    "serve": ("headrace.bench.verb_serve", "load an OpenAI endpoint: latency, throughput, the three wastes"),
    "offline": ("headrace.bench.verb_offline", "the same load for an engine in this process, without HTTP"),
    "startup": ("headrace.bench.verb_startup", "time from `headrace serve` to the first token, by part"),
    "compare": ("headrace.bench.verb_compare", "ratios between the reports of several engines"),
    "naive": ("headrace.bench.verb_naive", "the same requests through transformers.generate in static batches"),
    "perplexity": (
        "headrace.bench.verb_perplexity",
        "perplexity of a text, in windows of 512 tokens with the second half scored",
    ),
    "roofline": (
        "headrace.bench.verb_roofline",
        "this machine's limits, and the share of them that each operator reaches",
    ),
    "scheduler": ("headrace.bench.verb_scheduler", "host time of the scheduler alone"),
}


def main(argv: Sequence[str]) -> int:
    """Call a verb's `configure(parser)` and `run(args) -> int`; only that verb's module is imported."""
    listing = "\n".join(f"  {verb:<12}{text}" for verb, (_, text) in VERBS.items())
    parser = ArgumentParser(
        prog="headrace bench", epilog=f"verbs:\n{listing}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=list(VERBS), metavar="VERB")
    verb = parser.parse_args(argv[:1]).verb
    with contextlib.ExitStack() as stack:
        # Before the imports, which take seconds. `publish` ends the line.
        showing = contextlib.nullcontext() if {"-h", "--help"} & set(argv) else activity(f"bench {verb}: starting")
        progress = stack.enter_context(showing)
        try:
            module = importlib.import_module(VERBS[verb][0])
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"`headrace bench {verb}` needs the package {error.name}: pip install 'headrace[bench]'"
            ) from error
        inner = ArgumentParser(prog=f"headrace bench {verb}", description=module.__doc__)
        module.configure(inner)
        inner.set_defaults(progress=progress)
        result: int = module.run(inner.parse_args(argv[1:]))
        return result
