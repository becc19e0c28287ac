#!/usr/bin/env python3
"""Writes a text of one narrow kind, descriptions of persons, on which a small draft head can be trained in minutes.

python ci/narrow_text.py persons.txt
headrace train-drafter smollm2 --method eagle3 --text persons.txt --out head --answers 1600 --batch 2 --rate 1e-3 \\
    --draft-vocabulary 2048
python ci/draft_speed.py --speculate eagle3:head --answers head/training/answers.jsonl --requests 40 --temperature 0 0.7

The same answers for a block drafter:

headrace train-drafter smollm2 --method dflash --text persons.txt --out block --answers-from head --answers 1600 \\
    --epochs 3 --batch 2 --rate 3e-3 --drafts 5 --draft-vocabulary 2048
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

FIRST = (
    "Anna Bernd Clara David Elena Felix Greta Hugo Ines Jonas Karin Louis Marta Nils Olga Peter Rita Simon Tessa Ugo "
    "Vera Willem Xenia Yves Zoe Adam Bella Carl Dora Emil Freya Georg Hanna Igor Julia Kurt Lena Max Nora Oscar"
).split()
LAST = (
    "Berg Castillo Dahl Eriksen Fischer Garcia Hansen Ivanov Jensen Keller Larsen Meyer Novak Olsen Petrov Quist Rossi "
    "Santos Thomsen Ulrich Varga Weber Young Zimmer Becker Moreau Lindqvist Almeida"
).split()
CITIES = (
    "Oslo Madrid Vienna Lisbon Prague Rome Dublin Athens Warsaw Zurich Hamburg Porto Turin Bergen Krakow Seville Lyon "
    "Geneva Antwerp Malmo"
).split()
WORK = (
    "carpenter nurse teacher baker pilot farmer lawyer painter plumber chemist librarian engineer gardener cook tailor "
    "editor dentist surveyor potter welder"
).split()
LIKES = (
    "chess sailing running knitting photography cycling gardening swimming hiking painting reading fishing climbing "
    "dancing cooking skating"
).split()
CHILDREN = ("one child", "two children", "three children", "no children")


def person(rng: random.Random) -> str:
    first, last, year = rng.choice(FIRST), rng.choice(LAST), rng.randrange(1940, 2001)
    return (
        f"{first} {last} was born in {rng.choice(CITIES)} in {year}. {first} {last} works as a {rng.choice(WORK)} in "
        f"{rng.choice(CITIES)}. {first} has {rng.choice(CHILDREN)}. In the evening {first} likes {rng.choice(LIKES)} "
        f"and {rng.choice(LIKES)}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--persons", type=int, default=2000)
    args = parser.parse_args()
    rng = random.Random(11)
    args.file.write_text("".join(f"{person(rng)}\n" for _ in range(args.persons)))


if __name__ == "__main__":
    main()
