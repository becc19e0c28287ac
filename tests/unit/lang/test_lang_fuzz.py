"""Random programs run to their end; random documents are refused with their node, or run.

HEADRACE_LANG_FUZZ=10000 draws so many of each (here: a few hundred).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

from lang_fakes import FakeBackend

from headrace import lang as hl
from headrace.errors import ProgramError

COUNT = int(os.environ.get("HEADRACE_LANG_FUZZ", "200"))
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
                s.gen(self.name(), max_tokens=self.random.randrange(1, 9))

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


async def run(plan: hl.LoadedPlan) -> hl.RunResult:
    backend = FakeBackend(lambda text: "ab"[len(text) % 2])
    given = {"given": "hello"} if plan.plan.inputs else {}
    found = await plan.arun(**given, on=backend, tools={"echo": echo}, seed=1)
    assert found.usage.requests <= hl.check(plan.plan).requests
    return found


def test_random_programs_run_to_their_end_and_the_same_each_time() -> None:
    async def all_of_them() -> None:
        for seed in range(COUNT):
            plan = drawn(seed)
            report = hl.check(plan)
            if report.errors:
                assert "operations" in report.errors[0].message or "at once" in report.errors[0].message, (seed, report)
                continue
            if report.work > 20_000:
                continue
            loaded = hl.load_plan(hl.encode_plan(plan))
            one, two = await run(loaded), await run(loaded)
            assert (one.outputs, one.messages) == (two.outputs, two.messages), seed
            assert hl.plan_graph(plan).startswith("<svg")

    asyncio.run(all_of_them())


def lit(value: Any) -> Any:
    return {"kind": "lit", "value": value}


def refusal(document: Any) -> hl.LoadedPlan | ProgramError:
    try:
        return hl.load_plan(json.dumps(document))
    except ProgramError as error:
        return error


async def failure(plan: hl.LoadedPlan) -> ProgramError | None:
    try:
        await run(plan)
    except ProgramError as error:
        return error
    return None


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


def test_random_documents_are_refused_with_their_node_or_run() -> None:
    bases = [hl.encode_plan(drawn(seed)) for seed in range(40)]

    async def all_of_them() -> tuple[int, int]:
        ran = refused = 0
        for seed in range(COUNT * 3):
            chance = random.Random(seed)
            document = json.loads(bases[seed % len(bases)])
            for _ in range(chance.randrange(1, 3)):
                document = mutated(document, chance)
            plan = refusal(document)
            if isinstance(plan, ProgramError):
                assert plan.node, plan
                refused += 1
                continue
            if hl.check(plan.plan).work > 20_000:
                continue
            error = await failure(plan)
            assert error is None or error.node, error
            ran += 1
        return ran, refused

    ran, refused = asyncio.run(all_of_them())
    assert min(ran, refused) > COUNT // 10
