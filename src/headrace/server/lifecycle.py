"""`headrace serve`: start the engine, open the port, drain on SIGTERM.

The port opens only when the engine is ready, so a client that connects gets an answer. It is bound before the model
loads, so that a port in use is an error at once. The first SIGTERM or SIGINT drains: the port stays open and answers
503 while running requests finish, for `drain_timeout` at most. A second signal ends everything at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from headrace import event_loop
from headrace.client.api import EngineClient
from headrace.config import Config
from headrace.engine.launch import EngineProcessHandle
from headrace.environment import read_environment
from headrace.errors import ConfigError
from headrace.hub.model_reference import display_name
from headrace.keys.key_ring import KeyRing
from headrace.progress import loading_bar
from headrace.server.app import create_app_for
from headrace.server.context import Context, ServerTokenizer, make_context
from headrace.server.descriptor_watch import DescriptorWatch
from headrace.server.first_prompt import ask
from headrace.server.http_connection import HttpConnection
from headrace.server.http_errors import ShuttingDown
from headrace.server.listening import Tls, base_url, bound
from headrace.server.state_base import owned

__all__ = ["run", "serve"]

_log = logging.getLogger(__name__)
_FINAL_EVENTS = 1.0
"""Seconds for sending the error events of requests that outlast the drain; after that their connections are closed."""
_HARD_EXIT = 1.0
"""Seconds between a second signal and a hard exit."""
_KEEP_ALIVE = 75
"""Seconds; longer than common clients keep a connection in their pool, so that they never reuse one that the server has
just closed."""


def run(
    config: Config, model_path: Path, first_prompt: str | None = None, launched: EngineProcessHandle | None = None
) -> int:
    """Serve until a signal comes; returns the exit code. Raises what the engine raises while it loads, and ConfigError.
    `launched`: the engine's process, if it has been started already.

    The process must end after this call: once a signal has ended the server, later signals are ignored, so that they
    don't change the exit code.
    """
    # Here, so that the application can be imported without the engine.
    from headrace.client.process_client import ProcessClient
    from headrace.tokenization.tokenizer import load_tokenizer

    config = _with_path(config, model_path)
    with bound(config.server) as listener, loading_bar() as progress:
        tokenizer = load_tokenizer(model_path, config.model.chat_template)
        tokenizer.warm_chat_template()
        client = ProcessClient(config, tokenizer, progress, launched=launched)
        return event_loop.run(_ignoring_signals_after(serve(config, client, tokenizer, listener, first_prompt)))


def _with_path(config: Config, model_path: Path) -> Config:
    """The configuration with the model's path for the engine, and for clients the name that the user gave."""
    name = config.server.served_model_name or display_name(config.model.model)
    given = config.server.api_key
    if given is not None and not given.strip():
        raise ConfigError("--api-key is empty, and would let every client in: give a key, or leave the option out")
    key = given.strip() if given else read_environment().api_key
    server = config.server.model_copy(update={"served_model_name": name, "api_key": key})
    model = config.model.model_copy(update={"model": str(model_path)})
    return config.model_copy(update={"server": server, "model": model})


async def _ignoring_signals_after(work: Coroutine[Any, Any, int]) -> int:
    code = await work
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    return code


class _StopSignals:
    """Events of the first and the second signal."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.now = asyncio.Event()

    def on_signal(self) -> None:
        if not self.drain.is_set():
            self.drain.set()
            return
        self.now.set()
        # Nothing may delay the exit, not even a thread that cannot be stopped. The engine ends with this process.
        asyncio.get_running_loop().call_later(_HARD_EXIT, os._exit, 0)


@contextlib.contextmanager
def _signals(stop: _StopSignals) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.on_signal)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _reloading(keys: KeyRing, tls: Tls | None) -> Iterator[None]:
    """Read the files of keys and of the certificate again at each SIGHUP. Without them the signal keeps its meaning."""
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none.
    if hangup is None or not (keys.has_file or tls):
        yield
        return

    def reload() -> None:
        keys.reload()
        if tls is not None:
            tls.reload()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(hangup, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(hangup)


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers, which would close the port at once."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def refuse_unfinished(self) -> None:
        """Refuse the requests whose body is not complete."""
        for connection in self._connections():
            connection.refuse_unfinished()

    def abort_unread(self) -> None:
        """Abort the answers that clients have not read."""
        for connection in self._connections():
            connection.abort_unread()

    def _connections(self) -> list[HttpConnection]:
        return [one for one in self.server_state.connections if isinstance(one, HttpConnection)]


async def serve(
    config: Config,
    client: EngineClient,
    tokenizer: ServerTokenizer,
    listener: socket.socket,
    first_prompt: str | None = None,
) -> int:
    """Start the engine, serve on a bound socket, and stop the engine. Returns the exit code."""
    started = time.monotonic()
    stop = _StopSignals()
    with owned(config.server.state_dir), _signals(stop):
        try:
            # Before waiting for the engine, which takes longer.
            context = make_context(client, tokenizer, config)
            descriptors = DescriptorWatch()
            asyncio.get_running_loop().set_exception_handler(descriptors.handle)
            tls = _tls(config)
            server = _server_of(context, descriptors, tls)
            # Objects of the start-up stay: the garbage collector need not visit them again, so its pauses stay short.
            gc.collect()
            gc.freeze()
            with _reloading(context.keys, tls):
                if await _run_unless(stop.drain, client.start()):
                    await _serve_until(stop, server, context, config, listener, started, first_prompt)
        finally:
            await _close(client, stop)
    return 0


async def _run_unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work; False if the event comes first, which cancels the work. Raises what the work raises."""
    task, waiter = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.wait({task})
    return False


def _tls(config: Config) -> Tls | None:
    certificate, key = config.server.ssl_certfile, config.server.ssl_keyfile
    return None if certificate is None else Tls(Path(certificate), None if key is None else Path(key))


def _server_of(context: Context, descriptors: DescriptorWatch, tls: Tls | None = None) -> _Server:
    config = uvicorn.Config(
        create_app_for(context),
        loop="none",
        http=partial(HttpConnection, descriptors=descriptors),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
    )
    config.load()
    config.ssl = None if tls is None else tls.context
    return _Server(config)


async def _serve_until(
    stop: _StopSignals,
    server: _Server,
    context: Context,
    config: Config,
    listener: socket.socket,
    started: float,
    first_prompt: str | None,
) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await _until_started(server, serving)
    url = base_url(config.server, listener)
    info = context.client.info
    took = time.monotonic() - started
    _print_line(f"Headrace serves {context.model} at {url}/v1 ({info.platform}, {info.dtype}, ready in {took:.1f} s)")
    if context.batches is not None and context.runner is not None:
        context.batches.sweep()
        context.runner.start()
    if first_prompt is not None:
        # A daemon, so that a running answer doesn't delay the exit.
        threading.Thread(
            target=ask,
            args=(url, context.model, first_prompt, None if context.keys.open else context.keys.internal),
            daemon=True,
            name="first prompt",
        ).start()
    try:
        await _wait_for_either(stop.drain, serving)
        await _drain(stop, server, context, config.server.drain_timeout)
    finally:
        server.should_exit = True
        server.force_exit = stop.now.is_set()
        server.abort_unread()
        await asyncio.wait({serving}, timeout=0.5)
        server.force_exit = True
        await asyncio.wait({serving}, timeout=0.5)
        if context.tracing is not None:
            await asyncio.to_thread(context.tracing.close)
        context.workers.close()
        for store in (context.responses, context.batches):
            if store is not None:
                store.close()


def _print_line(text: str) -> None:
    """Print to stdout. A closed pipe or a full disk does not end the server: serving goes on."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _until_started(server: _Server, serving: asyncio.Task[None]) -> None:
    while not server.started:
        if serving.done():
            try:
                serving.result()
            except OSError as error:
                raise ConfigError(f"cannot listen: {error}; choose another --port or --host") from None
            raise ConfigError("the HTTP server ended before it had started")
        await asyncio.sleep(0.005)


async def _wait_for_either(event: asyncio.Event, task: asyncio.Task[None]) -> None:
    waiter = asyncio.ensure_future(event.wait())
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if task.done():
        task.result()


async def _drain(stop: _StopSignals, server: _Server, context: Context, timeout: float) -> None:
    """Refuse new requests and let running ones finish; those that don't finish in time end with an error."""
    context.draining = True
    if context.runner is not None:
        # The lines under way are computed after the next start.
        await context.runner.stop()
    if context.inflight:
        _log.warning("draining: %d requests get up to %g s; a second signal ends them now", context.inflight, timeout)
    await _wait_until_idle(context, timeout, stop.now)
    for scope in list(context.active):
        scope.stop(ShuttingDown())
    server.refuse_unfinished()
    await _wait_until_idle(context, _HARD_EXIT / 2 if stop.now.is_set() else _FINAL_EVENTS)


async def _wait_until_idle(context: Context, timeout: float, unless: asyncio.Event | None = None) -> None:
    until = time.monotonic() + timeout
    while context.inflight and time.monotonic() < until and not (unless is not None and unless.is_set()):
        await asyncio.sleep(0.02)


async def _close(client: EngineClient, stop: _StopSignals) -> None:
    """Stop the engine: wait for 10 seconds, or for 1 after a second signal."""
    closing = asyncio.ensure_future(client.close())
    hurry = asyncio.ensure_future(stop.now.wait())
    await asyncio.wait({closing, hurry}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    if not closing.done():
        await asyncio.wait({closing}, timeout=1)
    hurry.cancel()
