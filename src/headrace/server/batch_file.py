"""A batch from a file to a file, without a server: `headrace run-batch`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from headrace import event_loop
from headrace.client.api import EngineClient
from headrace.config import Config
from headrace.errors import ConfigError
from headrace.keys.key_ring import ANYONE
from headrace.progress import generating_bar, loading_bar
from headrace.server.app import create_app_for
from headrace.server.batch_lines import read_lines, request_of
from headrace.server.batch_output import answer_of, output_line
from headrace.server.batch_schemas import BatchError
from headrace.server.batch_store import Answer, Line
from headrace.server.context import ServerTokenizer, make_context
from headrace.server.internal_call import call_route, passes

__all__ = ["BatchTotals", "answer_file", "run_batch"]

_SHOWN_ERRORS = 5
_RETRY = 1.0
"""Seconds before a line is tried again that the queue had no room for."""


@dataclass(slots=True)
class BatchTotals:
    earlier: int = 0
    """Lines whose answer was there already."""
    answered: int = 0
    refused: int = 0
    """Lines whose answer has a status of 400 or more."""


def _told(errors: Sequence[BatchError]) -> str:
    """The first errors of an input with their lines, and how many more there are."""
    told = [one.message if one.line is None else f"line {one.line}: {one.message}" for one in errors[:_SHOWN_ERRORS]]
    more = len(errors) - len(told)
    return "; ".join([*told, f"and {more} more"] if more else told)


class _Done(msgspec.Struct):
    custom_id: str


def run_batch(config: Config, model_path: Path, source: Path, target: Path, resume: bool) -> BatchTotals:
    """Answer the lines of `source` into `target`, as they end. `resume`: those that are there already stay. Raises
    ConfigError for a wrong input, and what the engine raises while it loads."""
    from headrace.client.process_client import ProcessClient
    from headrace.tokenization.tokenizer import load_tokenizer

    with source.open("rb") as inputs:
        lines, errors = read_lines(inputs, None)
    if errors:
        raise ConfigError(f"{source}: {_told(errors)}")
    earlier = _earlier(target, resume)
    tokenizer = load_tokenizer(model_path, config.model.chat_template)
    config = config.model_copy(update={"model": config.model.model_copy(update={"model": str(model_path)})})
    with loading_bar() as progress:
        client = ProcessClient(config, tokenizer, progress)
        return event_loop.run(_closing(client, answer_file(client, tokenizer, config, source, target, lines, earlier)))


def _earlier(target: Path, resume: bool) -> set[str]:
    """The ids of the lines that have an answer. What was written of a last line that does not end is removed."""
    if not target.exists() or not target.stat().st_size:
        return set()
    if not resume:
        raise ConfigError(f"{target} exists: give --resume to add what is missing, or another OUTPUT")
    with target.open("r+b") as file:
        whole = 0
        done: set[str] = set()
        for line in file:
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            try:
                done.add(msgspec.json.decode(line, type=_Done).custom_id)
            except msgspec.DecodeError as error:
                raise ConfigError(f"{target} is no output of a batch: {error}") from None
        file.truncate(whole)
    return done


async def _closing(client: EngineClient, work: Awaitable[BatchTotals]) -> BatchTotals:
    try:
        return await work
    finally:
        await client.close()


async def answer_file(
    client: EngineClient,
    tokenizer: ServerTokenizer,
    config: Config,
    source: Path,
    target: Path,
    lines: list[Line],
    earlier: set[str],
) -> BatchTotals:
    """The work of `run_batch` on an engine that has not started yet."""
    context = make_context(client, tokenizer, config)
    app = create_app_for(context)
    totals = BatchTotals(len(earlier))
    waiting = [line for line in lines if line.custom_id not in earlier]
    left = len(waiting)
    await client.start()
    with source.open("rb") as inputs, target.open("ab") as outputs, generating_bar(left, True) as report:

        async def answer(line: Line) -> None:
            inputs.seek(line.start)
            url, body = request_of(inputs.read(line.size))
            while passes(reply := await call_route(app, url, body, ANYONE)):
                await asyncio.sleep(_RETRY)
            _write(outputs, Answer(line.n, line.custom_id, reply.status, answer_of(reply)))
            totals.answered += reply.status < 400
            totals.refused += reply.status >= 400
            if report is not None:
                report(_tokens(reply.body))

        await _in_window(iter(waiting), answer, context.batch_window)
    context.workers.close()
    return totals


def _tokens(body: bytes) -> int:
    """Generated ones."""
    usage = msgspec.json.decode(body).get("usage") or {}
    return int(usage.get("completion_tokens") or usage.get("output_tokens") or 0)


def _write(outputs: BinaryIO, answer: Answer) -> None:
    outputs.write(output_line(answer))
    outputs.flush()
    os.fsync(outputs.fileno())


async def _in_window(lines: Iterator[Line], answer: Callable[[Line], Awaitable[None]], window: int) -> None:
    async def work() -> None:
        for line in lines:
            await answer(line)

    tasks = [asyncio.create_task(work()) for _ in range(window)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
