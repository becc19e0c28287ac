"""Show the packed weights that are cached for later starts. `--clear` removes them at once: they are copies, which the
next start of a model makes again."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.wording import counted

if TYPE_CHECKING:
    from headrace.checkpoints.packed.cache import Kept

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear", action="store_true", help="remove them all; they are packed again when next needed")


def run(args: argparse.Namespace) -> int:
    # Late, as for every verb: it imports torch.
    from headrace.checkpoints.packed.cache import clear, directory_of, kept

    directory = directory_of()
    if args.clear:
        removed = clear(directory)
        print(f"{sum(entry.size for entry in removed) / 1e6:.1f} MB freed: {_counted(removed)} in {directory}")
        return 0
    entries = kept(directory)
    print(f"{_counted(entries)}, {sum(entry.size for entry in entries) / 1e6:.1f} MB in {directory}")
    for entry in reversed(entries):
        about = entry.about
        what = f"{about['model']} ({about['form']})" if about else f"{entry.path.name}, which cannot be read"
        what += f", {about['part']}" if about.get("part") else ""
        narrowed = f", quantised to {about['quantize']}" if about.get("quantize") else ""
        print(f"  {entry.size / 1e6:9.1f} MB  {what}{narrowed}")
    return 0


def _counted(entries: Sequence[Kept]) -> str:
    return counted(len(entries), "model")
