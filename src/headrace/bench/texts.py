"""The texts that workloads are made of: documentation and source of the standard library, and invented records."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import random
import re
import subprocess
import sys

__all__ = ["corpus", "from_a_line", "records", "sources"]

_MODULES = (
    "argparse asyncio collections configparser csv datetime decimal difflib email fractions functools heapq html "
    "inspect io ipaddress itertools json logging mailbox optparse os pathlib pickle plistlib pprint random re sched "
    "secrets shelve shutil smtplib socket sqlite3 ssl statistics string subprocess tarfile tempfile textwrap threading "
    "traceback typing unittest uuid weakref xml.sax zipfile"
).split()
_SOURCES = "argparse configparser csv difflib mailbox optparse plistlib shelve smtplib statistics tarfile".split()
_FIRST = "Ada Ben Cleo Dan Eva Finn Gia Hugo Ines Jan Kim Leo Mia Noah Olga Paul Rosa Sam Tess Udo Vera Will".split()
_LAST = "Adler Baker Costa Dumas Evans Fischer Garcia Hansen Ivanova Jensen Keller Lopez Moreau Novak Okafor".split()
_TOWNS = "Aarhus Bergen Cork Dresden Evora Freiburg Gdansk Haarlem Innsbruck Jena Krakow Leiden Malmo Nantes".split()
_ROLES = "baker carpenter doctor engineer gardener librarian nurse painter pilot teacher translator".split()


_DOCUMENT = """
import importlib, pydoc, sys
for name in sys.argv[1:]:
    print(pydoc.plain(pydoc.render_doc(importlib.import_module(name))), end="\\0")
"""
_VARYING = re.compile(r"0x[0-9a-f]{6}|frozenset\(\{|^environb? = |^/.*\.py$")
"""What differs between processes or machines: addresses, the order of sets, the environment, where files are."""


@functools.cache
def corpus() -> str:
    """More than a megabyte of English text: the documentation of the standard library's modules. Every process gets the
    same from the same Python: it is made by an isolated one, where nothing else has changed these modules."""
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", _DOCUMENT, *_MODULES]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    pages = []
    for text in found.split("\0")[:-1]:
        lines = (re.sub(r"^[ |]+", "", line).rstrip() for line in text.splitlines())
        pages.append("\n".join(line for line in lines if _tells(line)))
    return "\n\n".join(pages)


def _tells(line: str) -> bool:
    return len(line) > 20 and not set(line) <= set("-=|_ ") and not _VARYING.search(line)


@functools.cache
def sources() -> str:
    """Some hundred kilobytes of Python: the source of some of its modules."""
    return "\n\n".join(inspect.getsource(importlib.import_module(name)) for name in _SOURCES)


def from_a_line(text: str, size: int, rng: random.Random) -> str:
    """A piece of at least `size` characters that begins with one of the text's lines."""
    assert size < len(text) // 2, "the text must offer a choice"
    start = text.rindex("\n", 0, rng.randrange(1, len(text) - size)) + 1
    return text[start : start + size]


def records(size: int, rng: random.Random) -> str:
    """The lines of a JSON array of persons that all have the same fields, at least `size` characters."""
    lines, length = list[str](), 0
    while length < size:
        first, last = rng.choice(_FIRST), rng.choice(_LAST)
        person = {
            "id": len(lines) + 1,
            "first_name": first,
            "last_name": last,
            "email": f"{first}.{last}@example.com".lower(),
            "age": rng.randrange(18, 90),
            "address": {"town": rng.choice(_TOWNS), "postal_code": str(rng.randrange(10000, 99999))},
            "occupation": rng.choice(_ROLES),
            "newsletter": rng.random() < 0.5,
        }
        lines.append(f"  {json.dumps(person)},\n")
        length += len(lines[-1])
    return "".join(lines)
