"""The tokenizer of a checkpoint: text to token ids and back, and chat messages to text."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from headrace.checkpoints.files import located, present
from headrace.checkpoints.gguf_header import map_gguf
from headrace.errors import CheckpointError, ConfigError, InvalidRequest, ModelNotFound
from headrace.tokenization.chat_inputs import ChatInputs
from headrace.tokenization.chat_template import ChatTemplate
from headrace.tokenization.detokenizer import Pieces, StreamDecoder, decode_all
from headrace.tokenization.gguf_vocab import gguf_templates, gguf_vocab
from headrace.tokenization.hf_vocab import hf_response_template, hf_templates, hf_vocab
from headrace.tokenization.library import guarded
from headrace.tokenization.quoting import SPLIT, Quoting, split_quoted
from headrace.tokenization.vocab import Vocab

__all__ = ["StreamDecoder", "Tokenizer", "load_tokenizer", "tokenizer_from_gguf"]

_NONE: frozenset[int] = frozenset()
_HALF = re.compile("[\ud800-\udfff]")


class Tokenizer:
    """One checkpoint's tokenizer. Immutable; every method may be called from any thread."""

    def __init__(self, vocab: Vocab, template: ChatTemplate | None = None, response_template: Any = None) -> None:
        self._backend = vocab.backend
        self._pieces = Pieces(vocab)
        self._prefix, self._suffix = vocab.prefix, vocab.suffix
        self._strip = vocab.strip_space
        self._template = template
        self._splitting: tuple[Backend, int] | None = None
        """A second backend with a token for SPLIT, and its id; made when a message first quotes a control token."""
        self._plain: Callable[[str], list[int]] | None = None
        """Made when it is first needed."""
        self.special_ids = vocab.special_ids
        """Ids that `skip_special_tokens` leaves out."""
        self.named_tokens = vocab.named_tokens
        """Special tokens by name, such as `bos_token`."""
        self.bos_token_id = vocab.bos
        self.eos_token_ids = vocab.ends
        """Every id that ends a sequence, ascending."""
        self.response_template = response_template
        """The declaration of the model's formats in tokenizer_config.json, as it is there; None without one."""
        self.vocab_size = len(vocab.token_bytes)
        """The highest id plus one; a model's head may have more rows."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text. Special tokens that are written in the text are encoded as such.

        `add_special_tokens` adds tokens such as BOS if the checkpoint requires them. Raises InvalidRequest for text
        that is not valid Unicode (lone surrogates).
        """
        ids = _encoded(self._backend, text)
        return [*self._prefix, *ids, *self._suffix] if add_special_tokens else ids

    def encode_chat(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """The token ids of a text that `apply_chat_template` has rendered. The template's own markers are special
        tokens; what messages only quote is text. Raises as `encode`."""
        split = split_quoted(text)
        if split is None:
            return self.encode(text, add_special_tokens)
        if self._splitting is None:
            self._splitting = _splitting(self._backend)
        backend, mark = self._splitting
        ids = [token for token in _encoded(backend, split) if token != mark]
        return [*self._prefix, *ids, *self._suffix] if add_special_tokens else ids

    def encode_plain(self, text: str) -> list[int]:
        """As `encode` without special tokens; one whose text is written there is encoded letter by letter. The first
        call copies the vocabulary."""
        if self._plain is None:
            self._plain = self.plain_encoder()
        return self._plain(text)

    def plain_encoder(self) -> Callable[[str], list[int]]:
        """A function that encodes a text without special tokens: one whose text is written there is encoded letter by
        letter. Copies the vocabulary, which takes a moment."""
        backend = _copied(self._backend)
        backend.encode_special_tokens = True
        return partial(_encoded, backend)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids. Bytes that are not UTF-8 become U+FFFD. Ids beyond the vocabulary have no text."""
        return decode_all(self._pieces, ids, self.special_ids if skip_special_tokens else _NONE, self._strip)

    def token_bytes(self, token_id: int) -> bytes:
        """The raw bytes that a token adds to a text; they may be part of a character."""
        return self._pieces.raw(token_id)

    def token_text(self, token_id: int) -> str:
        """As `token_bytes`, decoded: U+FFFD stands for bytes that cannot be decoded alone."""
        text = self._pieces[token_id]
        return self._pieces.raw(token_id).decode("utf-8", "replace") if text is None else text

    def stream(self, skip_special_tokens: bool = True, prompt_tail: Sequence[int] = ()) -> StreamDecoder:
        """A decoder for one sequence. `prompt_tail`: the last ids before it, if its text continues theirs; then the
        space that a vocabulary puts before a text's first word is part of the text."""
        skip = self.special_ids if skip_special_tokens else _NONE
        continues = any(token not in skip and self._pieces.raw(token) for token in prompt_tail)
        return StreamDecoder(self._pieces, skip, self._strip and not continues)

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    @property
    def template_source(self) -> str:
        """The text of the chat templates; empty without one."""
        return "" if self._template is None else self._template.source

    def apply_chat_template(self, inputs: ChatInputs) -> str:
        """The conversation as the model's prompt; encode it with `encode_chat`.

        Raises InvalidRequest if the inputs are wrong, the template refuses them, or it exceeds its limits of time and
        memory.
        """
        return self._chat_template().render(inputs)

    async def apply_chat_template_async(self, inputs: ChatInputs) -> str:
        """As `apply_chat_template`, without blocking the event loop."""
        return await self._chat_template().render_async(inputs)

    def render_here(self) -> None:
        """Render chat templates in this process, which must be one that limits itself and may be killed."""
        if self._template is not None:
            self._template.render_here()

    def close(self) -> None:
        """End the processes that render chat templates. None may be rendered afterwards."""
        if self._template is not None:
            self._template.close()

    def warm_chat_template(self) -> None:
        """Start the process that renders the chat template in the background, ahead of the first request."""
        if self._template is not None:
            self._template.warm()

    def _chat_template(self) -> ChatTemplate:
        if self._template is None:
            raise InvalidRequest(
                "this model has no chat template: use /v1/completions, or start with --chat-template FILE",
                "messages",
                "no_chat_template",
            )
        return self._template


def _encoded(backend: Backend, text: str) -> list[int]:
    try:
        with guarded("the tokenizer fails"):
            ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
    except CheckpointError as error:
        half = _HALF.search(text)
        why = f"{half[0]!r} at {half.start()} is half of a surrogate pair, which is no character" if half else error
        raise InvalidRequest(f"the text cannot be encoded: {why}", "prompt", "invalid_value") from error
    return ids


def _splitting(backend: Backend) -> tuple[Backend, int]:
    copy = _copied(backend)
    copy.add_special_tokens([AddedToken(SPLIT, special=True, normalized=False)])
    mark = copy.token_to_id(SPLIT)
    assert mark is not None
    return copy, mark


def _copied(backend: Backend) -> Backend:
    with guarded("the tokenizer cannot be copied"):
        return Backend.from_str(backend.to_str())


def load_tokenizer(path: str | Path, chat_template: str | Path | None = None) -> Tokenizer:
    """The tokenizer of a Hugging Face directory or a .gguf file. `chat_template`: a file that replaces the template.

    Raises ModelNotFound, CheckpointError and UnsupportedModel; ConfigError for the template's file.
    """
    path = Path(path)
    override = None if chat_template is None else _read_template(Path(chat_template))
    if os.path.isdir(path):
        if not present(path / "tokenizer.json"):
            _check_checkpoint(path)
        with _naming(chat_template):
            return _build(hf_vocab(path), hf_templates(path), override, hf_response_template(path))
    if path.suffix != ".gguf" or not os.path.isfile(path):
        raise ModelNotFound(f"{path}: neither a directory with a tokenizer.json nor a .gguf file")
    metadata = map_gguf(path)[1].metadata
    with located(path), _naming(chat_template):
        return tokenizer_from_gguf(metadata, override)


def _check_checkpoint(path: Path) -> None:
    """Raise the checkpoint's own error first: a directory without a tokenizer may be no checkpoint, or an unsupported
    one."""
    # Late: it imports torch, which the process that tokenizes doesn't need.
    from headrace.checkpoints.checkpoint import open_checkpoint

    open_checkpoint(path)


def tokenizer_from_gguf(metadata: Mapping[str, Any], chat_template: str | None = None) -> Tokenizer:
    """The tokenizer of a GGUF file's metadata; arrays may be numpy's or lists. `chat_template` is a template's text."""
    return _build(gguf_vocab(metadata), gguf_templates(metadata), chat_template)


def _build(vocab: Vocab, templates: dict[str, str], override: str | None, response_template: Any = None) -> Tokenizer:
    if override is not None:
        template = _template({"default": override}, vocab)
        template.check()
        return Tokenizer(vocab, template, response_template)
    return Tokenizer(vocab, _template(templates, vocab) if templates else None, response_template)


def _template(templates: dict[str, str], vocab: Vocab) -> ChatTemplate:
    added = vocab.backend.get_added_tokens_decoder()
    quoting = Quoting(
        [token.content for token_id, token in added.items() if token.special or token_id in vocab.special_ids],
        [token.content for token in added.values()],
        "\n".join(templates.values()),
    )
    return ChatTemplate(templates, vocab.named_tokens, quoting=quoting)


@contextlib.contextmanager
def _naming(chat_template: str | Path | None) -> Iterator[None]:
    """Add the template's file to its errors."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"chat_template {chat_template}: {error}") from error


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"chat_template {path}: cannot be read: {error}") from error
