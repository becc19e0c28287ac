"""The real engine on a tiny model, in this process: requests in, complete answers out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.client.api import GenerateRequest, LogprobEntry, Usage
from headrace.client.in_process_client import InProcessClient
from headrace.config import CacheConfig, Config, DeviceConfig, ModelConfig, SchedulerConfig, TransferConfig
from headrace.engine.stats import EngineStats
from headrace.engine.wire import Command
from headrace.tokenization.tokenizer import load_tokenizer
from headrace.types import SamplingParams

BLOCK = 16
PROGRAM_OPTIONS: dict[str, Any] = {
    "platform": "cpu",
    "threads": 1,
    "num_blocks": 100,
    "max_num_seqs": 8,
    "max_model_len": 512,
}
"""Of the models that the tests of programs run on."""


@dataclass
class Answer:
    """One choice."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[LogprobEntry] = field(default_factory=list)
    prompt_logprobs: list[LogprobEntry] | None = None
    finish: tuple[str | None, int | str | None] = (None, None)
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0))
    pieces: int = 0

    @property
    def bits(self) -> tuple[object, ...]:
        """All that must be the same however it was computed."""
        return self.text, self.ids, self.logprobs, self.prompt_logprobs, self.finish


def config_of(
    model: Path,
    chunk: int = 512,
    seqs: int = 64,
    blocks: int = 400,
    caching: bool = True,
    context: int | None = None,
    speculate: str | None = None,
    connector: str | None = None,
    disk: str | None = None,
    host: int | None = None,
    block: int = BLOCK,
    drafts: str = "auto",
) -> Config:
    return Config(
        model=ModelConfig(model=str(model), max_model_len=context),
        cache=CacheConfig(
            num_blocks=blocks, prefix_caching=caching, block_size=block, kv_disk=disk, kv_host_memory=host
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=seqs, max_num_batched_tokens=chunk, speculate=speculate, draft_quantization=drafts
        ),
        device=DeviceConfig(platform="cpu", threads=1),
        transfer=TransferConfig(role=connector and "both", kv_connector=connector or "tcp", kv_shelf=1 << 24),
    )


class GroupingClient(InProcessClient):
    """Its engine takes all commands of one `group` before its next step. So the schedule depends on the requests alone,
    not on the time at which each arrives."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._held: list[Command] | None = None
        self._whole = threading.Lock()

    @contextmanager
    def group(self) -> Iterator[None]:
        self._held = held = []
        try:
            yield
        finally:
            self._held = None
            with self._whole:
                for command in held:
                    self._send(command)

    def _send(self, command: Command) -> None:
        if self._held is None:
            super()._send(command)
        else:
            self._held.append(command)

    def _take_commands(self, wait: float) -> list[Command]:
        commands = super()._take_commands(wait)
        with self._whole:  # What has been taken may be the beginning of a group.
            return commands + super()._take_commands(0.0)


@asynccontextmanager
async def engine(model: Path, **sizes: Any) -> AsyncIterator[GroupingClient]:
    client = GroupingClient(config_of(model, **sizes), load_tokenizer(model))
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def request(prompt: Sequence[int], id: str = "r", echo: bool = False, **params: Any) -> GenerateRequest:
    defaults = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True, "logprobs": 3}
    return GenerateRequest(id, tuple(prompt), SamplingParams(**{**defaults, **params}), echo=echo)


async def choices(client: InProcessClient, wanted: GenerateRequest) -> list[Answer]:
    found = [Answer() for _ in range(wanted.params.n)]
    async for output in client.generate(wanted):
        answer = found[output.index]
        assert answer.finish[0] is None, "nothing comes after the end"
        answer.text += output.text
        answer.ids += output.token_ids
        answer.logprobs += output.logprobs or []
        answer.prompt_logprobs = answer.prompt_logprobs or output.prompt_logprobs
        answer.finish = (output.finish_reason, output.stop_reason)
        assert output.usage is not None
        answer.usage = output.usage
        answer.pieces += 1
    return found


async def answer(client: InProcessClient, wanted: GenerateRequest) -> Answer:
    (found,) = await choices(client, wanted)
    return found


async def together(client: GroupingClient, wanted: Sequence[GenerateRequest]) -> list[Answer]:
    """The answers to requests that the engine gets at once."""
    with client.group():
        answers = [asyncio.ensure_future(answer(client, one)) for one in wanted]
        try:
            await asyncio.sleep(0)  # Each runs up to its first wait, which is for its output.
        except asyncio.CancelledError:
            for one in answers:
                one.cancel()
            await asyncio.wait(answers)
            raise
    return list(await asyncio.gather(*answers))


async def in_turn(client: InProcessClient, wanted: Sequence[GenerateRequest]) -> list[Answer]:
    return [await answer(client, one) for one in wanted]


def alone(model: Path, wanted: Sequence[GenerateRequest]) -> list[Answer]:
    """The expected answers of all other runs: one request at a time, each prompt in one chunk, nothing cached."""

    async def main() -> list[Answer]:
        async with engine(model, caching=False, seqs=1) as client:
            return await in_turn(client, wanted)

    return asyncio.run(main())


async def idle(client: InProcessClient) -> EngineStats:
    """The leak check: nothing is held within a minute. Turns are counted: a machine that stands still takes none."""
    for _ in range(6000):
        stats = await client.stats()
        held = stats.scheduler
        if (held.running, held.waiting, held.blocks_held) == (0, 0, 0):
            assert held.blocks_free + held.blocks_cached == client.engine_info.num_blocks - 1
            return stats
        await asyncio.sleep(0.01)
    raise AssertionError(f"still held: {held}")
