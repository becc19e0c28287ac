"""Prefill apart from decode, at the HTTP edge: `kv_transfer_params` in vLLM's form, and the engine's role.

A request with `do_remote_decode` is computed here and continued elsewhere: its answer's `kv_transfer_params` say where
the blocks of its prompt are. Given to another engine with the same request, they let it fetch the blocks instead of
computing them. Blocks that do not come are computed, so the answer never depends on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from headrace.client.api import GenerateRequest, ModelInfo, Output
from headrace.config import TransferConfig
from headrace.engine.wire import TransferInfo
from headrace.errors import InvalidRequest, excerpt
from headrace.server.replies import EngineRoleReply
from headrace.server.schemas import Body
from headrace.transfer.chain import chain, first_hash
from headrace.types import RemoteBlocks

__all__ = ["EngineRole", "EngineRoleRequest", "GivenStream", "hand_over", "with_transfer"]

Role = Literal["prefill", "decode", "both"]
FIELD = "kv_transfer_params"
_NOT_HERE = "this engine exchanges no blocks with others: start it with --role"
_PATIENCE, _MOST_PATIENCE = 1.0, 60.0


class EngineRoleRequest(Body):
    role: Role


@dataclass(slots=True)
class EngineRole:
    """The part of the engine in its group, which may change while it serves. Requests that run are not affected."""

    role: Role
    timeout: float

    @staticmethod
    def of(config: TransferConfig) -> EngineRole | None:
        return None if config.role is None else EngineRole(config.role, config.kv_timeout)

    def reply(self, info: TransferInfo) -> EngineRoleReply:
        return EngineRoleReply(self.role, info.connector, info.address, info.epoch)


class _Handed(msgspec.Struct):
    """`kv_transfer_params`: vLLM's fields, and ours. Fields of vLLM's that mean nothing here are ignored."""

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_host: str | None = None
    remote_port: int | None = None
    remote_num_tokens: int | None = None
    remote_address: str | None = None
    """The other engine's address in its connector's form; without it, it is made of host and port."""
    remote_epoch: int | None = None
    remote_block_size: int | None = None
    """Tokens of the other engine's blocks; None: as many as here."""
    remote_layout: str | None = None
    """The other engine's layout id in hexadecimal digits; None: this engine's."""
    chain_hash: str | None = None
    """Of the prompt's last full block in the other engine."""
    patience: float = 0.0
    """Seconds for which the other engine may wait for a block that it is still computing."""


def with_transfer(
    role: EngineRole | None, info: ModelInfo, given: dict[str, Any] | None, jobs: list[GenerateRequest]
) -> list[GenerateRequest]:
    """The jobs of a request with what its `kv_transfer_params` ask for. Raises InvalidRequest."""
    if not given:
        return jobs
    try:
        handed = msgspec.convert(given, _Handed)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"`{FIELD}`: {error}", FIELD, "invalid_value") from None
    if handed.do_remote_decode and handed.do_remote_prefill:
        raise InvalidRequest(
            f"`{FIELD}`: `do_remote_decode` and `do_remote_prefill` exclude each other", FIELD, "invalid_value"
        )
    if not (handed.do_remote_decode or handed.do_remote_prefill):
        return jobs
    if role is None or info.transfer is None:
        raise InvalidRequest(f"`{FIELD}`: {_NOT_HERE}", FIELD, "unsupported_value")
    if len(jobs) > 1:
        raise InvalidRequest(f"`{FIELD}` needs one prompt, got {len(jobs)}", FIELD, "invalid_value")
    if handed.do_remote_decode:
        return [_giving(role, jobs[0])]
    return [_taking(role, info, handed, jobs[0])]


def hand_over(info: ModelInfo, job: GenerateRequest, token_ids: Sequence[int]) -> dict[str, Any] | UnsetType:
    """`kv_transfer_params` of the answer to a request that is continued elsewhere: what the other engine needs."""
    transfer = info.transfer
    if not job.gives_blocks or transfer is None:
        return UNSET
    host, port = _host_and_port(transfer.address)
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": f"{transfer.epoch:08x}",
        "remote_request_id": job.id,
        "remote_host": host,
        "remote_port": port,
        "remote_block_ids": [],
        "remote_num_tokens": len(job.prompt),
        "remote_address": transfer.address,
        "remote_epoch": transfer.epoch,
        "remote_block_size": info.block_size,
        "remote_layout": transfer.layout_id.hex(),
        "chain_hash": _last_hash(transfer.layout_id, info.block_size, job),
        "first_token": token_ids[0] if token_ids else None,
        "lease_seconds": transfer.lease,
        # The last blocks are sealed behind the answer.
        "patience": _PATIENCE,
    }


class GivenStream:
    """`kv_transfer_params` of a stream that is continued elsewhere: they stand in its last chunk."""

    def __init__(self, info: ModelInfo, job: GenerateRequest) -> None:
        self._info, self._job = info, job
        self._first: list[int] = []

    @staticmethod
    def of(info: ModelInfo, job: GenerateRequest) -> GivenStream | None:
        """None for all other requests."""
        return GivenStream(info, job) if job.gives_blocks else None

    def ending(self, output: Output) -> dict[str, Any] | UnsetType:
        """What the chunk of a piece says: nothing, unless it is the last one."""
        self._first = self._first or output.token_ids[:1]
        return UNSET if output.finish_reason is None else hand_over(self._info, self._job, self._first)


def _giving(role: EngineRole, job: GenerateRequest) -> GenerateRequest:
    if role.role == "decode":
        message = "this engine has the role decode and gives no blocks: send it to one of role prefill or both"
        raise InvalidRequest(f"`{FIELD}`: {message}", FIELD, "unsupported_value")
    return replace(job, gives_blocks=True)


def _taking(role: EngineRole, info: ModelInfo, handed: _Handed, job: GenerateRequest) -> GenerateRequest:
    if role.role == "prefill":
        message = "this engine has the role prefill and fetches no blocks: send it to one of role decode or both"
        raise InvalidRequest(f"`{FIELD}`: {message}", FIELD, "unsupported_value")
    transfer, address = info.transfer, handed.remote_address
    assert transfer is not None
    if address is None and handed.remote_host and handed.remote_port:
        address = f"{transfer.connector}:{handed.remote_host}:{handed.remote_port}"
    if address is None:
        message = "`do_remote_prefill` needs `remote_address`, or `remote_host` and `remote_port`"
        raise InvalidRequest(f"`{FIELD}`: {message}", FIELD, "invalid_value")
    if not 0 <= handed.patience <= _MOST_PATIENCE:
        message = f"`patience` must be 0 to {_MOST_PATIENCE:g} seconds, got {handed.patience:g}"
        raise InvalidRequest(f"`{FIELD}`: {message}", FIELD, "invalid_value")
    if handed.chain_hash is not None and handed.chain_hash != _last_hash(*_blocks_there(info, transfer, handed), job):
        message = (
            "`chain_hash` is of another prompt, model or salt than this request's: send the request with the same "
            "prompt to both engines"
        )
        raise InvalidRequest(f"`{FIELD}`: {message}", FIELD, "invalid_value")
    tokens = len(job.prompt) if handed.remote_num_tokens is None else handed.remote_num_tokens
    for name, value in (("remote_num_tokens", tokens), ("remote_epoch", handed.remote_epoch or 0)):
        if not 0 <= value < 2**32:
            message = f"`{name}` must be 0 to {2**32 - 1}, got {excerpt(value, 40)}"
            raise InvalidRequest(f"`{FIELD}`: {message}", FIELD, "invalid_value")
    timeout = role.timeout + handed.patience
    return replace(job, remote=RemoteBlocks(address, tokens, timeout, handed.patience, handed.remote_epoch))


def _blocks_there(info: ModelInfo, transfer: TransferInfo, handed: _Handed) -> tuple[bytes, int]:
    """Layout id and tokens of the other engine's blocks."""
    size = info.block_size if handed.remote_block_size is None else handed.remote_block_size
    if size < 1:
        raise InvalidRequest(f"`{FIELD}`: `remote_block_size` must be at least 1, got {size}", FIELD, "invalid_value")
    try:
        return (transfer.layout_id if handed.remote_layout is None else bytes.fromhex(handed.remote_layout)), size
    except ValueError:
        message = f"`remote_layout` must be hexadecimal digits, got {handed.remote_layout!r}"
        raise InvalidRequest(f"`{FIELD}`: {message}", FIELD, "invalid_value") from None


def _last_hash(layout: bytes, size: int, job: GenerateRequest) -> str:
    """Of the prompt's last full block; of the chain's start, if there is none."""
    prompt, first = job.prompt, first_hash(layout, job.adapter, job.salt)
    blocks = (prompt[at : at + size] for at in range(0, len(prompt) - size + 1, size))
    last = deque(chain(first, blocks), maxlen=1)
    return (last[0] if last else first).hex()


def _host_and_port(address: str) -> tuple[str | None, int | None]:
    """The parts of `NAME:HOST:PORT`; none for an address of another form."""
    parts = address.rsplit(":", 2)
    return (parts[1], int(parts[2])) if len(parts) == 3 and parts[2].isdecimal() else (None, None)
