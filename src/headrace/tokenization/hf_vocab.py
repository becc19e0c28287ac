"""Builds a tokenizer from a Hugging Face directory: tokenizer.json and the settings beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from headrace.checkpoints.end_tokens import hf_end_ids
from headrace.checkpoints.files import located, optional_json, present, read_text, regular_size
from headrace.errors import CheckpointError, ModelNotFound, UnsupportedModel, excerpt
from headrace.settings import Settings
from headrace.tokenization.growth import check_growth
from headrace.tokenization.library import guarded
from headrace.tokenization.vocab import Vocab, byte_level_bytes, is_byte_token, sentencepiece_bytes

__all__ = ["hf_response_template", "hf_templates", "hf_vocab"]

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_LARGEST_FILE = 256 << 20
_LONGEST_ID = 10
"""Digits."""
_MOST_HOLES = 1 << 16
"""Unused ids that a small vocabulary may have; each takes an entry in a table."""


def hf_vocab(path: Path) -> Vocab:
    """The vocabulary of a directory.

    Raises ModelNotFound without a tokenizer.json, CheckpointError for an invalid file, UnsupportedModel for an
    unsupported decoder.
    """
    file = path / "tokenizer.json"
    if not present(file):
        raise ModelNotFound(f"{path}: has no tokenizer.json: convert its tokenizer to that format")
    _check_size(file)
    with guarded("not a tokenizer that can be read", file):
        backend = Tokenizer.from_file(str(file))
        backend.no_truncation()
        backend.no_padding()
    with located(file):
        check_growth(backend)
    settings = path / "tokenizer_config.json"
    with located(settings):
        config = Settings(optional_json(settings))
        special = _special_ids(backend, config)
        flags = {key: config.flag(key) for key in ("add_bos_token", "add_eos_token") if config.get(key) is not None}
        named = _named_tokens(config)
    more = path / "special_tokens_map.json"
    with located(more):
        named = _named_tokens(Settings(optional_json(more))) | named
    with guarded("not a tokenizer that can be used", file):
        ids = {name: backend.token_to_id(token) for name, token in named.items()}
        token_bytes, strip = _token_bytes(backend, file)
        prefix, suffix = _wrapping(backend, flags, ids)
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
    """Chat templates by name; the usual one is `default`. Template files override the configuration."""
    file = path / "tokenizer_config.json"
    with located(file):
        templates = _templates(Settings(optional_json(file)))
    own = path / "chat_template.jinja"
    more = sorted(file for file in (path / "additional_chat_templates").glob("*.jinja") if not file.is_dir())
    for file in ([own] if present(own) else []) + more:
        templates["default" if file == own else file.stem] = read_text(file)
    return templates


def hf_response_template(path: Path) -> Any:
    """The declaration of the model's formats, not checked; None without one."""
    file = path / "tokenizer_config.json"
    with located(file):
        return Settings(optional_json(file)).get("response_template")


def _templates(config: Settings) -> dict[str, str]:
    key = "chat_template"
    if not isinstance(config.get(key), list):
        text = config.optional_text(key)
        return {} if text is None else {"default": text}
    found = {}
    for entry in config.items(key):
        if not isinstance(entry, dict):
            raise config.wrong(key, entry, "objects with name and template")
        named = Settings(entry, within=key)
        found[named.text("name")] = named.text("template")
    return found


def _check_size(file: Path) -> None:
    size = regular_size(file)
    if size > _LARGEST_FILE:
        raise CheckpointError(f"has {size} bytes: at most {_LARGEST_FILE} are read", str(file))


def _special_ids(backend: Tokenizer, config: Settings) -> frozenset[int]:
    """Ids of the special tokens. Also adds the tokens that are in the configuration and not in tokenizer.json."""
    special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
    entries = config.sections("added_tokens_decoder")
    for key in entries:
        if not key.isascii() or not key.isdigit() or len(key) > _LONGEST_ID:
            raise config.wrong("added_tokens_decoder", key, "token ids as keys")
    for wanted, entry in sorted((int(key), entry) for key, entry in entries.items()):
        content, flags = entry.text("content"), {flag: entry.flag(flag) for flag in _FLAGS}
        if backend.token_to_id(content) is None:
            backend.add_tokens([AddedToken(content, **flags)])
        have = backend.token_to_id(content)
        if have != wanted:
            raise CheckpointError(f"added token {excerpt(content)} is {wanted} here and {have} in tokenizer.json")
        if flags["special"]:
            special.add(wanted)
    return frozenset(special)


def _named_tokens(source: Settings) -> dict[str, str]:
    named: dict[str, str] = {}
    for name in _NAMED:
        value = source.get(name)
        section = source.section(name) if isinstance(value, dict) else None
        content = source.optional_text(name) if section is None else section.optional_text("content")
        if content is not None:
            named[name] = content
    return named


def _wrapping(
    backend: Tokenizer, flags: Mapping[str, bool], ids: Mapping[str, int | None]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(prefix, suffix) that tokenizer.json's post-processor adds to a text, changed by the configuration."""
    encoded = backend.encode("a", add_special_tokens=True)
    inside = [i for i, mark in enumerate(encoded.special_tokens_mask) if not mark] or [0]
    prefix, suffix = tuple(encoded.ids[: inside[0]]), tuple(encoded.ids[inside[-1] + 1 :])
    bos, eos = ids.get("bos_token"), ids.get("eos_token")
    if (wanted := flags.get("add_bos_token")) is not None and bos is not None and wanted != (bos in prefix):
        prefix = (bos, *prefix) if wanted else tuple(token for token in prefix if token != bos)
    if (wanted := flags.get("add_eos_token")) is not None and eos is not None and wanted != (eos in suffix):
        suffix = (*suffix, eos) if wanted else tuple(token for token in suffix if token != eos)
    return prefix, suffix


def _ends(path: Path, eos: int | None) -> tuple[int, ...]:
    """End tokens of the settings files and of the tokenizer: any of the three may name the one that ends a chat."""
    files = [path / name for name in ("config.json", "generation_config.json")]
    stated = hf_end_ids([(file, optional_json(file)) for file in files])
    return tuple(sorted(stated if eos is None else stated | {eos}))


@dataclass(slots=True)
class _Decoding:
    """The combined effect of a sequence of the library's decoders."""

    byte_level: bool = False
    byte_fallback: bool = False
    space: str = ""
    """The mark that stands for a space."""
    strip: bool = False


def _token_bytes(backend: Tokenizer, file: Path) -> tuple[list[bytes], bool]:
    """(bytes by id, whether a text's first space is dropped)"""
    by_token = backend.get_vocab(with_added_tokens=True)
    highest = max(by_token.values(), default=-1)
    if highest >= 4 * len(by_token) + _MOST_HOLES:
        raise CheckpointError(f"holds {len(by_token)} tokens, but the id {highest}", str(file))
    tokens = [""] * (highest + 1)
    for token, i in by_token.items():
        tokens[i] = token
    if backend.decoder is None:
        # Words without a mark for the space: they are joined by spaces.
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
        raise UnsupportedModel(f"{file}: its decoder has a part {kind} ({excerpt(dict(spec))}) that is not supported")
