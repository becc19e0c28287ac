#!/usr/bin/env python3
"""Ten thousand random grammars through the compiler: valid ones, broken ones and hostile ones.

Each is refused with one line, or compiled; of the compiled ones a random text is drawn that keeps to the mask. Nothing
may
crash, no mask may allow every token of a constraint that forbids some, and no single step of a matcher may take long.
Prints counts and the longest times.

Usage: ci/random_grammars.py [--count 10000] [--seed 1] [--backend NAME]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from concurrent.futures import TimeoutError as WaitTimeout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "unit" / "grammar"))


def random_schema(rng: random.Random, depth: int = 0) -> Any:
    """A schema of the keywords that clients use, and now and then of those that cannot be enforced."""
    names = ["a", "b", "größe", "id", "x y", 'q"', "\\", ""]
    leaves: list[Any] = [
        {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}, {}, True,
        {"type": "string", "pattern": random_regex(rng)},
        {"type": "string", "minLength": rng.randrange(4), "maxLength": rng.choice([0, 3, 50, 10**6])},
        {"type": "integer", "minimum": rng.randrange(-(10**6), 10**6), "maximum": rng.randrange(-(10**6), 10**9)},
        {"type": "number", "minimum": rng.uniform(-10, 0), "exclusiveMaximum": rng.uniform(0, 1e6)},
        {"multipleOf": rng.choice([2, 0.01, 97, 99_999, 3.7])},
        {"enum": rng.sample(["a", "ß", 1, 1.5, None, True, [], {}, "\n", "long" * 50], 3)},
        {"const": rng.choice([0, "é", [1, 2], {"a": "b"}])},
        {"type": "string", "format": rng.choice(["date", "time", "date-time", "email", "uuid", "uri", "ipv6", "what"])},
        {"$ref": rng.choice(["#", "#/$defs/a", "#/$defs/none", "https://example.org/a"])},
        {"not": {"type": "string"}}, {"uniqueItems": True}, {"minProperties": 2}, {"enum": [2**60]}, False,
    ]  # fmt: skip
    if depth > 3 or rng.random() < 0.35:
        return rng.choice(leaves)

    def inner() -> Any:
        return random_schema(rng, depth + 1)

    kind = rng.randrange(7)
    if kind < 3:
        properties = {name: inner() for name in rng.sample(names, rng.randrange(5))}
        schema = {"type": "object", "properties": properties, "required": [n for n in properties if rng.random() < 0.6]}
        if rng.random() < 0.6:
            schema["additionalProperties"] = rng.choice([False, False, inner()])
        if rng.random() < 0.1:
            schema["patternProperties"] = {random_regex(rng): inner()}
    elif kind == 3:
        schema = {"type": "array", "items": inner(), "minItems": rng.randrange(3), "maxItems": rng.randrange(2, 100)}
    elif kind == 4:
        schema = {"type": "array", "prefixItems": [inner() for _ in range(rng.randrange(1, 4))], "items": inner()}
    else:
        schema = {rng.choice(["anyOf", "anyOf", "oneOf", "allOf"]): [inner() for _ in range(rng.randrange(1, 4))]}
    if depth == 0 and rng.random() < 0.5:
        schema["$defs"] = {"a": inner()}
    return schema


def random_regex(rng: random.Random, depth: int = 0) -> str:
    atoms = [
        "a",
        "b",
        "0",
        ".",
        r"\d",
        r"\w",
        r"\s",
        r"\S",
        "[a-z ]",
        '[^"]',
        r"\.",
        "é",
        r"\p{L}",
        "(?:x|yz)",
        "^",
        "$",
    ]
    if depth > 2 or rng.random() < 0.3:
        return rng.choice(atoms)
    parts = [random_regex(rng, depth + 1) for _ in range(rng.randrange(1, 4))]
    joined = rng.choice(["", "", "|"]).join(parts)
    return f"({joined}){rng.choice(['', '', '*', '+', '?', '{2,9}', '{1,110}', '{0,999}', '{3}'])}"


def random_lark(rng: random.Random) -> str:
    rules = ["start", *[f"r{i}" for i in range(rng.randrange(5))]]
    terms = ['"a"', '"bc"', '"é"', "/[0-9]+/", f"/{random_regex(rng)}/", '""', "NUMBER", *rules]
    lines = []
    for rule in rules:
        sides = [" ".join(rng.choice(terms) + rng.choice(["", "", "*", "?", "+", "{1,50}"])
                          for _ in range(rng.randrange(1, 4))) for _ in range(rng.randrange(1, 4))]  # fmt: skip
        lines.append(f"{rule}: {' | '.join(sides)}")
    return "\n".join([*lines, "NUMBER: /[0-9]+/"])


def random_gbnf(rng: random.Random) -> str:
    rules = ["root", *[f"r{i}" for i in range(rng.randrange(4))]]
    terms = ['"a"', '"bc"', "[0-9]", '[^"]', '"é"', *rules]
    sides = [" ".join(rng.choice(terms) + rng.choice(["", "*", "?", "+"]) for _ in range(rng.randrange(1, 5)))
             for _ in rules]  # fmt: skip
    return "\n".join(f"{rule} ::= {side} | {rng.choice(terms)}" for rule, side in zip(rules, sides, strict=True))


def random_tag(rng: random.Random) -> Any:
    """A structural tag of either form."""
    marks = ["<a", "<b>", "@", "[x", "é:", "<"]
    if rng.random() < 0.5:
        begins = rng.sample(marks, rng.randrange(1, 4))
        structures = [
            {
                "begin": begin + rng.choice(["", "=1>", "q"]),
                "schema": random_schema(rng, 2),
                "end": rng.choice(["</>", "!"]),
            }
            for begin in begins
        ]
        return {"structures": structures, "triggers": begins}
    return {"type": "structural_tag", "format": random_format(rng, marks)}


def random_format(rng: random.Random, marks: list[str], depth: int = 0) -> Any:
    def inner() -> Any:
        return random_format(rng, marks, depth + 1)

    def tag() -> Any:
        end = rng.choice(["</>", "!", ["</>", "!"]])
        return {"type": "tag", "begin": rng.choice(marks), "content": inner(), "end": end}

    leaves = [
        {"type": "const_string", "value": rng.choice(["x", "</>", ""])},
        {"type": "json_schema", "json_schema": random_schema(rng, 2)},
        {"type": "regex", "pattern": random_regex(rng, 1)},
        {"type": "any_text"},
    ]
    kind = rng.randrange(9)
    if depth > 2 or kind < 4:
        return leaves[kind % 4]
    tags = [tag() for _ in range(rng.randrange(1, 3))]
    flags = {name: True for name in ("at_least_one", "stop_after_first") if rng.random() < 0.3}
    return [
        {"type": "sequence", "elements": [inner() for _ in range(rng.randrange(1, 4))]},
        {"type": "or", "elements": [inner() for _ in range(rng.randrange(1, 4))]},
        tags[0],
        {"type": "tags_with_separator", "tags": tags, "separator": rng.choice(["", ", "]), **flags},
        {"type": "triggered_tags", "tags": tags, "triggers": sorted({one["begin"] for one in tags}), **flags},
    ][kind - 4]


def broken(rng: random.Random, text: str) -> str:
    """The text with some characters removed, doubled or replaced."""
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(text) + 1)
        text = (
            text[:at] + rng.choice(["", "{", '"', "\\", "\0", "(", "é", "|", "*", text[at : at + 5]]) + text[at + 1 :]
        )
    return text


def hostile(rng: random.Random) -> tuple[str, str]:
    """Grammars that are meant to cost much."""
    n = rng.choice([50, 300, 1500])
    return rng.choice([
        ("regex", f"(.*a.{{{n}}}){{{n}}}"),
        ("regex", "(" * n + "a" + ")*" * n),
        ("regex", f"(\\p{{L}}{{1,{n}}}|\\w{{1,{n}}}){{1,{n}}}"),
        ("regex", "|".join(f"{i * 7919:x}" for i in range(n * 10))),
        ("lark", "start: start start | \"a\" | "),
        ("lark", "start: " + " ".join(["a"] * n) + '\na: | "x"'),
        ("lark", "\n".join(["start: r0", *[f'r{i}: r{(i * 7 + 1) % n} r{(i + 1) % n} | "a"' for i in range(n)]])),
        ("gbnf", "\n".join(["root ::= r0", *[f'r{i} ::= r{(i + 1) % n} r{(i * 3) % n} | "b"' for i in range(n)]])),
        ("json_schema", json.dumps({"properties": {f"p{i}": {"pattern": f"^a{{{i % 90}}}.*b$"} for i in range(n)}})),
        ("json_schema", json.dumps({"allOf": [{"anyOf": [{"properties": {f"p{i}": {"const": j}}} for j in range(3)]}
                                              for i in range(n)]})),
        ("json_schema", json.dumps({"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i + 1) % n}"}, {"items": {
            "$ref": f"#/$defs/d{(i * 3) % n}"}}]} for i in range(n)}, "$ref": "#/$defs/d0"})),
        ("json_schema", '{"items":' * n + "{}" + "}" * n),
        ("json_schema", json.dumps({"type": "string", "minLength": n * 1000, "maxLength": n * 2000})),
        ("json_schema", json.dumps({"type": "integer", "multipleOf": n * 66 + 1})),
        ("json_schema", json.dumps({"type": "array", "minItems": n, "items": {"type": "array", "minItems": n}})),
        ("choice", json.dumps([f"{'x' * (i % 40)}{i}" for i in range(n * 5)])),
    ])  # fmt: skip


def random_grammar(rng: random.Random) -> tuple[str, str, str]:
    """(class, kind, text)."""
    if rng.random() < 0.02:
        return ("hostile", *hostile(rng))
    kind = rng.choice(["json_schema"] * 3 + ["regex", "lark", "gbnf", "choice", "structural_tag"])
    text = {
        "json_schema": lambda: json.dumps(random_schema(rng)),
        "regex": lambda: random_regex(rng),
        "lark": lambda: random_lark(rng),
        "gbnf": lambda: random_gbnf(rng),
        "structural_tag": lambda: json.dumps(random_tag(rng)),
        "choice": lambda: json.dumps(
            rng.sample(["yes", "no", "vielleicht", "é", "a b", '"', "\n"], rng.randrange(1, 5))
        ),
    }[kind]()
    if rng.random() < 0.25:
        return "broken", kind, broken(rng, text)
    return "valid", kind, text


class Meter:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.longest: dict[str, tuple[float, str]] = {}

    def time(self, what: str, seconds: float, grammar: str) -> None:
        if seconds > self.longest.get(what, (0.0, ""))[0]:
            self.longest[what] = seconds, grammar


def walk(meter: Meter, matcher: Any, vocabulary: Any, rng: random.Random, grammar: str) -> str:
    """A random text; returns how it ended."""
    import numpy as np

    ends = list(vocabulary.eos_token_ids)
    for _ in range(40):
        if matcher.stopped:
            return "stopped"
        bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little").astype(np.bool_)
        assert bits.any(), f"an empty mask: {grammar}"
        assert not bits[list(vocabulary.special_ids - set(ends))].any(), f"control tokens: {grammar}"
        assert bits[ends].all() == bits[ends].any() == matcher.accepting, f"ends: {grammar}"
        bits[ends] = False
        allowed = np.flatnonzero(bits)
        if not len(allowed):
            return "complete"
        start, cpu = time.perf_counter(), time.thread_time()
        why = matcher.advance(int(allowed[rng.randrange(len(allowed))]))
        # The processor's time first: this thread may wait for its turn between the two.
        used, passed = time.thread_time() - cpu, time.perf_counter() - start
        meter.time("step, wall", passed, grammar)
        meter.time("step, processor", used, grammar)
        meter.counts["steps"] += 1
        if why is not None:
            return "ended by a limit"
    return "under way"


def check_refusal(message: str, grammar: str) -> None:
    assert 0 < len(message) < 500, grammar
    assert "\n" not in message, grammar


def main() -> int:
    from headrace.errors import InvalidRequest, Overloaded
    from headrace.grammar.compiler import GrammarCompiler
    from headrace.grammar.loading import find_backend, read_vocabulary
    from headrace.hub.catalogue import resolve_model
    from headrace.types import Constraint

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backend", default="llguidance", help="llguidance, or the name that a plugin offers")
    args = parser.parse_args()
    rng, meter = random.Random(args.seed), Meter()
    vocabulary = read_vocabulary(resolve_model("smollm2"), 49152, (0, 2))
    backend = find_backend(args.backend)(vocabulary)
    compiler = GrammarCompiler(lambda: backend)
    for _ in range(args.count):
        group, kind, text = random_grammar(rng)
        shown = f"{kind} {text[:120]!r}"
        start = time.perf_counter()
        try:
            kinds: Any = kind
            (matcher,) = compiler.matchers(Constraint(kinds, text), 1).result(10)
        except InvalidRequest as refusal:
            check_refusal(str(refusal), shown)
            what = "refused after 2 s" if "takes more than" in str(refusal) else "refused"
        except Overloaded:
            what = "put off"
            time.sleep(1)
        except WaitTimeout:
            print(f"NOT ANSWERED WITHIN 10 S: {shown}")
            return 1
        else:
            what = walk(meter, matcher, vocabulary, rng, shown)
        meter.time("compiled or refused", time.perf_counter() - start, shown)
        meter.counts[f"{group}: {what}"] += 1
    for name, count in sorted(meter.counts.items()):
        print(f"{count:7d} {name}")
    for name, (seconds, grammar) in meter.longest.items():
        print(f"longest {name}: {1e3 * seconds:.1f} ms ({grammar})")
    compiler.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
