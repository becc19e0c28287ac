#!/usr/bin/env python3
"""Holds constrained output to the JSON-Schema-Test-Suite (draft 2020-12) and to the schemas of tests/data/schemas.

Each schema is refused, or: its valid instances are allowed, its invalid ones are not, and random texts that keep to the
mask of the default model's vocabulary are valid by the package jsonschema. Prints counts; fails if one text is wrong.

Usage: ci/json_schema.py [--samples 20] [--model-samples N] [--backend NAME] [--list]
    --model-samples: also N texts of the default model itself at temperature 1, without whitespace between the parts of
        JSON, for each schema that is enforced
    --model-tokens: the longest of these texts
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import re
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal, getcontext
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "json-schema"
_AT_A_TIME = 30
"""Schemas whose texts the model writes in one batch."""
VERSION = "4.26.0"
_SPACE = "\\t\\n\\v\\f\\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
sys.path[:0] = [str(ROOT / "tests" / "unit" / "grammar"), str(BUILD / "library")]


class Group(NamedTuple):
    """One schema with its instances."""

    part: str
    name: str
    schema: Any
    tests: list[tuple[Any, bool]]


def fetch() -> None:
    """The suite from the source distribution of jsonschema, and the package itself as the judge of samples."""
    if (BUILD / "done").exists():
        return
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wanted = f"jsonschema=={VERSION}"
    subprocess.run([*pip, "download", "--no-binary", "jsonschema", "--no-deps", wanted, "-d", BUILD], check=True)
    with tarfile.open(next(BUILD.glob("jsonschema-*.tar.gz"))) as archive:
        members = [m for m in archive if m.isfile() and "/json/tests/draft2020-12/" in m.name and ".." not in m.name]
        archive.extractall(BUILD, members)
    subprocess.run([*pip, "install", "--target", BUILD / "library", wanted, "rfc3339-validator"], check=True)
    (BUILD / "done").touch()


def suite() -> Iterator[Group]:
    folder = next(BUILD.glob("jsonschema-*/json/tests/draft2020-12"))
    for path in sorted(folder.rglob("*.json")):
        place = path.relative_to(folder)
        part = "optional/format" if "format" in place.parts else "optional" if "optional" in place.parts else "required"
        for group in json.loads(path.read_text()):
            tests = [(test["data"], test["valid"]) for test in group["tests"]]
            yield Group(part, f"{place}: {group['description']}", group["schema"], tests)


def own() -> Iterator[Group]:
    for path in sorted((ROOT / "tests" / "data" / "schemas").glob("*.json")):
        for entry in json.loads(path.read_text()):
            tests = [(x, True) for x in entry["valid"]] + [(x, False) for x in entry["invalid"]]
            yield Group("own", f"{path.stem}: {entry['name']}", entry["schema"], tests)


class Checker:
    def __init__(self, samples: int, backend: str) -> None:
        from schema_walk import Walker

        from headrace.grammar.loading import find_backend, read_vocabulary
        from headrace.hub.catalogue import resolve_model

        self.samples = samples
        path = resolve_model("smollm2")
        self.vocabulary = read_vocabulary(path, 49152, (0, 2))
        self.backend = find_backend(backend)(self.vocabulary)
        self.walker = Walker.over(self.vocabulary)
        self.counts: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self.strict_out: list[str] = []
        self.enforced: list[Group] = []

    def check(self, group: Group) -> None:
        from schema_walk import compiled

        found = compiled(self.backend, group.schema)
        self.counts[group.part, "schemas"] += 1
        if isinstance(found, str):
            self.counts[group.part, "refused"] += 1
            return
        self.counts[group.part, "enforced"] += 1
        self.enforced.append(group)
        for data, valid in group.tests:
            self._instance(group, found, data, valid)
        rng = random.Random(group.name)
        for _ in range(self.samples):
            text = self.walker.walk(found.matcher(), rng)
            self.counts[group.part, "samples" if text is not None else "samples cut"] += 1
            if text is not None:
                self.judge(group, text)

    def _instance(self, group: Group, found: Any, data: Any, valid: bool) -> None:
        from schema_walk import accepts, orders, property_names

        names = list(property_names(group.schema))
        allowed = False
        for value in (data, orders(data, names)):
            for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
                allowed = allowed or accepts(found.matcher(), self.vocabulary.encode(text))
        self.counts[group.part, "valid instances" if valid else "invalid instances"] += 1
        if allowed and not valid:
            self.wrong.append(f"{group.name}: the invalid {json.dumps(data)[:100]} is allowed")
        if valid and not allowed:
            self.counts[group.part, "valid ones not allowed"] += 1
            self.strict_out.append(f"{group.name}: {json.dumps(data)[:100]}")

    def judge(self, group: Group, text: str) -> None:
        """A sample must be valid. Numbers are compared as decimals: multiples of 0.0001 are none as doubles."""
        import jsonschema

        # A number may have as many digits as a text has tokens.
        getcontext().prec = 10_000
        schema = json.loads(json.dumps(group.schema), parse_float=Decimal)
        validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": _matches})
        checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
        try:
            validator(schema, format_checker=checker).validate(json.loads(text, parse_float=Decimal))
        except re.error:
            self.counts[group.part, "samples not judged (a pattern that Python lacks)"] += 1
        except (ValueError, jsonschema.ValidationError) as error:
            self.wrong.append(f"{group.name}: the sample {text[:200]!r} is invalid: {str(error).splitlines()[0]}")


def _matches(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Exception]:
    """The keyword `pattern` as ECMA-262 has it: Python's own classes hold other characters."""
    import jsonschema

    parts, in_class = [], False
    for part in re.findall(r"\\.|.", pattern, re.DOTALL):
        in_class = part == "[" or (in_class and part != "]")
        space = _SPACE if in_class else f"[{_SPACE}]"
        parts.append({r"\s": space, r"\S": f"[^{_SPACE}]"}.get(part, part))
    if isinstance(instance, str) and not re.search("".join(parts), instance, re.ASCII):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def from_the_model(checker: Checker, count: int, tokens: int, part: str) -> None:
    """Texts of the default model at temperature 1. The schemas come in a random order, some at a time, with the counts
    after each, so that a run that is stopped has a sample of all."""
    from headrace import LLM, SamplingParams, StructuredOutputs
    from headrace.errors import InvalidRequest

    number, parts = map(int, part.split("/"))
    chosen = list(enumerate(checker.enforced))
    random.Random(1).shuffle(chosen)
    chosen = chosen[number - 1 :: parts]
    started = time.monotonic()
    with LLM("smollm2", max_num_seqs=200, max_model_len=1024) as llm:

        def write(some: list[tuple[int, Group]]) -> None:
            prompts = [f"JSON for the schema {json.dumps(group.schema)[:400]}:\n" for _, group in some]
            params = [
                SamplingParams(
                    max_tokens=tokens,
                    seed=at,
                    n=count,
                    structured_outputs=StructuredOutputs(json=group.schema, whitespace="compact"),
                )
                for at, group in some
            ]
            try:
                answers = llm.generate(prompts, params)
            except InvalidRequest as error:
                # One request that cannot be followed ends all of them.
                if len(some) == 1:
                    checker.counts[some[0][1].part, "schemas that the model could not follow"] += 1
                    print(f"{some[0][1].name}: {error}", flush=True)
                else:
                    for one in some:
                        write([one])
                return
            for (_, group), answer in zip(some, answers, strict=True):
                checker.counts[group.part, "tokens of the model"] += sum(len(one.token_ids) for one in answer.outputs)
                _judge_answer(checker, group, answer.outputs)

        for begin in range(0, len(chosen), _AT_A_TIME):
            some = chosen[begin : begin + _AT_A_TIME]
            write(some)
            totals: Counter[str] = Counter()
            for (_, what), found in checker.counts.items():
                totals[what] += found if "model" in what else 0
            done = f"{begin + len(some)} of {len(chosen)} schemas, {time.monotonic() - started:.0f} s"
            print(f"the model: {done}, {dict(+totals)}, {len(checker.wrong)} wrong", flush=True)


def _judge_answer(checker: Checker, group: Group, choices: list[Any]) -> None:
    for choice in choices:
        complete = choice.finish_reason == "stop"
        checker.counts[group.part, "of the model" if complete else "of the model, cut"] += 1
        if complete:
            checker.judge(group, choice.text)
        elif choice.finish_reason != "length":
            checker.wrong.append(f"{group.name}: {choice.finish_reason}: {choice.error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--model-samples", type=int, default=0)
    parser.add_argument("--model-tokens", type=int, default=200)
    parser.add_argument("--model-part", default="1/1", help="2/3: the second third of these schemas alone")
    parser.add_argument("--backend", default="llguidance", help="llguidance, or the name that a plugin offers")
    parser.add_argument("--list", action="store_true", help="also print the valid instances that are not allowed")
    args = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    fetch()
    importlib.invalidate_caches()
    checker = Checker(args.samples, args.backend)
    for group in (*suite(), *own()):
        checker.check(group)
    if args.model_samples:
        from_the_model(checker, args.model_samples, args.model_tokens, args.model_part)
    for part in dict.fromkeys(part for part, _ in checker.counts):
        counts = {what: count for (of, what), count in checker.counts.items() if of == part}
        print(f"{part}: " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    if args.list:
        print("\n".join(checker.strict_out))
    print("\n".join(checker.wrong) or "0 wrong")
    return bool(checker.wrong)


if __name__ == "__main__":
    sys.exit(main())
