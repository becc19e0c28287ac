"""List the catalogue: every model that has a name, and whether it is in the cache."""

from __future__ import annotations

import argparse
import json
from typing import Any

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def run(args: argparse.Namespace) -> int:
    from headrace.hub.catalogue import CATALOGUE, find_cached, terms_of

    rows: list[dict[str, Any]] = []
    for entry in CATALOGUE.values():
        path = find_cached(entry.name)
        rows.append(
            {
                "name": entry.name,
                "size": entry.size,
                "license": entry.license,
                "summary": entry.summary,
                "path": None if path is None else str(path),
                "terms_accepted": terms_of(entry.name) is None,
            }
        )
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        print(f"{row['name']:<14}{row['size'] / 1e6:>5.0f} MB  {row['license']:<20}{row['summary']}")
        where = row["path"] or f"not here yet: headrace pull {row['name']}"
        print(f"{'':<14}{where}")
    return 0
