#!/usr/bin/env python3
"""The programs of `examples/programs` as plans on a Headrace server, beside the same programs by the interpreter over
the server's own API.

    headrace serve smollm2 & python ci/program_speed.py http://127.0.0.1:8000 --pid $! [--rounds 5]
        [--only judge,few_shot] [--peer http://127.0.0.1:8101]

Each round runs each program both ways, in changing order, with the same inputs and the same seed; each run has a cache
of its own (`cache_salt`). Printed are the medians over the rounds: seconds of each way, the ratio within a round,
prompt tokens that were computed, prompt tokens that were made of text, and HTTP requests. The first round is not
counted. "same" says whether both ways gave the same outputs in every round.

With `--pid`, the process of the server, the processor time of the server, its engine and this client is compared, too:
other work on the machine changes it less than the time on the clock. "model" is the engine's part of it, in the plan.
`--peer` is another server, where the interpreter runs the same programs. `--at-once` runs each program so often at the
same time, as a batch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import secrets
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx

from headrace import lang as hl
from headrace.errors import ProgramError

_FOLDER = Path(__file__).parents[1] / "examples" / "programs"
_ESSAY = " ".join(
    f"In year {1900 + 7 * at} the town built bridge number {at}, which cost {at * at + 3} thousand and carried "
    f"{11 * at + 5} carts a day; the council called it {'necessary' if at % 3 else 'too dear'}."
    for at in range(1, 13)
)
_DOCUMENTS = [f"Report {at} of the harbour: {_ESSAY[at * 90 : at * 90 + 500]}" for at in range(8)]
_QUESTION = "A train leaves at 9:40 and takes 2 hours and 35 minutes. When does it arrive?"
CASES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "few_shot": ("classify", ("I would watch it again with anyone who likes the sea.",)),
    "json_extraction": ("extract", ("Invoice 17. Acme Ltd. bills 1,250.50 EUR for paint. Paid on Monday.",)),
    "chat_memory": ("chat", (["I am Ada.", "I like trains.", "Who am I?", "What do I like?"],)),
    "react_agent": ("agent", ("How many days have 7 weeks?",)),
    "self_consistency": ("vote", (_QUESTION,)),
    "tree_of_thought": ("solve", ("Reach the market from the harbour without crossing the river.",)),
    "skeleton_of_thought": ("answer", ("How does one plan a garden?",)),
    "map_reduce": ("summarise", (_DOCUMENTS,)),
    "judge": ("grade", (_ESSAY,)),
    "multiple_choice": ("question", ()),
}


class Salted(httpx.AsyncBaseTransport):
    """Gives all requests of one run a cache of their own, and counts them."""

    def __init__(self) -> None:
        self._inner = httpx.AsyncHTTPTransport()
        self._salt = secrets.token_hex(8)
        self.requests = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        path = request.url.path
        if path in ("/v1/completions", "/v1/chat/completions", "/v1/programs") and request.method == "POST":
            content = json.dumps({**json.loads(await request.aread()), "cache_salt": self._salt}).encode()
            headers = [(name, value) for name, value in request.headers.items() if name != "content-length"]
            request = httpx.Request(
                "POST", request.url, headers=headers, content=content, extensions=request.extensions
            )
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass
class Way:
    """What the counted rounds of one program took in one way."""

    seconds: list[float] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    encoded: list[int] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)

    def median(self, name: str) -> float:
        return statistics.median(getattr(self, name))


class ProcessorTime:
    """Seconds of processor time of a server's process, of its children, and of this process."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid

    def read(self) -> tuple[float, float]:
        """(all, the children alone); zeros without a process to look at."""
        if self._pid is None:
            return 0.0, 0.0
        stats = {int(one.name): _stat(one) for one in Path("/proc").iterdir() if one.name.isdigit()}
        children = sum(seconds for parent, seconds in stats.values() if parent == self._pid)
        return children + stats[self._pid][1] + time.process_time(), children


def _stat(process: Path) -> tuple[int, float]:
    """(parent, seconds); one that has just ended has no parent."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0.0
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", _FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(url: str, name: str, plans: bool, seed: int, at_once: int = 1) -> tuple[Any, float, list[hl.RunResult], int]:
    """(outputs, seconds, results, HTTP requests)"""
    module = example(name)
    program_name, given = CASES[name]
    program = getattr(module, program_name)
    transport = Salted()
    on = hl.server(url, plans=plans, transport=transport)
    rows = [program.bind(*given)] * at_once if given else module.QUESTIONS * 4 * at_once
    if len(rows) > 1:
        program.prepare(rows[0])
        begun = time.perf_counter()
        results = program.run_batch(rows, on=on, seed=seed, progress=False)
    else:
        program.prepare(program.bind(*given))
        begun = time.perf_counter()
        results = [_result(program, given, on, seed)]
    seconds = time.perf_counter() - begun
    outputs = [one.outputs if one.error is None else type(one.error).__name__ for one in results]
    return outputs, seconds, results, transport.requests


def _result(program: Any, given: tuple[Any, ...], on: hl.Server, seed: int) -> hl.RunResult:
    try:
        found: hl.RunResult = program.run(*given, on=on, seed=seed)
    except ProgramError as error:  # A small model's text may break a program's own requirements.
        found = hl.RunResult(error=error)
    return found


def measure(url: str, name: str, rounds: int, clock: ProcessorTime, peer: str | None, at_once: int) -> None:
    where = {"plan": (url, True), "http": (url, False)} | ({} if peer is None else {"peer": (peer, False)})
    ways = {key: Way() for key in where}
    same = ended = True
    for at in range(rounds + 1):
        outputs = {}
        for key in [*where] if at % 2 else [*reversed(where)]:
            place, plans = where[key]
            before = clock.read()
            outputs[key], seconds, results, requests = run(place, name, plans, at, at_once)
            total, engine = (late - early for early, late in zip(before, clock.read(), strict=True))
            ended &= key == "peer" or all(one.error is None for one in results)
            if not at:
                continue
            way = ways[key]
            way.seconds.append(seconds)
            way.computed.append(sum(one.usage.prompt_tokens - one.usage.cached_tokens for one in results))
            way.encoded.append(sum(one.usage.encoded_tokens for one in results))
            way.requests.append(requests)
            way.processor.append(total)
            way.engine.append(engine)
        same &= outputs["plan"] == outputs["http"]
    plan, http = ways["plan"], ways["http"]
    cells = [name, f"{plan.median('seconds'):.2f}", f"{http.median('seconds'):.2f}", _ratio(plan, http, "seconds")]
    if plan.median("processor"):
        cells += [f"{one.median('processor'):.2f}" for one in (plan, http)]
        cells += [_ratio(plan, http, "processor"), f"{plan.median('engine') / plan.median('processor'):.0%}"]
    cells += [f"{plan.median(what):.0f} / {http.median(what):.0f}" for what in ("computed", "encoded", "requests")]
    cells.append(("yes" if same else "no") + ("" if ended else ", failed"))
    if peer is not None:
        cells += [f"{ways['peer'].median('seconds'):.2f}", _ratio(plan, ways["peer"], "seconds")]
    print("| " + " | ".join(cells) + " |", flush=True)


def _ratio(plan: Way, other: Way, what: str) -> str:
    pairs = zip(getattr(plan, what), getattr(other, what), strict=True)
    return f"{statistics.median(two / one for one, two in pairs):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--pid", type=int)
    parser.add_argument("--peer")
    parser.add_argument("--at-once", type=int, default=1)
    args = parser.parse_args()
    processor = ["CPU plan", "CPU HTTP", "HTTP / plan", "model"] if args.pid else []
    columns = ["program", "plan, s", "HTTP, s", "HTTP / plan", *processor, "computed", "tokenised", "requests", "same"]
    columns += ["peer, s", "peer / plan"] if args.peer else []
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in args.only.split(","):
        measure(args.url, name, args.rounds, ProcessorTime(args.pid), args.peer, args.at_once)


if __name__ == "__main__":
    main()
