"""Tokenizers from a Hugging Face directory: tokenizer.json and the settings beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from headrace.checkpoints.end_tokens import hf_end_ids
from headrace.errors import CheckpointError, ModelNotFound, UnsupportedModel
from headrace.tokenization.vocab import Vocab, byte_level_bytes, is_byte_token, sentencepiece_bytes

__all__ = ["hf_templates", "hf_vocab"]

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def hf_vocab(path: Path) -> Vocab:
    """Raises ModelNotFound without a tokenizer.json, CheckpointError for a file that is wrong, UnsupportedModel for a decoder
    that isn't built."""
    file = path / "tokenizer.json"
    if not file.exists():
        raise ModelNotFound(f"{path}: has no tokenizer.json: convert its tokenizer to that format")
    try:
        backend = Tokenizer.from_file(str(file))
    except Exception as error:  # The library raises bare Exceptions.
        raise CheckpointError(f"not a tokenizer that can be read: {error}", str(file)) from error
    backend.no_truncation()
    backend.no_padding()
    config = _json(path / "tokenizer_config.json")
    special = _special_ids(backend, config, path)
    named = _named_tokens(config, _json(path / "special_tokens_map.json"))
    ids = {name: backend.token_to_id(token) for name, token in named.items()}
    token_bytes, strip = _token_bytes(backend, file)
    prefix, suffix = _wrapping(backend, config, ids)
    return Vocab(
        backend=backend,
        token_bytes=token_bytes,
        special_ids=special,
        bos=ids.get("bos_token"),
        ends=_ends(path, ids.get("eos_token")),
        prefix=prefix,
        suffix=suffix,
        strip_space=strip,
        named_tokens=named,
    )


def hf_templates(path: Path) -> dict[str, str]:
    """Chat templates by name, `default` the usual one; files of their own go before the configuration."""
    found = _json(path / "tokenizer_config.json").get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(found, str):
        templates["default"] = found
    elif isinstance(found, list):
        templates = {str(entry["name"]): str(entry["template"]) for entry in found}
    own = path / "chat_template.jinja"
    more = sorted((path / "additional_chat_templates").glob("*.jinja"))
    for file in ([own] if own.exists() else []) + more:
        templates["default" if file == own else file.stem] = file.read_text(encoding="utf-8")
    return templates


def _json(path: Path) -> dict[str, Any]:
    """{} where there is no file."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"not valid JSON: {error}", str(path)) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"holds a {type(value).__name__}: expected an object", str(path))
    return value


def _special_ids(backend: Tokenizer, config: Mapping[str, Any], path: Path) -> frozenset[int]:
    """Also adds the tokens that the configuration knows and tokenizer.json doesn't."""
    special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    for key, entry in sorted((config.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0])):
        content, wanted = str(entry["content"]), int(key)
        if backend.token_to_id(content) is None:
            flags = {f: bool(entry.get(f, False)) for f in ("single_word", "lstrip", "rstrip", "normalized", "special")}
            backend.add_tokens([AddedToken(content, **flags)])
        if backend.token_to_id(content) != wanted:
            have = backend.token_to_id(content)
            raise CheckpointError(
                f"added token {content!r} is {wanted} here and {have} in tokenizer.json",
                str(path / "tokenizer_config.json"),
            )
        if entry.get("special", False):
            special.add(wanted)
    return frozenset(special)


def _named_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    named: dict[str, str] = {}
    for name in _NAMED:
        for source in sources:
            value = source.get(name)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                named.setdefault(name, content)
    return named


def _wrapping(
    backend: Tokenizer, config: Mapping[str, Any], ids: Mapping[str, int | None]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What tokenizer.json's post-processor puts around a text, unless the configuration says otherwise."""
    whole = backend.encode("a", add_special_tokens=True)
    inside = [i for i, mark in enumerate(whole.special_tokens_mask) if not mark] or [0]
    prefix, suffix = tuple(whole.ids[: inside[0]]), tuple(whole.ids[inside[-1] + 1 :])
    bos, eos = ids.get("bos_token"), ids.get("eos_token")
    if isinstance(wanted := config.get("add_bos_token"), bool) and bos is not None and wanted != (bos in prefix):
        prefix = (bos, *prefix) if wanted else tuple(token for token in prefix if token != bos)
    if isinstance(wanted := config.get("add_eos_token"), bool) and eos is not None and wanted != (eos in suffix):
        suffix = (*suffix, eos) if wanted else tuple(token for token in suffix if token != eos)
    return prefix, suffix


def _ends(path: Path, eos: int | None) -> tuple[int, ...]:
    """Those of the settings and the tokenizer's own: any of the three may be the one that chats end with."""
    files = [path / name for name in ("config.json", "generation_config.json")]
    stated = hf_end_ids([(file, _json(file)) for file in files])
    return tuple(sorted(stated if eos is None else stated | {eos}))


@dataclass(slots=True)
class _Decoding:
    """What a chain of the library's decoders amounts to."""

    byte_level: bool = False
    byte_fallback: bool = False
    space: str = ""
    """The mark that stands for a space."""
    strip: bool = False


def _token_bytes(backend: Tokenizer, file: Path) -> tuple[list[bytes], bool]:
    """(bytes by id, whether a text's first space is dropped)"""
    by_token = backend.get_vocab(with_added_tokens=True)
    tokens = [""] * (max(by_token.values(), default=-1) + 1)
    for token, i in by_token.items():
        tokens[i] = token
    if backend.decoder is None:
        # Words without marks: they're joined by spaces.
        return [b" " + token.encode() if token else b"" for token in tokens], True
    decoding = _Decoding()
    _read_decoder(json.loads(backend.decoder.__getstate__()), decoding, file)
    if decoding.byte_level:
        whole = {token.content for token in backend.get_added_tokens_decoder().values()}
        return byte_level_bytes(tokens, whole), False
    byte_ids = {i for i, token in enumerate(tokens) if decoding.byte_fallback and is_byte_token(token)}
    return sentencepiece_bytes(tokens, byte_ids, decoding.space or " "), decoding.strip


def _read_decoder(spec: Mapping[str, Any], found: _Decoding, file: Path) -> None:
    kind = spec["type"]
    if kind == "Sequence":
        for part in spec["decoders"]:
            _read_decoder(part, found, file)
    elif kind == "ByteLevel":
        found.byte_level = True
    elif kind == "ByteFallback":
        found.byte_fallback = True
    elif kind == "Replace" and spec["content"] == " " and "String" in spec["pattern"]:
        found.space = spec["pattern"]["String"]
    elif kind == "Metaspace":
        found.space, found.strip = spec["replacement"], spec.get("prepend_scheme", "always") != "never"
    elif kind == "Strip" and spec["content"] == " " and (spec["start"], spec["stop"]) == (1, 0):
        found.strip = True
    elif kind != "Fuse":
        raise UnsupportedModel(f"{file}: its decoder has a part {kind} ({json.dumps(dict(spec))}) that is not built")
