"""The two requests of a prompt that one engine computes and another answers (`docs/transfer.md`)."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["SPLIT_PATHS", "decode_body", "prefill_body", "splits"]

SPLIT_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
_FIELD = "kv_transfer_params"
_NOT_FOR_PREFILL = ("stream", "stream_options", "max_completion_tokens", "min_tokens", "n", "best_of", "echo")
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class _Shape(msgspec.Struct):
    prompt: Any = None
    kv_transfer_params: Any = None
    prompt_logprobs: int | None = None
    echo: bool | None = None


def splits(body: bytes) -> bool:
    """The request has one prompt, whose every token need not be scored, and says nothing about blocks itself."""
    try:
        shape = msgspec.json.decode(body, type=_Shape)
    except msgspec.MsgspecError:
        return False
    several = isinstance(shape.prompt, list) and not all(isinstance(token, int) for token in shape.prompt)
    return not (several or shape.kv_transfer_params or shape.prompt_logprobs is not None or shape.echo)


def prefill_body(body: bytes) -> bytes:
    """Asks for the first token, and to keep the blocks where others fetch them."""
    fields = {name: value for name, value in _decode(body).items() if name not in _NOT_FOR_PREFILL}
    return msgspec.json.encode(fields | {"max_tokens": 1, _FIELD: {"do_remote_decode": True}})


def decode_body(body: bytes, address: str, patience: float) -> bytes:
    """The whole request, whose blocks are at `address` once they are computed there, within `patience` seconds."""
    given = {"do_remote_prefill": True, "remote_address": address, "patience": round(patience, 3)}
    return msgspec.json.encode(_decode(body) | {_FIELD: given})
