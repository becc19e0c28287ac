"""Tiny vocabularies in the forms that checkpoints have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

CONTROL, USER, BYTE, UNKNOWN, NORMAL = 3, 4, 6, 2, 1
WORDS = ("he", "wo", "ld", "lo", "hel", "hello", "wor", "world", "▁world", "▁a", "ab", "é", "ll")


def byte_characters() -> list[str]:
    """The 256 characters of a byte-level alphabet, by byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    rest = [byte for byte in range(256) if byte not in table]
    return [table.get(byte) or chr(256 + rest.index(byte)) for byte in range(256)]


def gpt2_metadata(**changes: Any) -> dict[str, Any]:
    """Bytes, a few merges, two control tokens and one that a user defined; arrays as a GGUF reader gives them."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "1 2", "Ã ©", "' s"]
    tokens = ["<s>", "<end>", "<tool>", *byte_characters(), *(line.replace(" ", "") for line in merges)]
    types = [CONTROL, CONTROL, USER, *([NORMAL] * (len(tokens) - 3))]
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "merges": merges,
        "token_type": np.array(types, dtype=np.int32),
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return _named(values | changes)


def llama_metadata(**changes: Any) -> dict[str, Any]:
    """SentencePiece pieces with scores, 256 bytes, control tokens and one that a user defined."""
    letters = sorted(set("".join(WORDS)) | {"▁", "c"})
    heads = ["<unk>", "<s>", "</s>", "\n\n"]
    pieces = [*letters, *(word for word in WORDS if len(word) > 1)]
    tokens = [*heads, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [UNKNOWN, CONTROL, CONTROL, USER, *([BYTE] * 256), *([NORMAL] * len(pieces))]
    scores = [0.0] * 260 + [-float(i) for i in range(len(pieces))]
    values = {
        "model": "llama",
        "tokens": tokens,
        "scores": np.array(scores, dtype=np.float32),
        "token_type": np.array(types, dtype=np.int32),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return _named(values | changes)


def _named(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key if key.startswith("tokenizer.chat") else f"tokenizer.ggml.{key}": value
        for key, value in values.items()
        if value is not None
    }


def byte_level_tokenizer() -> Tokenizer:
    """The tokenizer of `gpt2_metadata`, built with the library directly."""
    metadata = gpt2_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(line.split(" ")) for line in metadata["tokenizer.ggml.merges"]]
    backend = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", special=True), AddedToken("<end>", special=True)])
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    return backend


def sentencepiece_tokenizer() -> Tokenizer:
    """In the form of Llama 2's tokenizer.json."""
    metadata = llama_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [(word[:cut], word[cut:]) for word in tokens[260:] for cut in range(1, len(word))]
    merges = [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab]
    backend = Tokenizer(BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return backend


def save(backend: Tokenizer, folder: Path, **files: Any) -> Path:
    """A checkpoint's directory; `files` are JSON objects by file name without its suffix."""
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
