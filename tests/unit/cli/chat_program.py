"""The chat with sources of its own: `python chat_program.py ARGUMENT...` is `headrace chat ARGUMENT...`.

The model `stuck` loads for ever, `missing` does not exist; every other repeats the question as Python writes it, and
`forever` never ends. A question `lost` finds no server.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.cli import chat_command, model_fetch
from headrace.cli.main import main
from headrace.errors import ConfigError, ModelNotFound


class EchoSource:
    is_remote = True
    tokens = 7

    def __init__(self, name: str | None) -> None:
        self.header = f"model {name or 'default'} on echo"

    def models(self) -> Sequence[str]:
        return ("one", "two")

    def chat(self, messages: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> Iterator[str]:
        text = messages[-1]["content"]
        if text == "lost":
            raise ConfigError("no answer; is the server running?")
        if messages[0]["role"] == "system":
            yield f"(told: {messages[0]['content']}) "
        if text == "forever":
            yield "it begins"
            while True:
                threading.Event().wait(0.05)
                yield "."
        yield f"asked {len(messages)}: `{text!r}`"

    def close(self) -> None:
        pass


def make_source(args: argparse.Namespace, name: str | None) -> Any:
    if name == "stuck":
        print("it loads", flush=True)
        while True:  # Not one wait without end: a signal that comes between its call and its sleep does not end it.
            threading.Event().wait(0.05)
    return EchoSource(name)


def fetch_model(name: str, accepted: bool = False) -> None:
    if name == "missing":
        raise ModelNotFound("model 'missing' is no such path")


chat_command.make_source = make_source
model_fetch.fetch_model = fetch_model  # type: ignore[assignment]
sys.exit(main(["chat", *sys.argv[1:]]))
