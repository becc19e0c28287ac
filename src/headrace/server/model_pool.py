"""The models of one server: loads them on demand, one after the other, and unloads idle ones within the memory limit.

A request *acquires* its model and releases it when its answer is complete; a model that is in use is never unloaded. If
it is not loaded, the request waits for its load, together with all others that want the same model. A load belongs to
the pool: a request that gives up ends nothing but its own wait. Loads run in the order in which they were first asked
for, so no model starves. A load that lacks room unloads idle models, those whose last request is longest ago first. If
all are busy, that model takes no new requests, finishes its running ones, and leaves; its new requests wait for its
turn to be loaded again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from headrace.errors import EngineDead, HeadraceError, Overloaded
from headrace.server.context import Context
from headrace.server.http_errors import HttpError, ShuttingDown
from headrace.server.served_model import ServedModel
from headrace.wording import counted

__all__ = ["Load", "ModelPool", "PoolLimits"]

STARTING = "starting"
_log = logging.getLogger(__name__)

Load = Callable[[ServedModel, Context], Awaitable[Context]]
"""Loads a model and returns its context, made of the server's own; sets the model's `cost` and `info`."""


class PoolLimits:
    """The room that loaded models share."""

    def __init__(self, memory: int | None, models: int | None, by_default: bool = False) -> None:
        """None: without such a limit. `by_default`: the user gave no `memory`, and the loader may set it once it knows
        the device."""
        self.memory, self.models, self.by_default = memory, models, by_default

    def allow(self, loaded: Iterable[ServedModel], new: ServedModel) -> bool:
        others = [model for model in loaded if model is not new]
        if self.models is not None and len(others) >= self.models:
            return False
        # A model alone is loaded in any case: its estimate may be too high.
        return not others or self.memory is None or new.cost + sum(model.cost for model in others) <= self.memory


class ModelPool:
    """Thread: the event loop's."""

    def __init__(self, models: Sequence[ServedModel], limits: PoolLimits, load: Load, load_timeout: float) -> None:
        self.models = {model.name: model for model in models}
        self.limits = limits
        self._load, self._timeout = load, load_timeout
        self.front: Context | None = None
        """The server's own state; set before the first request."""
        self._names = {name: model for model in models for name in model.plan.names}
        self._turn = asyncio.Lock()
        """Held while a model is loaded or unloaded. Its waiters are served in order."""
        self._watchers: set[asyncio.Future[None]] = set()
        """Of those who wait until a request has ended, or one that waited has gone."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def default(self) -> ServedModel:
        """The model of requests that name none: the first."""
        return next(iter(self.models.values()))

    @property
    def loaded(self) -> list[ServedModel]:
        return [model for model in self.models.values() if model.context is not None]

    def find(self, name: str | None) -> ServedModel:
        """The model of a name or an alias; None is the first model. Raises HttpError 404 that lists the models."""
        if name is None:
            return self.default
        found = self._names.get(name) or self._names.get(name.removesuffix(":latest"))
        if found is None:
            names = ", ".join(map(repr, self.models))
            message = f"the model {name[:200]!r} does not exist: this server serves {names}"
            raise HttpError(404, message, param="model", code="model_not_found")
        return found

    async def acquire(self, model: ServedModel) -> Context:
        """The model's context, once it is loaded; `release` follows. Raises HttpError if it sleeps or cannot be loaded,
        and Overloaded if the load takes too long."""
        model.touch()
        self._check_awake(model)
        if model.context is not None and model.lost:
            self._forget(model)
        if model.context is not None and not model.leaving:
            model.users += 1
            return model.context
        waiter: asyncio.Future[Context] = asyncio.get_running_loop().create_future()
        model.waiters.add(waiter)
        try:
            self._want(model)
            await asyncio.wait({waiter}, timeout=self._timeout)
        except asyncio.CancelledError:
            if waiter.done() and waiter.exception() is None:
                self.release(model)
            raise
        finally:
            model.waiters.discard(waiter)
            if not waiter.done():
                waiter.cancel()
                self._tell_change()
        if waiter.cancelled():
            message = f"the model {model.name!r} was not loaded within {self._timeout:g} s"
            raise Overloaded(f"{message}: {self._obstacle(model)}", retry_after=5.0)
        return waiter.result()

    def release(self, model: ServedModel) -> None:
        """A request that has acquired the model has ended."""
        model.users -= 1
        model.touch()
        self._tell_change()
        self.watch_idle(model)

    def watch_idle(self, model: ServedModel) -> None:
        """Unload the model when its time without requests is over."""
        if model.timer is not None:
            model.timer.cancel()
            model.timer = None
        left = model.expires_in
        if left is not None and not model.users and model.context is not None:
            loop = asyncio.get_running_loop()
            model.timer = loop.call_later(left, lambda: self._spawn(self._expire(model)))

    async def unload(self, model: ServedModel, timeout: float) -> None:
        """Unload the model once its running requests have ended; new ones wait for it to be loaded again, or are
        refused if it sleeps. Raises HttpError 409 if they have not ended in time: then nothing has changed."""
        if model.stage == STARTING and model.loading is not None:
            await asyncio.wait({model.loading})
        if model.context is None:
            return
        model.leaving = True
        try:
            until = time.monotonic() + timeout
            while model.users:
                left = until - time.monotonic()
                if left <= 0:
                    message = (
                        f"the model {model.name!r} still answers {counted(model.users, 'request')} after {timeout:g} s"
                    )
                    raise HttpError(409, f"{message}: try again later", code="model_in_use")
                await self._wait_for_change(left)
            async with self._turn:
                if not model.users:
                    await self._unload(model, "as asked")
        finally:
            self._stay(model)

    async def sleep(self, model: ServedModel, timeout: float) -> None:
        """Unload the model, and refuse its requests until `wake`. Raises as `unload`; then it goes on."""
        model.asleep = True
        self._fail_waiters(model, self._sleeps(model))
        try:
            await self.unload(model, timeout)
        except BaseException:
            model.asleep = False
            if model.context is not None:
                self._serve_waiters(model)
            raise

    async def wake(self, model: ServedModel) -> None:
        """Load the model, and take requests for it again. Raises as `acquire`."""
        model.asleep = False
        await self.load(model)

    async def close(self) -> None:
        """Unload all models, at once; requests that wait get an error."""
        self._closed = True
        for model in self.models.values():
            self._fail_waiters(model, ShuttingDown())
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(
            *(self._unload(model, "as the server ends") for model in self.loaded), return_exceptions=True
        )

    async def load(self, model: ServedModel) -> None:
        """Load the model, and return when it is loaded. Raises as `acquire`."""
        await self.acquire(model)
        self.release(model)

    def _check_awake(self, model: ServedModel) -> None:
        if self._closed:
            raise ShuttingDown()
        if model.asleep:
            raise self._sleeps(model)

    def _sleeps(self, model: ServedModel) -> HttpError:
        message = f"the model {model.name!r} sleeps: wake it with POST /wake_up?model={model.name}"
        return HttpError(503, message, kind="server_error", param="model", code="model_asleep")

    def _forget(self, model: ServedModel) -> None:
        """Let go of a model whose engine could not be restarted; it is loaded anew, after a delay."""
        context = model.take_context()
        model.note_failure(EngineDead("its engine ended again and again"))
        if context is not None:
            self._spawn(context.client.close())

    def _want(self, model: ServedModel) -> None:
        """See to it that the model is loaded. Raises HttpError while the next attempt must wait."""
        if model.loading is not None:
            return
        if model.failed is not None and time.monotonic() < model.failed.retry_at:
            raise model.failed.refusal(model.name)
        model.loading = self._spawn(self._bring(model))

    async def _bring(self, model: ServedModel) -> None:
        try:
            async with self._turn:
                if model.context is not None:
                    # It has not left after all.
                    self._stay(model)
                elif await self._make_room(model):
                    await self._start(model)
        except Exception as error:
            refusal = model.note_failure(error).refusal(model.name)
            if not isinstance(error, (HeadraceError, HttpError)):
                _log.exception("the model %s could not be loaded", model.name)
            else:
                _log.error("%s", refusal.message)
            self._fail_waiters(model, refusal)
        finally:
            model.loading, model.stage = None, ""
            # Of a load that did not begin, because nobody waited any more: somebody may have come since.
            if model.waiters and not self._closed and any(not waiter.done() for waiter in model.waiters):
                self._want(model)

    async def _start(self, model: ServedModel) -> None:
        started = time.monotonic()
        model.stage = STARTING
        assert self.front is not None
        context = await self._load(model, self.front)
        model.context, model.failed, model.leaving = context, None, False
        model.loads += 1
        model.load_seconds = time.monotonic() - started
        _log.info("the model %s is loaded, in %.1f s (%.2f GiB)", model.name, model.load_seconds, model.cost / 2**30)
        self._serve_waiters(model)

    def _serve_waiters(self, model: ServedModel) -> None:
        assert model.context is not None
        for waiter in model.waiters:
            if not waiter.done():
                model.users += 1
                waiter.set_result(model.context)
        model.touch()
        self.watch_idle(model)

    def _fail_waiters(self, model: ServedModel, error: Exception) -> None:
        for waiter in model.waiters:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # Mark it as retrieved: the request may be cancelled at the same time.

    async def _make_room(self, model: ServedModel) -> bool:
        """Unload what is in the way. False: nobody wants the model any more."""
        leaving: ServedModel | None = None
        try:
            while not self.limits.allow(self.loaded, model):
                if all(waiter.done() for waiter in model.waiters):
                    return False
                by_age = sorted(self.loaded, key=lambda one: one.used_at)
                idle = next((one for one in by_age if not one.users), None)
                if idle is not None:
                    await self._unload(idle, f"to make room for {model.name}")
                    continue
                if leaving is None or leaving.context is None:
                    leaving = by_age[0]
                    leaving.leaving = True
                model.stage = f"waiting for requests to {leaving.name}"
                await self._wait_for_change(None)
            return bool(model.waiters)
        finally:
            if leaving is not None:
                self._stay(leaving)

    def _stay(self, model: ServedModel) -> None:
        """A model that was to leave and is still loaded takes requests again."""
        if model.leaving:
            model.leaving = False
            if model.context is not None and not model.asleep:
                self._serve_waiters(model)

    async def _unload(self, model: ServedModel, why: str) -> None:
        context = model.take_context()
        if context is not None:
            await context.client.close()
            _log.info("the model %s was unloaded %s", model.name, why)

    async def _expire(self, model: ServedModel) -> None:
        async with self._turn:
            if model.context is not None and not model.users and model.expires_in == 0.0:
                await self._unload(model, f"after {model.keep_alive:g} s without requests")

    def _tell_change(self) -> None:
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)
        self._watchers.clear()

    async def _wait_for_change(self, timeout: float | None) -> None:
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.add(watcher)
        try:
            await asyncio.wait({watcher}, timeout=timeout)
        finally:
            self._watchers.discard(watcher)

    def _obstacle(self, model: ServedModel) -> str:
        return model.stage or "other models are loaded before it"

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
