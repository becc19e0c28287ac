"""Builds a tokenizer from a GGUF file's metadata: byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`).

The keys are those of ggml's `docs/gguf.md`, section "Tokenizer".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from headrace.checkpoints.end_tokens import gguf_end_ids
from headrace.checkpoints.gguf_header import Strings
from headrace.errors import CheckpointError, UnsupportedModel, excerpt
from headrace.tokenization.library import guarded
from headrace.tokenization.pretokenizers import pre_tokenizer
from headrace.tokenization.vocab import Vocab, byte_level_bytes, is_byte_token, sentencepiece_bytes

__all__ = ["gguf_templates", "gguf_vocab"]

_KEY = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
_SPACE = "▁"
_LONGEST_PIECE = 512
"""Characters; every split of a piece into two is tried."""
_TURN_ENDS = frozenset(
    """<|im_end|> <|eot_id|> <|eom_id|> <end_of_turn> <turn|> <|end|> <|end_of_turn|> <|END_OF_TURN_TOKEN|> <|eot|>
    <|endofturn|> <end_of_utterance> <|end_of_text|> <|endoftext|> <|return|> <|call|> <EOT>""".split()
)
"""Tokens with which templates end a turn, or models end a text."""
_HARMONY = frozenset({"<|return|>", "<|call|>"})
"""In a vocabulary with both, `<|end|>` ends a message, and a turn may have several messages."""


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed access to the metadata; every error names the key."""

    metadata: Mapping[str, Any]

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        value = self.metadata.get(_KEY + name)
        if value is None:
            return default
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(f"metadata {_KEY + name!r} is {excerpt(value)}: expected {kind.__name__}")
        return value

    def strings(self, name: str) -> list[str]:
        value = self.metadata.get(_KEY + name)
        value = value.decoded if isinstance(value, Strings) else value
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise CheckpointError(f"metadata {_KEY + name!r} is missing or not a list of strings")
        return value

    def numbers(self, name: str, count: int, default: float | None = None) -> list[Any]:
        """Plain Python numbers, one per token."""
        value = self.metadata.get(_KEY + name)
        if value is None and default is not None:
            return [default] * count
        if value is None or isinstance(value, (str, int, float)) or len(value) != count:
            have = "missing" if value is None else f"of length {len(value)}" if hasattr(value, "__len__") else "no list"
            raise CheckpointError(f"metadata {_KEY + name!r} is {have}: expected {count} numbers, one per token")
        numbers = value.tolist() if hasattr(value, "tolist") else list(value)
        if isinstance(value, Strings) or not all(isinstance(number, (int, float)) for number in numbers):
            raise CheckpointError(f"metadata {_KEY + name!r} holds text: expected {count} numbers, one per token")
        return numbers

    def token(self, name: str, count: int) -> int | None:
        value: int | None = self.get(f"{name}_token_id", int)
        # Files write -1 (as an unsigned number) for "none".
        return value if value is not None and 0 <= value < count else None


def gguf_vocab(metadata: Mapping[str, Any]) -> Vocab:
    """The vocabulary of a GGUF file. Arrays may be numpy's or lists.

    Raises UnsupportedModel for an unsupported model or pre-tokeniser, CheckpointError for missing or inconsistent
    metadata; neither names the file.
    """
    fields = _Fields(metadata)
    model = fields.get("model", str)
    if model not in ("gpt2", "llama"):
        raise UnsupportedModel(
            f"tokenizer.ggml.model is {excerpt(model)}: gpt2 (byte-level BPE) and llama (SentencePiece) are supported"
        )
    tokens = fields.strings("tokens")
    types = fields.numbers("token_type", len(tokens), 1)
    with guarded("the metadata gives no tokenizer that can be used"):
        vocab = _sentencepiece(fields, tokens, types) if model == "llama" else _byte_level(fields, tokens, types)
        vocab.backend.add_tokens(
            [
                AddedToken(token, special=kind == _CONTROL, normalized=False)
                for token, kind in zip(tokens, types, strict=True)
                if kind in (_CONTROL, _USER_DEFINED) and token
            ]
        )
    _name_special_tokens(fields, tokens, vocab)
    return vocab


def gguf_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; the usual one is `default`."""
    key = "tokenizer.chat_template"
    found = {name.removeprefix(key + "."): text for name, text in metadata.items() if name.startswith(key + ".")}
    if key in metadata:
        found["default"] = metadata[key]
    for name, text in found.items():
        if not isinstance(text, str):
            raise CheckpointError(f"metadata '{key}' ({name}) is not text")
    return found


def _byte_level(fields: _Fields, tokens: list[str], types: list[int]) -> Vocab:
    pre = pre_tokenizer(fields.get("pre", str, "default"))
    merges = [_merge(line) for line in fields.strings("merges")]
    backend = Tokenizer(_bpe(tokens, merges, ignore_merges=pre.ignore_merges))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in pre.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    whole = {token for token, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _USER_DEFINED)}
    add_bos = fields.get("add_bos_token", bool, pre.add_bos)
    return _vocab(fields, backend, tokens, byte_level_bytes(tokens, whole), types, add_bos, strip=False)


def _sentencepiece(fields: _Fields, tokens: list[str], types: list[int]) -> Vocab:
    scores = fields.numbers("scores", len(tokens))
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    model = _bpe(tokens, _merges(tokens, scores, types), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    backend = Tokenizer(model)
    prefix = fields.get("add_space_prefix", bool, True)
    spaces = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
    byte_ids = {i for i, kind in enumerate(types) if kind == _BYTE}
    wrong = next((i for i in byte_ids if not is_byte_token(tokens[i])), None)
    if wrong is not None:
        raise CheckpointError(
            f"token {wrong} is {excerpt(tokens[wrong])} and of the type byte: expected the form <0x0A>"
        )
    bytes_of = sentencepiece_bytes(tokens, byte_ids, _SPACE)
    return _vocab(fields, backend, tokens, bytes_of, types, fields.get("add_bos_token", bool, True), strip=prefix)


def _bpe(tokens: list[str], merges: list[tuple[str, str]], **options: Any) -> BPE:
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if vocab[token] != i)
        raise CheckpointError(f"metadata {_KEY + 'tokens'!r} holds {excerpt(twice)} twice")
    with guarded(f"metadata {_KEY + 'merges'!r} does not fit the tokens"):
        return BPE(vocab, merges, **options)


def _merge(line: str) -> tuple[str, str]:
    cut = line.find(" ", 1)
    return line[:cut], line[cut + 1 :]


def _merges(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Merges for SentencePiece, which joins the neighbours whose piece has the best score: every split of a piece into
    two, ordered by the piece's score."""
    usable = {
        t for t, kind in zip(tokens, types, strict=True) if kind not in (_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE)
    }
    long = next((token for token in usable if len(token) > _LONGEST_PIECE), None)
    if long is not None:
        raise CheckpointError(
            f"token {excerpt(long)} has {len(long)} characters: at most {_LONGEST_PIECE} are supported"
        )
    order = sorted((i for i, token in enumerate(tokens) if token in usable), key=lambda i: -scores[i])
    return [pair for i in order for pair in _halves(tokens[i], usable)]


def _halves(piece: str, usable: set[str]) -> Iterator[tuple[str, str]]:
    for cut in range(1, len(piece)):
        left = piece[:cut]
        if left in usable and (right := piece[cut:]) in usable:
            yield left, right


def _vocab(
    fields: _Fields,
    backend: Tokenizer,
    tokens: list[str],
    token_bytes: list[bytes],
    types: list[int],
    add_bos: bool,
    strip: bool,
) -> Vocab:
    count = len(token_bytes)
    bos, eos = fields.token("bos", count), fields.token("eos", count)
    return Vocab(
        backend=backend,
        token_bytes=token_bytes,
        special_ids=frozenset(i for i, kind in enumerate(types) if kind in (_CONTROL, _UNKNOWN)),
        bos=bos,
        ends=_ends(fields, tokens, types),
        prefix=(bos,) if add_bos and bos is not None else (),
        suffix=(eos,) if fields.get("add_eos_token", bool, False) and eos is not None else (),
        strip_space=strip,
    )


def _ends(fields: _Fields, tokens: Sequence[str], types: Sequence[int]) -> tuple[int, ...]:
    """End tokens of the metadata, and control tokens whose text ends a turn in every template that uses it: converters
    write one end token alone. A token with such a text that is not a control token is text."""
    texts = _TURN_ENDS
    control = {token: i for i, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind == _CONTROL}
    if control.keys() >= _HARMONY:
        texts = texts - {"<|end|>"}
    for name in ("eos", "eot", "eom"):
        fields.token(name, len(tokens))
    stated = {token for token in gguf_end_ids(fields.metadata) if token < len(tokens)}
    return tuple(sorted(stated | {control[text] for text in texts & control.keys()}))


def _name_special_tokens(fields: _Fields, tokens: list[str], vocab: Vocab) -> None:
    keys = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "seperator": "sep", "mask": "mask"}
    for key, name in keys.items():
        token = fields.token(key, len(tokens))
        if token is not None:
            vocab.named_tokens[f"{name}_token"] = tokens[token]
