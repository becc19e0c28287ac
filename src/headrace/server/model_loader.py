"""Loads a model of a pool: its tokenizer, its engine in a process of its own, and the context of its requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from headrace.client.api import EngineClient
from headrace.config import Config
from headrace.engine.launch import EngineProcessHandle, launch
from headrace.server.context import Context, ServerTokenizer
from headrace.server.model_budget import with_kv
from headrace.server.model_formats import find_formats
from headrace.server.model_pool import PoolLimits
from headrace.server.served_model import ServedModel

__all__ = ["ModelLoader", "OpenEngine", "OpenedEngine", "ProcessEngines", "Progress"]

_DEVICE_SHARE = 0.9
"""Of the device's memory, for all models together if the user gives no limit."""


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """An engine that is ready."""

    client: EngineClient
    tokenizer: ServerTokenizer
    memory: int = 0
    """Bytes that it takes, with its KV cache; 0: unknown."""
    device_memory: int = 0
    """Bytes of the device's own memory; 0 on the host."""
    gave_up: Callable[[], bool] = lambda: False
    """Whether it has ended and is not started again."""
    release: Callable[[], None] = lambda: None
    """Gives back what the tokenizer holds, after the last request."""


Progress = Callable[[str, float], None]
OpenEngine = Callable[[Config, Progress], Awaitable[OpenedEngine]]
"""Opens an engine for a configuration whose model is a path. Raises HeadraceError."""


class ProcessEngines:
    """Opens engines in processes of their own. The first takes over the process that was `launched`, if any."""

    def __init__(self, launched: EngineProcessHandle | None, progress: Progress | None = None) -> None:
        """`progress(stage, done)` is called for every load, beside the model's own."""
        self._launched, self._progress = launched, progress

    async def __call__(self, config: Config, progress: Progress) -> OpenedEngine:
        # Late, so that the application can be imported without the engine.
        from headrace.client.process_client import ProcessClient
        from headrace.tokenization.tokenizer import load_tokenizer

        taken, self._launched = self._launched, None

        def told(stage: str, done: float) -> None:
            progress(stage, done)
            if self._progress is not None:
                self._progress(stage, done)

        with contextlib.ExitStack() as stack:
            # The process imports its libraries while the tokenizer loads; it ends if that fails.
            launched = stack.enter_context(taken or launch())
            tokenizer = await asyncio.to_thread(load_tokenizer, config.model.model, config.model.chat_template)
            tokenizer.warm_chat_template()
            client = ProcessClient(config, tokenizer, told, launched=launched)
            await client.start()
        info = client.engine_info
        memory, device = info.memory_bytes, info.device_bytes
        return OpenedEngine(client, tokenizer, memory, device, lambda: client.gave_up, tokenizer.close)


class ModelLoader:
    """A `model_pool.Load`."""

    def __init__(self, open_engine: OpenEngine, limits: PoolLimits, kv_bytes: int | None, together: int | None) -> None:
        """`kv_bytes`: of each model's cache; None: a share of the free memory, for so many models `together`, or
        the default share (None)."""
        self._open, self._limits = open_engine, limits
        self._kv_bytes, self._together = kv_bytes, together

    async def __call__(self, model: ServedModel, front: Context) -> Context:
        plan = model.plan

        def progress(stage: str, done: float) -> None:
            model.progress = (stage, done)

        opened = await self._open(with_kv(plan.config, self._kv_bytes, self._together), progress)
        try:
            context = replace(
                front,
                client=opened.client,
                tokenizer=opened.tokenizer,
                model=plan.name,
                aliases=plan.aliases,
                max_choices=plan.config.scheduler.max_waiting,
                formats=find_formats(opened.tokenizer, plan.config.server),
                metrics=model.metrics,
                program_places=None,
                program_texts=None,
            )
            model.info, model.gave_up, model.release = opened.client.info, opened.gave_up, opened.release
            model.cost = opened.memory or model.cost
            if opened.device_memory and self._limits.by_default:
                self._limits.memory = int(opened.device_memory * _DEVICE_SHARE)
        except BaseException:
            opened.release()
            await opened.client.close()
            raise
        return context
