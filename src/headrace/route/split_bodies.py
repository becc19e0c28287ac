"""The two requests of a prompt that one engine computes and another answers (`docs/transfer.md`)."""

from __future__ import annotations

import msgspec

__all__ = ["SPLIT_PATHS", "decode_body", "has_one_choice", "prefill_body", "splits", "with_seed"]

SPLIT_PATHS = frozenset({"/v1/chat/completions", "/v1/completions"})
_FIELD = "kv_transfer_params"
_NOT_FOR_PREFILL = ("max_completion_tokens", "n", "best_of", "echo")
_NULL = msgspec.Raw(b"null")
# The values of fields are passed on as they were written, and nothing is made of them.
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_tokens = msgspec.json.Decoder(list[int]).decode


class _Shape(msgspec.Struct):
    prompt: msgspec.Raw = _NULL
    kv_transfer_params: msgspec.Raw = _NULL
    prompt_logprobs: int | None = None
    echo: bool | None = None
    n: int | None = None


_shape = msgspec.json.Decoder(_Shape).decode


def splits(body: bytes) -> bool:
    """The request has one prompt, whose every token need not be scored, and says nothing about blocks itself."""
    try:
        shape = _shape(body)
        if bytes(shape.prompt).startswith(b"["):
            _tokens(shape.prompt)
    except (msgspec.MsgspecError, RecursionError):
        return False
    given = bytes(shape.kv_transfer_params) not in (b"null", b"{}")
    return not (given or shape.prompt_logprobs is not None or shape.echo)


def has_one_choice(body: bytes) -> bool:
    """`body`: one that `splits` allows."""
    return _shape(body).n in (None, 1)


def with_seed(body: bytes, seed: int) -> bytes:
    fields: dict[str, object] = {**_decode(body), "seed": seed}
    return msgspec.json.encode(fields)


def prefill_body(body: bytes, stream: bool = False) -> bytes:
    """Asks for the first token, and to keep the blocks where others fetch them."""
    left_out = _NOT_FOR_PREFILL if stream else (*_NOT_FOR_PREFILL, "stream", "stream_options")
    given = _decode(body)
    fields: dict[str, object] = {name: value for name, value in given.items() if name not in left_out}
    if bytes(given.get("min_tokens", _NULL)) not in (b"null", b"0"):
        fields["min_tokens"] = 1  # The first token may not end the answer.
    return msgspec.json.encode(fields | {"max_tokens": 1, _FIELD: {"do_remote_decode": True}})


def decode_body(body: bytes, address: str, patience: float) -> bytes:
    """The whole request, whose blocks are at `address` once they are computed there, within `patience` seconds."""
    given = {"do_remote_prefill": True, "remote_address": address, "patience": round(patience, 3)}
    fields: dict[str, object] = {**_decode(body), _FIELD: given}
    return msgspec.json.encode(fields)
