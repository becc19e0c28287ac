"""`headrace serve`: start the engine, open the port, drain on SIGTERM.

The port opens only when the engine is ready, so a client that connects gets an answer. It is bound before the model
loads, so that a port in use is an error at once. The first SIGTERM or SIGINT drains: the port stays open and answers
503 while running requests finish, for `drain_timeout` at most. A second signal ends everything at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from headrace import event_loop
from headrace.client.api import EngineClient
from headrace.config import Config
from headrace.engine.launch import EngineProcessHandle
from headrace.environment import read_environment
from headrace.errors import ConfigError
from headrace.hub.model_reference import display_name
from headrace.keys.key_ring import KeyRing
from headrace.server.app import create_app_for
from headrace.server.context import Context, ServerTokenizer, make_context
from headrace.server.descriptor_watch import DescriptorWatch
from headrace.server.draining import drain, shut_down
from headrace.server.first_prompt import ask
from headrace.server.http_server import (
    HttpServer,
    StopSignals,
    ignoring_signals_after,
    make_server,
    print_line,
    signals,
    until_started,
    wait_for_either,
)
from headrace.server.listening import Tls, base_url, bound
from headrace.server.model_pool import ModelPool
from headrace.server.pool_client import NoTokenizer, PoolClient
from headrace.server.state_base import owned
from headrace.server.zmq_events import ZmqPublisher, import_zmq

__all__ = ["run", "run_pool", "serve"]


def run(
    config: Config,
    model_path: Path,
    first_prompt: str | None = None,
    launched: EngineProcessHandle | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> int:
    """Serve until a signal comes; returns the exit code. Raises what the engine raises while it loads, and ConfigError.
    `launched`: the engine's process, if it has been started already. `progress(stage, done)`: as for `ProcessClient`.

    The process must end after this call: once a signal has ended the server, later signals are ignored, so that they
    don't change the exit code.
    """
    # Here, so that the application can be imported without the engine.
    from headrace.client.process_client import ProcessClient
    from headrace.tokenization.prompt_files import prompt_files_id
    from headrace.tokenization.tokenizer import load_tokenizer

    config = _with_path(config, model_path)
    with bound(config.server) as listener:
        files = prompt_files_id(str(model_path))
        tokenizer = load_tokenizer(model_path, config.model.chat_template)
        tokenizer.warm_chat_template()
        client = ProcessClient(config, tokenizer, progress, launched=launched)
        serving = serve(config, client, tokenizer, listener, first_prompt, files=files)
        return event_loop.run(ignoring_signals_after(serving))


def run_pool(config: Config, pool: ModelPool, first_prompt: str | None = None) -> int:
    """As `run`, for several models."""
    config = _with_path(config, pool.default.plan.path)
    with bound(config.server) as listener:
        serving = serve(config, PoolClient(pool), NoTokenizer(), listener, first_prompt, pool)
        return event_loop.run(ignoring_signals_after(serving))


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


async def serve(
    config: Config,
    client: EngineClient,
    tokenizer: ServerTokenizer,
    listener: socket.socket,
    first_prompt: str | None = None,
    pool: ModelPool | None = None,
    files: str = "",
) -> int:
    """Start the engine, serve on a bound socket, and stop the engine. Returns the exit code. `pool`: the models, if
    there are several; `client` is then theirs. `files`: those that the tokenizer was loaded from
    (`tokenization.prompt_files`)."""
    started = time.monotonic()
    stop = StopSignals()
    with owned(config.server.state_dir), signals(stop):
        try:
            # Before waiting for the engine, which takes longer.
            context = make_context(client, tokenizer, config)
            context.prompt_files = files
            descriptors = DescriptorWatch()
            asyncio.get_running_loop().set_exception_handler(descriptors.handle)
            if pool is not None:
                pool.front = context
            tls = _tls(config)
            if config.server.kv_events_endpoint is not None:
                import_zmq()
            server = make_server(create_app_for(context, pool), descriptors, tls)
            # Objects of the start-up stay: the garbage collector need not visit them again, so its pauses stay short.
            gc.collect()
            gc.freeze()
            with _reloading(context.keys, tls):
                if await _run_unless(stop.drain, client.start()):
                    await _serve_until(stop, server, context, config, listener, started, first_prompt, pool)
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


async def _serve_until(
    stop: StopSignals,
    server: HttpServer,
    context: Context,
    config: Config,
    listener: socket.socket,
    started: float,
    first_prompt: str | None,
    pool: ModelPool | None,
) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await until_started(server, serving)
    url = base_url(config.server, listener)
    print_line(_ready_line(context, pool, url, time.monotonic() - started))
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
    publisher = _publisher(context, config.server.kv_events_endpoint)
    try:
        await wait_for_either(stop.drain, serving)
        await _drain(stop, server, context, config.server.drain_timeout)
    finally:
        await shut_down(stop, server, serving)
        if context.tracing is not None:
            await asyncio.to_thread(context.tracing.close)
        context.workers.close()
        if publisher is not None:
            publisher.close()
        for store in (context.responses, context.batches):
            if store is not None:
                store.close()


def _ready_line(context: Context, pool: ModelPool | None, url: str, took: float) -> str:
    place = url if url.startswith("unix:") else f"{url}/v1"
    if pool is not None:
        return f"Headrace serves {', '.join(pool.models)} at {place} (ready in {took:.1f} s)"
    info = context.client.info
    return f"Headrace serves {context.model} at {place} ({info.platform}, {info.dtype}, ready in {took:.1f} s)"


def _publisher(context: Context, endpoint: str | None) -> ZmqPublisher | None:
    """Raises ConfigError for an address that cannot be used, and without the library."""
    if endpoint is None:
        return None
    return ZmqPublisher(endpoint, context.client.cache_feed, context.client.info.block_size)


async def _drain(stop: StopSignals, server: HttpServer, context: Context, timeout: float) -> None:
    context.draining = True
    if context.runner is not None:
        # The lines under way are computed after the next start.
        await context.runner.stop()
    await drain(stop, server, context, timeout)


async def _close(client: EngineClient, stop: StopSignals) -> None:
    """Stop the engine: wait for 10 seconds, or for 1 after a second signal."""
    closing = asyncio.ensure_future(client.close())
    hurry = asyncio.ensure_future(stop.now.wait())
    await asyncio.wait({closing, hurry}, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    if not closing.done():
        await asyncio.wait({closing}, timeout=1)
    hurry.cancel()
