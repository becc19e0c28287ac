"""The client of a server with several models, in the place of one engine's: it starts and ends them all.

No request reaches it: each gets its own model's client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NoReturn

from headrace.client.api import GenerateRequest, ModelInfo, Output
from headrace.client.cache_feed import CacheFeed
from headrace.client.request_outputs import TextStream
from headrace.engine.profiling import ProfileReport
from headrace.engine.stats import EngineStats, EngineView
from headrace.errors import EngineDead, HeadraceError
from headrace.server.http_errors import HttpError
from headrace.server.model_pool import ModelPool
from headrace.tokenization.chat_inputs import ChatInputs

__all__ = ["NoTokenizer", "PoolClient"]


def _none() -> NoReturn:
    raise HttpError(400, "this route does not say which model it is for, and there are several", code="no_model")


class PoolClient:
    """An `EngineClient` without an engine."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool

    @property
    def info(self) -> ModelInfo:
        """Of the first model; of one that has not been loaded, its name alone."""
        first = self._pool.default
        return first.info or ModelInfo(first.name, str(first.plan.path), 0, 0, "", "")

    @property
    def cache_feed(self) -> CacheFeed:
        _none()

    async def start(self) -> None:
        """Load the models that are to be loaded at the start. Raises the first error."""
        for model in self._pool.models.values():
            if model.plan.preload:
                try:
                    await self._pool.load(model)
                except HttpError as error:
                    raise EngineDead(error.message) from None

    async def check_health(self) -> None:
        """Raises EngineDead if models are loaded, or should be, and none of them works."""
        states = [await self.health_of(name) for name in self._pool.models]
        if not any(state in ("loaded", "loading", "unloaded", "asleep") for state in states):
            raise EngineDead(
                "no model works: " + "; ".join(map(": ".join, zip(self._pool.models, states, strict=True)))
            )

    async def health_of(self, name: str) -> str:
        """The model's state; what is wrong with its engine, if so. Why a load failed is for clients with a key."""
        model = self._pool.models[name]
        if model.state != "loaded" or model.context is None:
            return model.state
        try:
            await model.context.client.check_health()
        except HeadraceError as error:
            return str(error)
        return "loaded"

    async def close(self) -> None:
        await self._pool.close()

    def generate(self, request: GenerateRequest) -> AsyncIterator[Output]:
        _none()

    async def abort(self, request_id: str) -> None:
        _none()

    def park(self, request_id: str) -> None:
        _none()

    def release(self, request_ids: Sequence[str]) -> None:
        _none()

    async def stats(self) -> EngineStats:
        _none()

    async def view(self) -> EngineView:
        _none()

    async def flush_cache(self) -> int:
        _none()

    async def start_profile(self, folder: str, steps: int) -> None:
        _none()

    async def stop_profile(self) -> ProfileReport:
        _none()


class NoTokenizer:
    """The `ServerTokenizer` beside it."""

    template_source = ""
    response_template: Any = None
    named_tokens: Mapping[str, str] = {}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return []

    def encode_chat(self, text: str, add_special_tokens: bool = False) -> list[int]:
        _none()

    def encode_plain(self, text: str) -> list[int]:
        _none()

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        _none()

    def token_text(self, token_id: int) -> str:
        _none()

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Sequence[int] = ()) -> TextStream:
        _none()

    async def apply_chat_template_async(self, inputs: ChatInputs) -> str:
        _none()
