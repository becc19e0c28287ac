"""Opens the connector through which blocks pass between engines, as the configuration asks."""

from __future__ import annotations

import secrets
from pathlib import Path

from headrace.config import Config
from headrace.core.block_source import BlockSource
from headrace.engine.block_identity import BlockIdentity
from headrace.engine.wire import TransferInfo
from headrace.environment import read_environment
from headrace.errors import ConfigError
from headrace.resolution import Resolved
from headrace.tiers.peer_tier import PeerTier
from headrace.transfer.connectors.connector import ConnectorSettings
from headrace.transfer.connectors.finding import find_connector, open_connector
from headrace.transfer.identity import Identity
from headrace.transfer.sealed import HEADER_BYTES

__all__ = ["check_peers", "open_peers", "try_peers"]

_STAGING = 256 << 20
"""Bytes of blocks that are under way to this engine."""
_LEAST_STAGING = 32


def check_peers(config: Config) -> None:
    """Raises ConfigError and PluginError for a connector or a secret that is not there."""
    if config.transfer.role is not None:
        find_connector(config.transfer.kv_connector)
        _secret(config)


def open_peers(
    config: Config, resolved: Resolved, blocks: BlockIdentity, below: BlockSource | None
) -> tuple[PeerTier, TransferInfo, str]:
    """The source of blocks of other engines, before `below`, how they reach this one, and a line that describes both.
    Raises ConfigError."""
    given, kv = config.transfer, resolved.kv_layout
    identity = Identity(
        model=blocks.model,
        layout_id=blocks.layout_id,
        dtype=kv.dtype,
        block_size=kv.block_size,
        block_bytes=blocks.block_bytes,
        tensor_parallel_size=config.parallel.tensor_parallel_size,
        pipeline_parallel_size=config.parallel.pipeline_parallel_size,
        epoch=secrets.randbits(32),
        content_id=blocks.content_id,
        form=blocks.form,
        drafter=blocks.drafter,
    )
    size = HEADER_BYTES + blocks.block_bytes
    settings = ConnectorSettings(
        identity,
        _secret(config),
        listen=given.kv_listen or "",
        shelf_blocks=given.kv_shelf // size,
        staging_blocks=max(_LEAST_STAGING, _STAGING // size),
        lease=given.kv_lease,
    )
    connector = open_connector(given.kv_connector, settings)
    content = blocks.content_id if blocks.form is not None else b""
    info = TransferInfo(connector.name, connector.address, identity.epoch, blocks.layout_id, given.kv_lease, content)
    line = f"KV blocks of other engines, and up to {settings.shelf_blocks} for them at {connector.address}"
    return PeerTier(connector, kv.block_size, blocks.block_bytes, settings.staging_blocks, below), info, line


def try_peers(config: Config, resolved: Resolved, block_bytes: int) -> None:
    """Open what `open_peers` would, and close it: an address, a secret or a library may be missing. Raises ConfigError
    and PluginError."""
    if config.transfer.role is not None:
        open_peers(config, resolved, BlockIdentity("", b"", b"", block_bytes, "", None), None)[0].close()


def _secret(config: Config) -> bytes:
    path = config.transfer.kv_secret_file
    if path is None:
        return (read_environment().kv_secret or "").encode()
    try:
        secret = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"kv_secret_file {path} cannot be read: {error}") from error
    if not secret:
        raise ConfigError(f"kv_secret_file {path} is empty: write a secret into it, or leave the option out")
    return secret.encode()
