"""Makes the files beside this one: what transformers gives for the catalogue's default model. With --check it compares
instead.

Run by hand, with headrace[dev] installed, where the model, the text or what is kept changes:
    python tests/data/references/make_references.py [--check]
It takes some minutes of processor time. --check allows for what another processor's order of sums may change.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "engine"))

import real_references as real  # noqa: E402

from headrace.checkpoints.checkpoint import open_checkpoint  # noqa: E402
from headrace.hub.catalogue import cached_path  # noqa: E402

MODEL = "smollm2"


def logits() -> real.Arrays:
    path = cached_path(MODEL)
    return real.compute_logits(path, real.pieces(open_checkpoint(path).metadata, sum(real.STRETCHES)))


def text() -> real.Arrays:
    with tempfile.TemporaryDirectory() as folder:
        real.convert(cached_path(MODEL), Path(folder))
        facts = real.facts_of(Path(folder))
        return {**facts, **real.compute_text(Path(folder), real.windows(Path(folder)))}


def compare(made: real.Arrays, before: real.Arrays) -> list[str]:
    """Lines that say what differs."""
    told = [f"{key} is new or gone" for key in made.keys() ^ before.keys()]
    for key in made.keys() & before.keys():
        if made[key].shape != before[key].shape:
            told.append(f"{key} has the shape {before[key].shape}, {made[key].shape} is made now")
        elif key in ("top", "some", "spread", "error"):
            worst = float(np.abs(made[key] - before[key]).max())
            limit = 0.1 if key == "error" else 1e-3
            told += [f"{key} differs by {worst:.1e}, {limit:.0e} is allowed"] if worst > limit else []
        elif key != "top_ids":  # equal logits may change places
            told += [f"{key} differs"] if not np.array_equal(made[key], before[key]) else []
    return told


def main(check: bool) -> int:
    wrong = 0
    for kind, make in (("logits", logits), ("text", text)):
        name, made = f"{MODEL}-{kind}", make()
        if not check:
            np.savez_compressed(HERE / f"{name}.npz", **made)
            print(f"{name}.npz: {(HERE / f'{name}.npz').stat().st_size >> 10} KiB")
            continue
        before = real.kept(name)
        told = ["is not there"] if before is None else compare(made, before)
        print(f"{name}: {'; '.join(told) or 'transformers gives the same'}")
        wrong += bool(told)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
