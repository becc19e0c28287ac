"""Writes random programs, and changes documents of plans at random places."""

from __future__ import annotations

import json
import random
from typing import Any

from headrace import lang as hl

__all__ = ["Writer", "drawn", "echo", "lit", "mutated"]

MOST_DEPTH = 4


class Writer:
    """Writes a random program on a state."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"v{self.names % 7}"

    def text(self, s: hl.State) -> Any:
        """A constant or a variable."""
        known = [name for name in (f"v{index}" for index in range(7)) if name in s]
        if known and self.random.random() < 0.6:
            return s[self.random.choice(known)].to_text()
        return self.random.choice(["", "a", "b c", "é\n"])

    def condition(self, s: hl.State) -> Any:
        return s.set("c", self.text(s)).contains("a") | (s["c"].length() > self.random.randrange(9))

    def block(self, s: hl.State, depth: int) -> None:
        for _ in range(self.random.randrange(1, 4)):
            self.step(s, depth)

    def step(self, s: hl.State, depth: int) -> None:
        steps = [self.user, self.assistant, self.variable, self.call]
        if depth < MOST_DEPTH:
            steps += [self.branch, self.fork, self.loop, self.repeat, self.other]
        self.random.choice(steps)(s, depth)

    def user(self, s: hl.State, depth: int) -> None:
        s.user(self.text(s), self.text(s))

    def assistant(self, s: hl.State, depth: int) -> None:
        with s.assistant():
            s.text(self.text(s))
            if self.random.random() < 0.5:
                s.select(self.name(), ["a", "b", "ab"], method=self.random.choice(["greedy", "mean", "unconditional"]))
            else:
                for _ in range(self.random.randrange(1, 4)):
                    stop = self.random.choice([None, None, "e", "ab"])
                    s.gen(self.name(), max_tokens=self.random.randrange(1, 9), stop=stop)
                    s.text(self.text(s))
                if self.random.random() < 0.2:
                    s.select(self.name(), ["a", "b"])

    def variable(self, s: hl.State, depth: int) -> None:
        name, value = self.name(), self.text(s)
        s[name] = value if self.random.random() < 0.5 else hl.list_of(value, "x")[0]

    def call(self, s: hl.State, depth: int) -> None:
        s[self.name()] = hl.call("echo", text=self.text(s)).to_text()

    def branch(self, s: hl.State, depth: int) -> None:
        with hl.if_(self.condition(s)):
            self.block(s, depth + 1)
        if self.random.random() < 0.5:
            with hl.else_():
                self.block(s, depth + 1)

    def fork(self, s: hl.State, depth: int) -> None:
        with s.fork(self.random.randrange(4)) as branch:
            branch["kept"] = branch.index.to_text()
            self.block(branch, depth + 1)
        s[self.name()] = branch.join("kept")

    def loop(self, s: hl.State, depth: int) -> None:
        with hl.for_(["a", "b"][: self.random.randrange(3)]) as item:
            s[self.name()] = item.to_text()
            self.block(s, depth + 1)

    def repeat(self, s: hl.State, depth: int) -> None:
        count = f"n{depth}"
        s[count] = 0
        most = self.random.randrange(3)
        with hl.while_(lambda: s[count] < most, max=2):
            s[count] = s[count] + 1
            self.block(s, depth + 1)

    def other(self, s: hl.State, depth: int) -> None:
        self.block(hl.new_state(), depth + 1)


def drawn(seed: int) -> hl.Plan:
    writer = Writer(seed)

    @hl.program(name=f"drawn{seed}")
    def program(s: hl.State, given: str) -> None:
        s["v0"] = given
        writer.block(s, 0)

    return program.compile()


def echo(text: str) -> str:
    return text[:20]


def lit(value: Any) -> Any:
    return {"kind": "lit", "value": value}


def mutated(document: Any, chance: random.Random) -> Any:
    """The document with one place changed."""
    places: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        for key in keys:
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                waiting.append(node[key])
    holder, key = chance.choice(places)
    other, other_key = chance.choice(places)
    change = chance.randrange(5)
    if change == 0 and isinstance(holder, dict):
        del holder[key]
    elif change == 1 and isinstance(holder, list):
        holder.append(holder[key])
    elif change == 2 and isinstance(holder[key], int):
        holder[key] = chance.choice([None, "", "a", [], {}, 7, 1.5, {"kind": "ref", "id": 0}, lit(3)])
    else:
        holder[key] = json.loads(json.dumps(other[other_key]))
    return document
