"""`headrace serve --dry-run`: what would happen, with the reasons, and everything that would make it fail."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config import Config, ServerConfig
from headrace.errors import ConfigError, HeadraceError
from headrace.options import ENGINE, SERVER, Option
from headrace.wording import counted

if TYPE_CHECKING:
    from headrace.engine.dry_run import EnginePlan

__all__ = ["one_line", "show_serve_plan"]

_FAILS = 2
_SECRET = frozenset({"api_key"})


def show_serve_plan(config: Config, name: str = "", others: Sequence[str] = ()) -> int:
    """Print it. Returns the exit code: 0, or 2 if serving would fail. `name`: of the model among several; `others`:
    faults of the whole server, each a line."""
    faults: list[str] = []

    def note(error: HeadraceError) -> None:
        if one_line(error) not in faults:
            faults.append(one_line(error))

    def tried(work: Callable[[], Iterator[str]]) -> None:
        """Print the lines of one part, or note why it fails."""
        try:
            for line in work():
                print(line)
        except HeadraceError as error:
            note(error)

    engine: dict[str, Any] = {}
    path: list[Path] = []
    print(f"model {name}".rstrip())
    tried(lambda: _model(config, engine, path, note))
    if path:
        tried(lambda: _formats(config, path[0]))
    print("server")
    for part in (_address, _keys, _certificate, _tracing, _events, _state):
        tried(partial(part, config.server))
    if config.cache.disk is not None:
        tried(lambda: _disk(config))
    print("options")
    for line in _options(config, engine):
        print(line)
    faults += [fault for fault in others if fault not in faults]
    for fault in faults:
        print(f"error: {fault}")
    print("This would fail." if faults else "This would serve.")
    return _FAILS if faults else 0


def one_line(error: HeadraceError) -> str:
    """As a fault is shown."""
    return " ".join(str(error).split())


def _model(
    config: Config, engine: dict[str, Any], found: list[Path], note: Callable[[HeadraceError], None]
) -> Iterator[str]:
    """`engine` gets the values that the engine would choose, `found` the model's path, `note` a drafter's fault."""
    from headrace.hub.catalogue import find_local

    path = find_local(config.model.model)
    found.append(path)
    plan = _plan(config.model_copy(update={"model": config.model.model_copy(update={"model": str(path)})}), note)
    yield f"  {path}: {counted(plan.layers, 'layer')}, {plan.vocab_size} tokens, {plan.weight_dtype} weights"
    yield "platform"
    yield f"  {plan.platform}"
    yield "choices"
    yield from (f"  {reason}" for reason in plan.reasons)
    yield from _memory(plan)
    resolved = plan.resolved
    engine |= {
        "dtype": resolved.dtype,
        "kv_dtype": resolved.kv_layout.dtype,
        "block_size": resolved.kv_layout.block_size,
        "num_blocks": resolved.num_blocks,
        "max_model_len": resolved.max_model_len,
        "max_num_seqs": resolved.max_num_seqs,
        "max_num_batched_tokens": resolved.max_num_batched_tokens,
        "draft_quantization": plan.draft_quantization,
    }


def _plan(config: Config, note: Callable[[HeadraceError], None]) -> EnginePlan:
    """The engine's plan; where it fails with a drafter, that of one without, which may have other faults."""
    from headrace.engine.dry_run import plan_engine
    from headrace.hub.catalogue import find_local, resolve_drafter

    scheduler = config.scheduler
    try:
        found = scheduler.with_draft_model(lambda name, is_model: resolve_drafter(name, is_model, find_local))
        return plan_engine(config.model_copy(update={"scheduler": found}))
    except HeadraceError as error:
        if scheduler.speculate is None:
            raise
        note(error)
    alone = scheduler.model_copy(update={"speculate": None, "draft_quantization": "auto"})
    return plan_engine(config.model_copy(update={"scheduler": alone}))


def _memory(plan: EnginePlan) -> Iterator[str]:
    tokens = (plan.resolved.num_blocks - 1) * plan.resolved.kv_layout.block_size
    yield "memory"
    yield f"  weights   {_size(plan.weight_bytes)} as stored"
    if plan.draft_bytes:
        kind = "as stored" if plan.draft_quantization == "none" else plan.draft_quantization
        yield f"  drafter   {_size(plan.draft_bytes)}, weights {kind}"
    yield f"  KV cache  {_size(plan.cache_bytes)}: {counted(plan.resolved.num_blocks, 'block')}, {tokens} tokens"
    yield f"  device    {_size(plan.free_bytes)} free of {_size(plan.total_bytes)}"
    needed = plan.weight_bytes + plan.draft_bytes + plan.cache_bytes
    if needed > plan.free_bytes:
        raise ConfigError(
            f"weights and KV cache need {_size(needed)}, but {_size(plan.free_bytes)} are free: choose a smaller "
            "model, --quantize, or less --kv-memory"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 // 10 else f"{count / 2**20:.2f} MiB"


def _formats(config: Config, path: Path) -> Iterator[str]:
    from headrace.server.model_formats import find_formats
    from headrace.tokenization.tokenizer import load_tokenizer

    formats = find_formats(load_tokenizer(path, config.model.chat_template), config.server)
    tools, reasoning = formats.tools, formats.reasoning
    yield "answers"
    yield f"  tool calls: {'none' if tools is None else tools.name}"
    yield f"  reasoning: {'none' if reasoning is None else reasoning.name}"


# Parts of the server: each is tried as serving would use it, and given back.


def _address(config: ServerConfig) -> Iterator[str]:
    from headrace.server.listening import base_url, bound

    with bound(config) as listener:
        yield f"  listens at {base_url(config, listener)}"


def _certificate(config: ServerConfig) -> Iterator[str]:
    from headrace.server.listening import Tls

    if config.ssl_certfile is not None:
        Tls(Path(config.ssl_certfile), None if config.ssl_keyfile is None else Path(config.ssl_keyfile))
        yield f"  certificate {config.ssl_certfile}"


def _keys(config: ServerConfig) -> Iterator[str]:
    from headrace.keys.key_file import read_keys
    from headrace.keys.key_ring import KeyRing

    KeyRing(config.api_key)
    if config.api_keys_file is not None:
        names = [entry.name for entry in read_keys(Path(config.api_keys_file))]
        yield f"  keys of {', '.join(names)}"
    if config.api_key is None and config.api_keys_file is None:
        yield "  no key is needed"


def _tracing(config: ServerConfig) -> Iterator[str]:
    if config.tracing:
        from headrace.server.tracing import Tracing

        Tracing()
        yield "  traces are sent"


def _events(config: ServerConfig) -> Iterator[str]:
    if config.kv_events_endpoint is not None:
        from headrace.server.zmq_events import check_endpoint

        check_endpoint(config.kv_events_endpoint)
        yield f"  publishes the prefix cache's changes at {config.kv_events_endpoint}"


def _state(config: ServerConfig) -> Iterator[str]:
    if config.state_dir is not None:
        _check_folder(Path(config.state_dir))
        yield f"  keeps what clients ask for in {config.state_dir}"


def _disk(config: Config) -> Iterator[str]:
    """Serving goes on without a disk, which is not what was asked for."""
    assert config.cache.disk is not None
    folder, limit = config.cache.disk
    try:
        _check_folder(folder, "--kv-disk")
        yield f"  keeps KV blocks in {folder}, up to {_size(limit)}"
    except ConfigError as error:
        yield f"warning: {one_line(error)}: it would serve, and keep no block there"


def _check_folder(folder: Path, option: str = "--state-dir") -> None:
    """Raises ConfigError for a folder that cannot be written, or made."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}: {folder} cannot be used: {there} is no folder that this user may write to")


def _options(config: Config, engine: Mapping[str, Any]) -> Iterator[str]:
    """Every option with its value: given, chosen by the engine, or the default."""
    for option in (*ENGINE.values(), *SERVER.values()):
        section: Any = getattr(config, option.section)
        value = getattr(section, option.field)
        how = "given" if option.field in section.model_fields_set else "default"
        chosen = engine.get(option.field)
        if chosen is not None and chosen != value:
            how = "chosen" if value in (None, "auto") else f"instead of {value}"
            value = chosen
        yield f"  {option.name:<24} {_shown(option, value):<20} {how}"


def _shown(option: Option, value: object) -> str:
    if value is None or value == {}:
        return "-"
    return "(hidden)" if option.name in _SECRET else str(value)
