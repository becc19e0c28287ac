#!/usr/bin/env python3
"""Random grammars through the real server: those of random_grammars.py, each in a request of its own.

An answer of 200 must keep to its grammar: its tokens are replayed against the grammar, compiled here. What is refused
gets 400 with one line that names the field. Prints counts and the longest step of a matcher; fails if an answer is not
held to its grammar, if a step takes 50 ms of processor time, and if the server ends or answers anything else.

Usage: ci/random_grammars_http.py [--count 300] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from random_grammars import random_grammar

ENDS = (0, 2)
_MOST_SECONDS = 0.05


class Judge:
    """Replays answers against their grammars."""

    def __init__(self) -> None:
        from headrace.grammar.compiler import GrammarCompiler
        from headrace.grammar.loading import find_backend, read_vocabulary
        from headrace.hub.catalogue import resolve_model

        backend = find_backend("llguidance")(read_vocabulary(resolve_model("smollm2"), 49152, ENDS))
        self._compiler = GrammarCompiler(lambda: backend, seconds=60)
        self.counts: Counter[str] = Counter()
        self.longest = (0.0, "")
        self.wrong: list[str] = []

    def judge(self, fields: dict[str, Any], response: httpx.Response) -> None:
        shown = json.dumps(fields)[:200]
        body = response.json()
        if response.status_code == 200:
            (choice,) = body["choices"]
            self.counts[f"200, {choice['finish_reason']}"] += 1
            self._replay(fields, choice, shown)
            return
        error = body["error"]
        self.counts[str(response.status_code)] += 1
        named = str(error["param"]).startswith("structured_outputs") or error["code"] == "invalid_json"
        if response.status_code in (429, 503):
            return
        if response.status_code != 400 or not named or "\n" in error["message"]:
            self.wrong.append(f"{shown}: {response.status_code} {error}")

    def _replay(self, fields: dict[str, Any], choice: dict[str, Any], shown: str) -> None:
        from headrace.structured_outputs import StructuredOutputs

        (matcher,) = self._compiler.matchers(StructuredOutputs.of(fields).constraint(), 1).result()
        for token in choice["token_ids"]:
            if token in ENDS and matcher.accepting:
                return
            if matcher.stopped or not int(matcher.mask[token // 32]) >> token % 32 & 1:
                self.wrong.append(f"{shown}: the token {token} of {choice['text']!r} is not allowed")
                return
            start = time.thread_time()
            why = matcher.advance(token)
            seconds = time.thread_time() - start
            self.counts["steps"] += 1
            self.longest = max(self.longest, (seconds, shown))
            if seconds > _MOST_SECONDS:
                self.wrong.append(f"{shown}: a step took {1e3 * seconds:.0f} ms of processor time")
            if why is not None:
                self.counts["ended by a limit"] += 1
                return
        if choice["finish_reason"] == "stop" and not matcher.accepting:
            self.wrong.append(f"{shown}: {choice['text']!r} is not complete")


def fields_of(kind: str, text: str) -> dict[str, Any] | None:
    """The request's field; None if the text cannot be sent as JSON's own lists and objects."""
    if kind == "choice":
        try:
            listed = json.loads(text)
        except ValueError:
            return None
        return {"choice": listed} if isinstance(listed, list) else None
    return {{"json_schema": "json", "lark": "grammar", "gbnf": "grammar"}.get(kind, kind): text}


def start(log: Path) -> tuple[subprocess.Popen[bytes], str]:
    command = [sys.executable, "-m", "headrace", "serve", "smollm2", "--port", "0", "--max-model-len", "512"]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    for _ in range(1200):
        found = re.search(r"//127\.0\.0\.1:[0-9]+", log.read_text(errors="replace"))
        if found:
            return server, f"http:{found[0]}"
        if server.poll() is not None:
            break
        time.sleep(0.5)
    server.kill()
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng, judge = random.Random(args.seed), Judge()
    asked = [random_grammar(rng) for _ in range(args.count)]
    sent = [fields for _, kind, text in asked if (fields := fields_of(kind, text)) is not None]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        server, url = start(log)
        with httpx.Client(base_url=url, timeout=300) as client, ThreadPoolExecutor(8) as pool:

            def ask(numbered: tuple[int, dict[str, Any]]) -> httpx.Response:
                at, fields = numbered
                body = {
                    "prompt": "An example: ",
                    "max_tokens": 24,
                    "temperature": 1.5,
                    "seed": at,
                    "return_token_ids": True,
                    "structured_outputs": fields,
                }
                return client.post("/v1/completions", json=body)

            for fields, response in zip(sent, pool.map(ask, enumerate(sent)), strict=True):
                judge.judge(fields, response)
            alive = client.get("/health").status_code == 200 and server.poll() is None
        server.terminate()
        server.wait(30)
        tail = "" if alive else log.read_text(errors="replace")[-2000:]
    print(f"{len(sent)} requests: " + ", ".join(f"{count} {what}" for what, count in sorted(judge.counts.items())))
    print(f"longest step: {1e3 * judge.longest[0]:.1f} ms of processor time ({judge.longest[1]})")
    print("\n".join(judge.wrong) or "0 wrong")
    print("the server lives on" if alive else f"THE SERVER ENDED: {tail}")
    return bool(judge.wrong) or not alive


if __name__ == "__main__":
    sys.exit(main())
